"""How much principals have stored: measured when it is asked for, but not too often."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import Clock

SECONDS = 10.0
"""How long a measurement counts."""
COST = 100
"""And for how many times as long as it took, so that measuring takes a hundredth of the time at most."""


class _Measurement:
    """The last measurement of a principal."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0
        self.due = float("-inf")


class StoredBytes:
    """Measures what principals have stored. Any thread; `of` blocks while it measures."""

    def __init__(self, measure: Callable[[str], int], clock: Clock) -> None:
        self._measure, self._clock = measure, clock
        self._measured: dict[str, _Measurement] = {}

    def of(self, principal: str) -> int:
        """Return what the last measurement gave, after a new one if that is due. Raises what measuring raises."""
        last = self._measured.setdefault(principal, _Measurement())
        with last.lock:
            now = self._clock.monotonic()
            if now >= last.due:
                last.value = self._measure(principal)
                last.due = now + max(SECONDS, COST * (self._clock.monotonic() - now))
            return last.value

    def forget(self, principal: str) -> None:
        """Measure again when it is asked for next, because something was deleted."""
        self._measured.pop(principal, None)
