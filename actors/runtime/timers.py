"""One thread for all timers: retries, cancel timeouts, idle checks."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import Clock

log = logging.getLogger(__name__)


class Timers:
    """Runs callbacks later. Any thread; callbacks run on the timer thread and must not block."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bedrock-timers", daemon=True)
        self._thread.start()

    def after(self, milliseconds: int, callback: Callable[[], object]) -> None:
        """Run `callback` once, `milliseconds` from now; never after close()."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._due, (self._clock.monotonic() + milliseconds / 1000, next(self._order), callback))
            self._changed.notify()

    def close(self) -> None:
        """Drop all timers, wait for a running callback and end the thread; idempotent. Not from a callback."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            except BaseException:  # a failing callback must not prevent the others
                log.exception("a timer's callback failed")

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                wait = self._due[0][0] - self._clock.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
