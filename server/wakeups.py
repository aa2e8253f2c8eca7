"""From the threads that publish to the loop that sends: one crossing for all watchers that are to be woken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Wakeups:
    """Collects who is to be woken, and crosses to the event loop once for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False

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
            self._loop.call_soon_threadsafe(self._arrive)
        except RuntimeError:  # the loop is closed: nobody watches any more
            self._waiting.clear()

    def _arrive(self) -> None:
        self._crossing = False
        while self._waiting:
            self._waiting.popleft()()
