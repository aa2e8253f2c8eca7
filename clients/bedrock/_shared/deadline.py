"""How long something may take that consists of several calls."""

from __future__ import annotations

import time


class Deadline:
    """The moment until which a result is waited for; perhaps never."""

    def __init__(self, seconds: float | None) -> None:
        """Start the clock; without an end if `seconds` is None."""
        self.seconds = seconds
        """What was allowed."""
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds that are left, at least zero; None if there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> float:
        """Return so many seconds, or what is left if that is less."""
        left = self.left()
        return seconds if left is None else min(seconds, left)
