"""Time limits of single calls, and of operations that consist of several calls."""

from __future__ import annotations

import time
from numbers import Real
from typing import cast

LONGEST_SECONDS = 1e8
"""The longest time limit, about three years: gRPC and thread waits treat far longer ones like zero."""


def checked_timeout(timeout: object) -> float:
    """Return a valid time limit in seconds: at most `LONGEST_SECONDS`, also for infinity.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative or not a number of seconds (NaN).
    """
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout: must be a number of seconds, not {timeout!r}")
    seconds = cast("float", timeout)
    if not seconds >= 0:  # so that NaN is refused too
        raise ValueError(f"timeout: must be zero seconds or more, not {timeout!r}")
    return float(min(seconds, LONGEST_SECONDS))


class Deadline:
    """The time limit of an operation, which may have none."""

    def __init__(self, seconds: float | None) -> None:
        """Start the clock; without a limit if `seconds` is None. Raises what `checked_timeout` raises."""
        self.seconds = seconds
        """The allowed seconds; None if there is no limit."""
        self._end = None if seconds is None else time.monotonic() + checked_timeout(seconds)

    def left(self) -> float | None:
        """Return the remaining seconds, at least zero; None if there is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> float:
        """Return `seconds`, or the remaining time if that is less."""
        left = self.left()
        return seconds if left is None else min(seconds, left)
