"""A pool of database connections for reads. A connection serves one read at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from actors.ports import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

ConnectionT = TypeVar("ConnectionT")

READERS = 16
"""Maximum number of connections in use; further reads wait for a free one."""


class ReaderPool(Generic[ConnectionT]):
    """Keeps connections for reads by any thread.

    Connections do not belong to threads, so none is left open when a thread ends.
    """

    def __init__(self, close_one: Callable[[ConnectionT], None]) -> None:
        """Create an empty pool. `close_one` closes a connection and must not raise."""
        self._close_one = close_one
        # Limits the connections in use. `close` takes all permits, and so waits for the current reads.
        self._places = threading.BoundedSemaphore(READERS)
        self._idle: list[ConnectionT] = []
        self._lock = threading.Lock()  # guards _idle and _closed; not held while a connection is opened or used
        self._closed = False

    def _take_idle(self) -> ConnectionT | None:
        """Return a connection that is not in use; None if the pool has none.

        Raises StoreUnavailableError if the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("the store is closed")
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: ConnectionT) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        self._close_one(connection)

    def close(self) -> None:
        """Refuse new reads, wait for current ones, and close every connection. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close_one(connection)
        for _ in range(READERS):
            self._places.acquire()
        self._places.release(READERS)
