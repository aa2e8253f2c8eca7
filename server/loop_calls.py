"""The event loop, and function calls from any thread to it: all that wait cross together."""

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
"""How often a loop that does not rest looks for input. A call of gRPC takes several looks: with a millisecond between
them, a cancel behind hundreds of waiting calls was noticed later."""


class SparingLoop(asyncio.SelectorEventLoop):
    """An event loop that looks for input when it has nothing to do, or some time after its last look.

    Other loops look in each iteration. That releases the interpreter's lock, which the loop then has to get back from
    busy threads, and a message to a client takes several iterations. Between its looks this one finds the calls of
    `LoopCalls` by itself.
    """

    def __init__(self) -> None:
        self.rest = Rest()
        super().__init__(self.rest)


class Rest(selectors.DefaultSelector):
    """The selector of a `SparingLoop`: where it rests. Event loop only, except `asleep`."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = False
        """Whether the loop rests, or is about to: a thread that has something for it must wake it."""
        self.before: list[Callable[[], bool]] = []
        """Called before each rest; each one returns whether it has made work for the loop."""
        self._next_look = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for input; return nothing at once if the loop has work and has looked a moment ago."""
        self.asleep = timeout is None or timeout > 0
        # Asked after `asleep` is set: a thread whose call is not found here finds that it has to wake the loop.
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
    """The calls that wait for the event loop.

    A crossing to a loop at rest writes to a socket on the calling thread, which releases the interpreter lock, and
    wakes the loop. A `SparingLoop` that is awake takes the calls in its next iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        """Whether the loop is going to take the calls that wait."""
        self._rest = loop.rest if isinstance(loop, SparingLoop) else None
        if self._rest is not None:
            self._rest.before.append(self._begin)

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a call of `function` on the event loop. Any thread; never blocks.

        A caller that finds no crossing scheduled schedules one. Two threads may both do so, which is harmless. No call
        is missed, since it is queued before the flag is read, and the flag is cleared before the queue is read.
        """
        self._waiting.append(function)
        if self._crossing:
            return
        self._crossing = True
        if self._rest is not None and not self._rest.asleep and not self.loop.is_closed():
            return
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed: nothing waits for the calls any more
            self._waiting.clear()
            self._crossing = False

    def _begin(self) -> bool:
        """Let the loop take the calls that wait; return whether there are any (event loop, before it rests).

        `_crossing` is cleared before they are looked for, so that a later call is found here, or wakes the loop.
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
