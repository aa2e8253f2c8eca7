"""Time limits, in seconds, of single calls and of operations that consist of several calls."""

from __future__ import annotations

import time
from numbers import Real
from typing import cast

# The longest time limit in seconds, about three years. gRPC and waiting threads treat much longer limits like zero.
LONGEST_SECONDS = 1e8


def checked_timeout(timeout: object) -> float:
    """Check a time limit in seconds, and shorten it to `LONGEST_SECONDS`.

    Raises TypeError or ValueError (negative, NaN).
    """
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout: must be a number of seconds, not {timeout!r}")
    seconds = cast("float", timeout)
    if not seconds >= 0:  # this form also rejects NaN
        raise ValueError(f"timeout: must be zero seconds or more, not {timeout!r}")
    return float(min(seconds, LONGEST_SECONDS))


class Deadline:
    """The time limit of one operation, or the absence of a limit."""

    def __init__(self, seconds: float | None) -> None:
        """Start the clock. None means no limit. Raises what `checked_timeout` raises."""
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + checked_timeout(seconds)

    def left(self) -> float | None:
        """The remaining seconds, at least 0.0; None if there is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> float:
        """`seconds`, or the remaining time if that is shorter."""
        left = self.left()
        return seconds if left is None else min(seconds, left)
