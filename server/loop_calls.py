"""Function calls from any thread to the event loop: all that wait cross with one `call_soon_threadsafe`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")
log = logging.getLogger(__name__)


class LoopCalls:
    """The calls that wait for the event loop.

    Each crossing writes to a socket on the calling thread, which releases the interpreter lock, and wakes the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a call of `function` on the event loop. Any thread; never blocks.

        A caller that finds no crossing scheduled schedules one. Two threads may both do so, which is harmless. No call
        is missed, since it is queued before the flag is read, and the flag is cleared before the queue is read.
        """
        self._waiting.append(function)
        if self._crossing:
            return
        self._crossing = True
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed: nothing waits for the calls any more
            self._waiting.clear()
            self._crossing = False

    def _run(self) -> None:
        self._crossing = False
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception:  # the calls of others must not be lost
                log.exception("a call on the event loop failed")

    async def result(self, future: Future[T]) -> T:
        """Return the result of a future that another thread sets, or raise its error (event loop).

        A caller that is cancelled cancels the future, if that is still possible.
        """
        waiter: asyncio.Future[T] = self.loop.create_future()
        future.add_done_callback(lambda done: self.call(partial(_settle, waiter, done)))
        try:
            return await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise


def _settle(waiter: asyncio.Future[T], done: Future[T]) -> None:
    """Give the result of a finished future to the one that waits for it, unless that was cancelled."""
    if waiter.cancelled():
        return
    if done.cancelled():
        waiter.cancel()
    elif (error := done.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())
