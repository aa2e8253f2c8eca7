"""Timers for retries, cancel timeouts and idle checks, all on one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from actors.ports import Clock

log = logging.getLogger(__name__)

Timer: TypeAlias = tuple[float, int, Callable[[], object]]
"""When the timer is due (monotonic seconds), its number, which orders timers with the same time, and its callback."""


class Timers:
    """Runs callbacks after a delay.

    Safe to call from any thread; callbacks run on the timer thread and must not block.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: list[Timer] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bedrock-timers", daemon=True)
        self._thread.start()

    def after(self, milliseconds: int, callback: Callable[[], object]) -> Timer:
        """Run `callback` once after `milliseconds`, unless the timers are closed earlier.

        Return the timer, for `cancel`.
        """
        timer = (self._clock.monotonic() + milliseconds / 1000, next(self._order), callback)
        with self._changed:
            if not self._closed:
                heapq.heappush(self._due, timer)
                self._changed.notify()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Remove a timer; without effect if it has fired or is just firing."""
        with self._changed:
            if timer in self._due:
                self._due.remove(timer)
                heapq.heapify(self._due)

    def close(self) -> None:
        """Drop all timers, wait for a running callback and end the thread. Idempotent. Do not call it in a callback."""
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
