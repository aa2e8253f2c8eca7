"""Batched wakeups from publishing threads to the event loop: one call on the loop for all pending watchers.

Sending costs the loop some 70 microseconds per watcher, regardless of size. If many watchers were woken for every
single event, the loop would do nothing else, and starve requests and the publishing threads. A batch that has woken
many is therefore followed by a pause, in which events accumulate: then fewer messages carry more. Live text is less
urgent than events, so it has batches of its own with longer pauses.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.loop_calls import LoopCalls

EVENTS_PAUSE_SECONDS = 0.000_3
"""Pause after a batch, per watcher woken for an event: about four times the cost of sending to it."""
TEXT_PAUSE_SECONDS = 0.001
"""The same for live text: at once to a single watcher, and twenty times a second to fifty or more."""
TEXT_LONGEST_SECONDS = 0.05
"""Maximum seconds that live text waits."""
SHORTEST_SECONDS = 0.002
"""Shorter pauses are skipped: after a batch of few watchers the next one is sent at once."""
LONGEST_SECONDS = 0.1
AT_ONCE = 16
"""Maximum watchers woken per iteration of the event loop, so that requests do not wait for more of them."""


class Wakeups:
    """Collects the watchers to be woken, and schedules one callback on the event loop for all of them."""

    def __init__(
        self, calls: LoopCalls, pause_seconds: float = EVENTS_PAUSE_SECONDS, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        """Create it; `pause_seconds` is the pause after a batch, per watcher woken, up to `longest_seconds`."""
        self._calls = calls
        self._loop = calls.loop
        self._pause = pause_seconds
        self._longest = longest_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        self._not_before = 0.0

    def wake(self, watcher: Callable[[], None]) -> None:
        """Schedule a call of `watcher` on the event loop. Any thread; never blocks.

        A caller that finds no batch scheduled schedules one. Two threads may both do so, which only costs one more
        callback. No watcher is missed, since it is queued before the flag is read, and the flag is cleared before the
        queue is read.
        """
        self._waiting.append(watcher)
        if self._crossing:
            return
        self._crossing = True
        self._calls.call(self._cross)

    def _cross(self) -> None:
        if self._loop.time() < self._not_before:
            self._loop.call_at(self._not_before, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Wake the watchers queued now; those queued during the batch are woken by the next one.

        Otherwise a batch would never end under steady load, and have no pause after it.
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
