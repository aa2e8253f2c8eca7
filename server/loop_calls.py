"""The server's event loop, and a queue by which other threads call functions on it in batches."""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_SECONDS = 0.000_2
"""Seconds between two polls for input while the loop has other work.

A gRPC call takes several polls. With a millisecond between them, a call that cancels a run was noticed too late if
hundreds of calls were waiting before it.
"""


class SparingLoop(asyncio.SelectorEventLoop):
    """An event loop that polls for input only when it is idle, or LOOK_SECONDS after its last poll.

    Other event loops poll in each iteration. A poll releases the interpreter's lock, which the loop must then get back
    from busy threads, and sending one message to a client takes several iterations. In each iteration, this loop also
    runs the calls that other threads have queued by `LoopCalls`, so that it notices them without a poll.
    """

    def __init__(self) -> None:
        self.rest = Rest()
        super().__init__(self.rest)


class Rest(selectors.DefaultSelector):
    """The selector with which the event loop `SparingLoop` waits for input. Use on its thread only, except `asleep`."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = False
        """Whether the loop sleeps or is about to. If true, a thread that queues a call must wake the loop."""
        self.before: list[Callable[[], bool]] = []
        """Functions that are called before each poll. Each returns whether it has scheduled work for the loop."""
        self._next_look = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for input and return it.

        Returns [] at once if the loop has other work and has polled less than LOOK_SECONDS ago.
        """
        self.asleep = timeout is None or timeout > 0
        # `asleep` was set first, because a thread may queue a call too late for the next line; the thread then sees
        # `asleep`, and wakes the loop.
        begun = [begin() for begin in self.before]
        if any(begun):
            self.asleep, timeout = False, 0
        if not self.asleep and monotonic() < self._next_look:
            return []
        try:
            return super().select(timeout)
        finally:
            self.asleep = False
            self._next_look = monotonic() + LOOK_SECONDS


class LoopCalls:
    """A queue of function calls that other threads want the event loop to make.

    To wake a sleeping loop, the calling thread writes to a socket, which releases the interpreter's lock. While
    the server's event loop (`SparingLoop`) is awake, no write is needed: it runs the calls in its next iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        """Whether the loop is already scheduled to run the queued calls, so that no thread needs to wake it."""
        self._rest = loop.rest if isinstance(loop, SparingLoop) else None
        if self._rest is not None:
            self._rest.before.append(self._begin)

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a call of `function` on the event loop. Safe to call from any thread; never blocks.

        The first thread wakes the loop; later ones only queue their calls. If two threads both wake the loop, that is
        harmless. No call is missed, because a call is queued before `_crossing` is read, and `_crossing` is cleared
        before the queue is read. Calls to a closed loop are dropped.
        """
        self._waiting.append(function)
        if self._crossing:
            return
        self._crossing = True
        if self._rest is not None and not self._rest.asleep and not self.loop.is_closed():
            return
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed: nobody waits for the calls any more
            self._waiting.clear()
            self._crossing = False

    def _begin(self) -> bool:
        """Schedule the queued calls, and return whether there are any. Called on the event loop, before it sleeps.

        `_crossing` is cleared before the queue is read, so that a later call is either found here or wakes the loop.
        """
        self._crossing = False
        if not self._waiting:
            return False
        self.loop.call_soon(self._run)
        return True

    def _run(self) -> None:
        self._crossing = False
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception:  # an error in one call must not prevent the other calls
                log.exception("a call on the event loop failed")

    async def result(self, future: Future[T]) -> T:
        """Wait for a future that another thread completes, and return its result or raise its error.

        Use in the event loop only. If the waiting task is cancelled, the future is cancelled, too, if that is still
        possible.
        """
        waiter: asyncio.Future[T] = self.loop.create_future()
        future.add_done_callback(lambda done: self.call(partial(_settle, waiter, done)))
        try:
            return await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise


def _settle(waiter: asyncio.Future[T], done: Future[T]) -> None:
    """Copy the result of a finished future to the waiting asyncio future, unless the latter was cancelled."""
    if waiter.cancelled():
        return
    if done.cancelled():
        waiter.cancel()
    elif (error := done.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())
