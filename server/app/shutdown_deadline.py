"""A watchdog that ends the process if the shutdown takes too long."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger(__name__)


class Deadline:
    """Ends the process if the shutdown takes longer than a time limit.

    Leaving the `with` block disarms this watchdog.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Start the time limit, `seconds` from now. Call this at most once."""
        self._timer = threading.Timer(seconds, _give_up, (seconds,))
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _give_up(seconds: float) -> None:
    log.error("stopping took longer than %s s: ending at once; the next start recovers all conversations", seconds)
    os._exit(1)
