"""Logs an outage of a service with few lines: one when it begins, one a minute while it lasts, and one at its end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

REMIND_SECONDS = 60.0
"""The seconds between two log lines of an outage that lasts."""
CALM_SECONDS = 5.0
"""An outage ends after this many seconds without a failure, so that a short recovery does not end it."""


class OutageLog:
    """Logs the outages of one service: their beginning and end as warnings, the reminders in between as errors.

    Safe to call from any thread. Costs nothing while there is no outage.
    """

    def __init__(self, log: logging.Logger, over: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin without an outage. `over` is the text that is logged when an outage ends."""
        self._log = log
        self._over = over
        self._monotonic = monotonic
        self._guard = threading.Lock()  # guards the fields below
        self._began: float | None = None
        self._told = 0.0
        """When the last line was logged, in monotonic seconds."""
        self._last = 0.0
        """When the last failure happened, in monotonic seconds."""
        self._worked: float | None = None
        """The time of the first success since the last failure, in monotonic seconds; None if there was none."""
        self._failures = 0

    @property
    def seconds(self) -> float:
        """How many seconds the outage has lasted; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else self._monotonic() - began

    @property
    def due(self) -> bool:
        """Whether the next failure would be logged."""
        return self._began is None or self._monotonic() - self._told >= REMIND_SECONDS

    def failed(self, why: str) -> None:
        """Count a failure. Log the first failure of an outage, and after that at most one failure a minute."""
        with self._guard:
            now = self._monotonic()
            if self._began is not None and self._worked is not None and now - self._last >= CALM_SECONDS:
                self._end(self._began, self._worked)
            self._failures += 1
            self._last, self._worked = now, None
            if self._began is None:
                self._began = self._told = now
                self._log.warning("%s", why)
            elif now - self._told >= REMIND_SECONDS:
                self._told = now
                self._log.error("%s", why, extra=self._so_far(self._began, now))

    def worked(self) -> None:
        """Note a success; log the end of the outage if the last failure is at least CALM_SECONDS ago."""
        if self._began is None:
            return
        with self._guard:
            if self._began is None:
                return
            now = self._monotonic()
            if self._worked is None:
                self._worked = now
            if now - self._last >= CALM_SECONDS:
                self._end(self._began, self._worked)

    def _so_far(self, began: float, until: float) -> dict[str, object]:
        return {"outage_seconds": round(until - began, 1), "failures": self._failures}

    def _end(self, began: float, until: float) -> None:
        self._log.warning("%s", self._over, extra=self._so_far(began, until))
        self._began, self._worked, self._failures = None, None, 0
