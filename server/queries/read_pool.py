"""Runs reads of the store for the event loop on a small pool of threads.

Principals take turns: one with a thousand waiting reads delays another's by one read per thread, and none can occupy
all threads. Reads that may take minutes, such as the verification of a long log, occupy at most half of the threads, so
that short reads wait only for short ones.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from actors.runtime.quotas.fair_slots import FairSlots
from server.auth.authentication import caller

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
KEPT_SHARE = 4
"""One in this many threads is reserved: a single principal cannot occupy it."""
LONG_SHARE = 2
"""One in this many threads serves long reads, and one in this many of those serves a single principal's."""


class ReadPool:
    """Runs blocking reads. Called on the event loop; closed once, after the server has stopped."""

    def __init__(self, threads: int = THREADS, *, name: str = "bedrock-read") -> None:
        most_of_one = threads - threads // KEPT_SHARE
        self._slots = FairSlots(threads, lambda _principal: most_of_one)
        long = max(threads // LONG_SHARE, 1)
        most_long = max(long // LONG_SHARE, 1)
        self._long = FairSlots(long, lambda _principal: most_long)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._start_all(threads)

    def _start_all(self, threads: int) -> None:
        """Start every thread now, since the system may refuse to start one later. Raises RuntimeError."""
        together = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):
                self._pool.submit(together.wait)
            together.wait()
        except BaseException:
            together.abort()
            raise

    async def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read` on a thread of the pool and wait for it without blocking the loop."""
        return await self._run(lambda: read(*args, **kwargs), self._slots)

    async def long(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read that may take minutes; else like a call."""
        return await self._run(lambda: read(*args, **kwargs), self._long, self._slots)

    async def _run(self, read: Callable[[], T], *kinds: FairSlots) -> T:
        """Run a read once it has a slot of each kind."""
        who = caller.get(None)
        principal = who.principal if who is not None else ""
        taken = list[FairSlots]()

        def give_back(_running: object = None) -> None:
            for slots in taken:
                slots.release(principal)

        try:
            for slots in kinds:
                await _turn(slots, principal)
                taken.append(slots)
            running = asyncio.get_running_loop().run_in_executor(self._pool, read)
        except BaseException:
            give_back()
            raise
        running.add_done_callback(give_back)
        try:
            return await asyncio.shield(running)  # a read whose caller has gone keeps its thread, and so its slot
        except asyncio.CancelledError:
            running.add_done_callback(_ignore)
            raise

    def close(self) -> None:
        """Wait for the running reads and end the threads."""
        self._pool.shutdown(cancel_futures=True)


async def _turn(slots: FairSlots, principal: str) -> None:
    """Take a slot, when it is this principal's turn."""
    turn = asyncio.get_running_loop().create_future()
    place = slots.acquire(principal, lambda: _take(turn))
    if turn.done():
        return
    try:
        await turn
    except asyncio.CancelledError:
        if not slots.withdraw(place) and not turn.cancelled():
            slots.release(principal)
        raise


def _take(turn: asyncio.Future[None]) -> bool:
    """Start a waiting read; return False if its caller has been cancelled."""
    if turn.cancelled():
        return False
    turn.set_result(None)
    return True


def _ignore(running: asyncio.Future[T]) -> None:
    """Retrieve the outcome of a read that nobody waits for; otherwise asyncio would log it."""
    if not running.cancelled():
        running.exception()
