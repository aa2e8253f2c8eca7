"""From the threads that publish to the loop that sends: one crossing for all watchers that are to be woken.

Sending costs the loop some 70 microseconds per watcher, however much is sent. When many watchers are woken for every
single event, the loop is busy with nothing else, and the threads that bring the events hardly get a turn. A crossing
that has woken many is therefore followed by a pause, in which more events gather: then fewer messages carry more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

PAUSE_SECONDS = 0.000_15
"""After a crossing, per watcher that it has woken: about twice what sending to it costs."""
SHORTEST_SECONDS = 0.002
"""A pause that would be shorter is left out: after few watchers the next event goes out at once."""
LONGEST_SECONDS = 0.05


class Wakeups:
    """Collects who is to be woken, and crosses to the event loop once for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
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
        self._crossing = False
        woken = 0
        while self._waiting:
            self._waiting.popleft()()
            woken += 1
        pause = min(woken * PAUSE_SECONDS, LONGEST_SECONDS)
        if pause >= SHORTEST_SECONDS:
            self._not_before = self._loop.time() + pause
