"""Runs blocking reads of the store on a small pool of threads, for the event loop.

Principals take turns: a principal with a thousand waiting reads delays another principal by one read per thread, and
cannot occupy all threads. Reads that may take minutes, such as the verification of a long log, occupy at most half of
the threads, so that short reads need not wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from actors.runtime.admission import FairSlots
from server.auth.authentication import caller

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
KEPT_SHARE = 4
"""A quarter of the threads stays free for other principals when one principal has many reads."""
LONG_SHARE = 2
"""Half of the threads may run long reads, and half of those threads may run long reads of one principal."""


class ReadPool:
    """Runs blocking reads on threads. Call it on the event loop; close it once, after the server has stopped."""

    def __init__(self, threads: int = THREADS, *, name: str = "bedrock-read") -> None:
        most_of_one = threads - threads // KEPT_SHARE
        self._slots = FairSlots(threads, lambda _principal: most_of_one)
        long = max(threads // LONG_SHARE, 1)
        most_long = max(long // LONG_SHARE, 1)
        self._long = FairSlots(long, lambda _principal: most_long)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._start_all(threads)

    def _start_all(self, threads: int) -> None:
        """Start every thread now, because the system may refuse to start one later.

        Raises RuntimeError if the system refuses to start one now.
        """
        together = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):
                self._pool.submit(together.wait)
            together.wait()
        except BaseException:
            together.abort()
            raise

    async def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read` on a thread of the pool, and return its result without blocking the event loop."""
        return await self._run(lambda: read(*args, **kwargs), self._slots)

    async def long(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read that may take minutes, and return its result. Such reads get only a part of the threads."""
        return await self._run(lambda: read(*args, **kwargs), self._long, self._slots)

    async def _run(self, read: Callable[[], T], *kinds: FairSlots) -> T:
        """Run a read as soon as each limit in `kinds` has a free slot, and return the result of the read."""
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
            return await asyncio.shield(running)  # if the caller is cancelled, the read continues, and keeps its slots
        except asyncio.CancelledError:
            running.add_done_callback(_ignore)
            raise

    def close(self) -> None:
        """Wait for the running reads, and end the threads. Reads that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)


async def _turn(slots: FairSlots, principal: str) -> None:
    """Wait until it is this principal's turn, and take a slot."""
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
    """Give a waiting read its slot; return False if the caller of the read has been cancelled."""
    if turn.cancelled():
        return False
    turn.set_result(None)
    return True


def _ignore(running: asyncio.Future[T]) -> None:
    if not running.cancelled():
        running.exception()
