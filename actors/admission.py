"""How many model requests may be in flight: those of conversations, and small ones beside them."""

from __future__ import annotations

import threading


class Admission:
    """How many model requests are in flight in the whole process. Any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._places = threading.BoundedSemaphore(limit)

    def enter(self) -> bool:
        """Take a place, to be given back with `leave`; False if the house is full."""
        return self._places.acquire(blocking=False)

    def leave(self) -> None:
        self._places.release()
