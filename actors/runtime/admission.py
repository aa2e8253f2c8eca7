"""Admission control: limits for concurrent model requests and for other work that needs file descriptors."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from actors.ports import resources

if TYPE_CHECKING:
    from collections.abc import Callable

FILES_PER_TOOL = 6
"""File descriptors that a tool call needs in this process: sockets, pipes, a handle to kill its process."""
FILES_PER_REQUEST = 2
"""File descriptors of a model request: its socket, and one for the name resolution before."""
COUNT_SECONDS = 0.05
"""Seconds for which a count of open files is reused: counting thousands takes a millisecond."""


class FileRoom:
    """Admits new work only while enough file descriptors are free. Any thread.

    Some are reserved: for clients that connect to cancel, for reads of the store, and for running work.
    """

    def __init__(
        self, limit: Callable[[], int] = resources.max_open_files, count: Callable[[], int] = resources.open_files
    ) -> None:
        self._limit, self._count = limit, count
        self._lock = threading.Lock()
        self._counted_at = float("-inf")
        self._open = 0

    @property
    def reserved(self) -> int:
        """File descriptors that are not available to new work."""
        return min(max(self._limit() // 8, 32), 512)

    def take(self, files: int) -> bool:
        """Return whether this many descriptors can be opened now; they count as open until the next measurement."""
        with self._lock:
            now = time.monotonic()
            if now - self._counted_at >= COUNT_SECONDS:
                self._open, self._counted_at = self._count(), now
            if self._open + files > self._limit() - self.reserved:
                return False
            self._open += files
            return True

    @property
    def refusal(self) -> str:
        """The reason for a refusal, as the beginning of a sentence; it states the limit."""
        return (
            f"this server may have {self._limit():,} files open (ulimit -n) and keeps {self.reserved} of them for"
            " cancels and for what is running: there is none left"
        )


class Admission:
    """Limits the model requests in flight in the process. Any thread."""

    def __init__(self, limit: int, room: FileRoom | None = None) -> None:
        self._room = room or FileRoom()
        self.limit = limit
        self._lock = threading.Lock()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """How many requests are in flight now."""
        return self._in_flight

    def acquire(self) -> str:
        """Admit one request, until `release`; return "", or the reason for a refusal, which begins a sentence."""
        with self._lock:
            if self._in_flight == self.limit:
                return f"{self.limit:,} model requests are in flight on this server, which is its limit"
            if not self._room.take(FILES_PER_REQUEST):
                return f"{self._room.refusal} for another model request"
            self._in_flight += 1
            return ""

    def release(self) -> None:
        """End the request that `acquire` admitted."""
        with self._lock:
            self._in_flight -= 1
