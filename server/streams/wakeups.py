"""From the threads that publish to the loop that sends: one crossing for all watchers that are to be woken.

Sending costs the loop some 70 microseconds per watcher, however much is sent. When many watchers are woken for every
single event, the loop is busy with nothing else, and neither requests nor the threads that bring the events get a turn.
A crossing that has woken many is therefore followed by a pause, in which more gathers: then fewer messages carry more.
Passing text is in less of a hurry than events, so it crosses apart from them and pauses longer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

EVENTS_PAUSE_SECONDS = 0.000_3
"""After a crossing, per watcher that it has woken for an event: about four times what sending to it costs."""
TEXT_PAUSE_SECONDS = 0.000_5
"""The same for live text: a hundred watchers see it move twenty times a second, and the loop has rest between."""
SHORTEST_SECONDS = 0.002
"""A pause that would be shorter is left out: after few watchers what comes next goes out at once."""
LONGEST_SECONDS = 0.1
AT_ONCE = 16
"""Watchers that are woken in one turn of the loop: a request waits behind so many of them, not behind all."""


class Wakeups:
    """Collects who is to be woken, and crosses to the event loop once for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pause_seconds: float = EVENTS_PAUSE_SECONDS) -> None:
        """`pause_seconds` is that of a crossing, per watcher that it has woken."""
        self._loop = loop
        self._pause = pause_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        self._not_before = 0.0

    def wake(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called on the loop soon. Any thread; never blocks.

        Whoever finds no crossing under way starts one. Two threads may both do so, which does no harm; none can be
        forgotten, since an entry is queued before the flag is looked at and the flag falls before the queue is read.
        """
        self._waiting.append(watcher)
        if self._crossing:
            return
        self._crossing = True
        try:
            self._loop.call_soon_threadsafe(self._cross)
        except RuntimeError:  # the loop is closed: nobody watches any more
            self._waiting.clear()

    def _cross(self) -> None:
        if self._loop.time() < self._not_before:
            self._loop.call_at(self._not_before, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Wake those who wait now; those who come meanwhile are woken by the next crossing.

        Otherwise a crossing would have no end, and no pause after it, while something new comes all the time.
        """
        self._rouse(len(self._waiting), 0)

    def _rouse(self, left: int, woken: int) -> None:
        count = min(left, AT_ONCE, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft()()
        left, woken = left - count, woken + count
        if left and count:
            self._loop.call_soon(self._rouse, left, woken)
            return
        pause = min(woken * self._pause, LONGEST_SECONDS)
        if pause >= SHORTEST_SECONDS:
            self._not_before = self._loop.time() + pause
        self._crossing = False
        if self._waiting:
            self._crossing = True
            self._loop.call_soon(self._cross)
