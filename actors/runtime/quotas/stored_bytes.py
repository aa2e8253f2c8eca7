"""Measures now and then how many bytes each principal has stored; in between, bytes that are added are counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import Clock

SECONDS = 10.0
"""The minimum number of seconds for which a measurement is valid."""
COST = 100
"""A measurement is valid for at least this many times as long as it took: measuring takes at most 1 % of the time."""


class _Measurement:
    """The last measurement for a principal."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0
        """The measured bytes, plus the bytes that were added since."""
        self.due = float("-inf")


class StoredBytes:
    """Tells how many bytes each principal has stored. Safe to call from any thread; `of` and `add` block to measure."""

    def __init__(self, measure: Callable[[str], int], clock: Clock) -> None:
        self._measure, self._clock = measure, clock
        self._measured: dict[str, _Measurement] = {}

    def of(self, principal: str) -> int:
        """Return the stored bytes of a principal, measured again if the last measurement is too old.

        Raises the errors of the function that measures.
        """
        last = self._measured.setdefault(principal, _Measurement())
        with last.lock:
            return self._current(principal, last)

    def add(self, principal: str, more: int, limit: int) -> int:
        """Count `more` bytes as stored, unless the sum would exceed `limit`. Return how many bytes were stored before.

        If the caller then fails to store the bytes, they still count until the next measurement. Raises the errors of
        the function that measures.
        """
        last = self._measured.setdefault(principal, _Measurement())
        with last.lock:
            before = self._current(principal, last)
            if before + more <= limit:
                last.value += more
            return before

    def _current(self, principal: str, last: _Measurement) -> int:
        """Return the stored bytes, measured again if the last measurement is too old. The caller holds `last.lock`."""
        now = self._clock.monotonic()
        if now >= last.due:
            last.value = self._measure(principal)
            last.due = now + max(SECONDS, COST * (self._clock.monotonic() - now))
        return last.value

    def forget(self, principal: str) -> None:
        """Drop the principal's measurement after a deletion, so that the next `of` or `add` measures again."""
        self._measured.pop(principal, None)
