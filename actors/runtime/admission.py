"""Admission control: limits the concurrent model requests, and the file descriptors that new work may open."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from actors.ports.machine import resources

if TYPE_CHECKING:
    from collections.abc import Callable

FILES_PER_TOOL = 6
"""The file descriptors that a tool call needs in this process: sockets, pipes, and a handle to kill its process."""
FILES_PER_REQUEST = 2
"""The file descriptors that a model request needs: one for its socket, and one for name resolution."""
COUNT_SECONDS = 0.05
"""For how many seconds a count of open files is reused: counting thousands of them takes a millisecond."""


class FileRoom:
    """Admits new work only while enough file descriptors are free. Safe to call from any thread.

    Some descriptors are reserved: for clients that connect in order to cancel, for reads of the store, and for running
    work.
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
        """The number of file descriptors that new work cannot use."""
        return min(max(self._limit() // 8, 32), 512)

    def reserve(self, files: int) -> bool:
        """Return whether this many descriptors can be opened now; if so, they count as open until the next count."""
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
        """The reason why `reserve` returned False, with the limit, as a part of a sentence."""
        return (
            f"this server may have {self._limit():,} files open (ulimit -n) and keeps {self.reserved} of them for"
            " cancels and for what is running: there is none left"
        )


class Admission:
    """Limits the number of model requests in flight in this process. Safe to call from any thread."""

    def __init__(self, limit: int, room: FileRoom | None = None) -> None:
        self._room = room or FileRoom()
        self.limit = limit
        self._lock = threading.Lock()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """The number of model requests in flight now."""
        return self._in_flight

    def acquire(self) -> str:
        """Admit one request until `release`.

        Return "" if admitted, otherwise the reason for the refusal, without a period.
        """
        with self._lock:
            if self._in_flight == self.limit:
                return f"{self.limit:,} model requests are in flight on this server, which is its limit"
            if not self._room.reserve(FILES_PER_REQUEST):
                return f"{self._room.refusal} for another model request"
            self._in_flight += 1
            return ""

    def release(self) -> None:
        """Give back the slot of a request that `acquire` admitted."""
        with self._lock:
            self._in_flight -= 1
