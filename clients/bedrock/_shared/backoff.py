"""How long to wait before a broken stream is opened again, and when to give up."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


class Backoff:
    """Delays that double, with some jitter, until there is progress or the time is up."""

    def __init__(self, give_up_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any delay.

        Args:
            give_up_after: Seconds without progress after which there are no more delays.
            clock: Seconds since some moment in the past.
        """
        self._give_up_after = give_up_after
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def progress(self) -> None:
        """Take note that something new has arrived."""
        self._failures = 0

    def next(self, at_least: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt; None if it is time to give up."""
        if not self._failures:
            self._since = self._clock()
        elif self._clock() - self._since >= self._give_up_after:
            return None
        delay = min(FIRST_SECONDS * 2.0**self._failures, LONGEST_SECONDS)
        self._failures += 1
        return max(at_least, delay * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads load, guards nothing
