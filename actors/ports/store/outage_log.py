"""Few lines in the log for something that fails all the time: one when it begins, one a minute, and one at its end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

REMIND_SECONDS = 60.0
"""Between two lines of an outage that lasts."""
CALM_SECONDS = 5.0
"""How long nothing may have failed before an outage is over: else what fails now and then would be logged each time."""


class OutageLog:
    """Logs the outages of one thing: warnings, and errors from a minute on. Any thread; free while there is none."""

    def __init__(self, log: logging.Logger, over: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`over` is the line at the end of an outage."""
        self._log = log
        self._over = over
        self._monotonic = monotonic
        self._guard = threading.Lock()  # guards what follows
        self._began: float | None = None
        self._told = 0.0
        """When the last line was logged."""
        self._last = 0.0
        """When it failed last."""
        self._worked: float | None = None
        """When it worked for the first time after that."""
        self._failures = 0

    @property
    def seconds(self) -> float:
        """How long the outage has lasted; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else self._monotonic() - began

    @property
    def due(self) -> bool:
        """Whether the next failure would be logged."""
        return self._began is None or self._monotonic() - self._told >= REMIND_SECONDS

    def failed(self, why: str) -> None:
        """Count a failure; log it if it is the first, or the last line was long ago."""
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
        """Note that it works; log the end of the outage once nothing has failed for a while."""
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
