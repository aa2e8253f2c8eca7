"""Exponential backoff with jitter between attempts, and its time limit."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


class Backoff:
    """Delays that double, with jitter, until there is progress or the time limit is reached."""

    def __init__(self, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any delay.

        Args:
            max_seconds: Seconds without progress after which there are no more delays.
            clock: Seconds since some moment in the past.
        """
        self._max_seconds = max_seconds
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def progress(self) -> None:
        """Reset the delays, because something new has arrived."""
        self._failures = 0

    def next(self, at_least: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt; None if the time limit is reached."""
        if not self._failures:
            self._since = self._clock()
        elif self._clock() - self._since >= self._max_seconds:
            return None
        delay = min(FIRST_SECONDS * 2.0**self._failures, LONGEST_SECONDS)
        self._failures += 1
        return max(at_least, delay * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads load, guards nothing
