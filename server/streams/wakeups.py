"""Wakes the streams that wait for events: one callback on the event loop for all of them, not one for each event.

Sending costs the loop some 70 microseconds per stream, regardless of size. If many streams were woken for every single
event, the loop would do nothing else, and delay requests and the threads that publish events. So after a batch that has
woken many streams, there is a pause in which events accumulate: then fewer responses carry more events. Text that a
model is streaming is less urgent than events, so it has batches of its own, with longer pauses.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable


EVENTS_PAUSE_SECONDS = 0.000_3
"""After a batch, the pause is this number of seconds per stream woken for events: four times what sending takes."""
TEXT_PAUSE_SECONDS = 0.001
"""After a batch, the pause is this number of seconds per stream woken for text that a model is streaming.

A single stream thus gets text at once, and fifty or more streams get it twenty times a second.
"""
TEXT_LONGEST_SECONDS = 0.05
"""The longest pause, in seconds, after a batch of streams that were woken for text."""
SHORTEST_SECONDS = 0.002
"""Pauses of fewer seconds than this are left out: after a batch of few streams, the next batch follows at once."""
LONGEST_SECONDS = 0.1
AT_ONCE = 16
"""Maximum streams woken in one iteration of the event loop, so that requests get a turn before the other streams."""


class Wakeups:
    """Collects the streams to be woken, and schedules one callback on the event loop for all of them."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        pause_seconds: float = EVENTS_PAUSE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        """Begin without streams to wake.

        A batch is followed by a pause of `pause_seconds` for each stream woken, but of at most `longest_seconds`.
        """
        self._loop = loop
        self._pause = pause_seconds
        self._longest = longest_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        self._not_before = 0.0

    def wake(self, watcher: Callable[[], None]) -> None:
        """Schedule a call of `watcher`, which wakes a stream, on the event loop. Safe on any thread; never blocks.

        If no batch is scheduled yet, this schedules one. Two threads may both do so, which only costs one more
        callback. No stream is missed, because `watcher` is queued before the flag `_crossing` is read, and the flag is
        cleared before the queue is read.
        """
        self._waiting.append(watcher)
        if self._crossing:
            return
        self._crossing = True
        with suppress(RuntimeError):  # the loop is closed, so no stream is left
            self._loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        if self._loop.time() < self._not_before:
            self._loop.call_at(self._not_before, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Wake the streams that are queued now. Those queued during the batch are woken by the next batch.

        Otherwise a batch would never end under steady load, and would have no pause after it.
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
        pause = min(woken * self._pause, self._longest)
        if pause >= SHORTEST_SECONDS:
            self._not_before = self._loop.time() + pause
        self._crossing = False
        if self._waiting:
            self._crossing = True
            self._loop.call_soon(self._cross)
