"""Keeps the idle connections of one provider for later requests."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from actors.adapters.llm.transport.http_connection import IDLE_SECONDS
from actors.ports.machine.resources import max_open_files

if TYPE_CHECKING:
    from actors.adapters.llm.transport.http_connection import HttpConnection

#: A function that runs a callback once, after a number of milliseconds.
Later: TypeAlias = Callable[[int, Callable[[], object]], object]

#: Identifies a server: whether it uses TLS, its host and its port. The proxy and the TLS settings are the same for all
#: connections of a pool.
Origin: TypeAlias = tuple[bool, str, int]

#: Maximum number of idle connections; above it the least recently used one is closed. If this process can open only few
#: files, the maximum is a sixteenth of that limit, because requests and tools need most of the files.
MAX_IDLE = 100
_SHARE_OF_FILES = 16


class ConnectionPool:
    """Keeps idle connections, and reuses the most recently used one first.

    Safe to call from any thread; never blocks. A connection is closed after its idle time, on `close`, and when the
    pool is garbage collected.
    """

    def __init__(self, later: Later) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Origin, HttpConnection]] = []
        self._later = later
        self._sweeping = False
        self._closed = False
        weakref.finalize(self, _close_all, self._idle)

    def take(self, origin: Origin) -> HttpConnection | None:
        """Remove and return a connection to `origin` that can take a request now; None if there is none."""
        awaiting_end: list[tuple[Origin, HttpConnection]] = []
        while (connection := self._pop(origin)) is not None and not connection.is_reusable():
            if connection.is_open:
                awaiting_end.append((origin, connection))
            else:
                connection.close()
        if awaiting_end:
            self._keep(reversed(awaiting_end))
        return connection

    def put(self, origin: Origin, connection: HttpConnection) -> None:
        """Keep a connection whose request has ended, or close it if it cannot be used again.

        The end of the response may arrive later; `take` then reads it.
        """
        if self._closed or not connection.release():
            connection.close()
            return
        self._keep([(origin, connection)])

    def close(self) -> None:
        """Close all idle connections, and from now on every connection that `put` gets. Idempotent."""
        with self._lock:
            self._closed = True
            idle = self._idle.copy()
            self._idle.clear()
        _close_all(idle)

    def _keep(self, connections: Iterable[tuple[Origin, HttpConnection]]) -> None:
        with self._lock:
            self._idle.extend(connections)
            surplus = self._idle[: -_max_idle()] if not self._closed else self._idle[:]
            del self._idle[: len(surplus)]
            schedule = not (self._sweeping or self._closed)
            self._sweeping = self._sweeping or schedule
        _close_all(surplus)
        if schedule:
            self._schedule_sweep()

    def _pop(self, origin: Origin) -> HttpConnection | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == origin:
                    return self._idle.pop(index)[1]
        return None

    def _schedule_sweep(self) -> None:
        sweep = weakref.WeakMethod(self._sweep)
        self._later(int(IDLE_SECONDS * 1000), lambda: (found := sweep()) and found())

    def _sweep(self) -> None:
        """Close connections that were idle for too long; schedule another sweep if idle connections remain.

        Called on the thread of `later`.
        """
        now = time.monotonic()
        with self._lock:
            expired = [kept for kept in self._idle if kept[1].idle_until <= now]
            self._idle[:] = [kept for kept in self._idle if kept[1].idle_until > now]
            again = self._sweeping = bool(self._idle)
        _close_all(expired)
        if again:
            self._schedule_sweep()


def _close_all(idle: list[tuple[Origin, HttpConnection]]) -> None:
    for _, connection in idle:
        connection.close()


def _max_idle() -> int:
    files = max_open_files()
    return MAX_IDLE if files < 0 else max(1, min(MAX_IDLE, files // _SHARE_OF_FILES))
