"""A pool of connections for reads and claims, each used for one at a time."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from actors.adapters.store.postgres.engine import Address, connect, explained
from actors.ports import DatabaseAwayError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Generator

    from actors.adapters.store.postgres.engine import Session
    from actors.ports.store.outage_log import OutageLog

READERS = 16
"""Maximum number of connections; further reads wait for one."""


class Readers:
    """Lends connections to any thread; none belongs to a thread, so none leaks when a thread ends."""

    def __init__(self, address: Address, outages: OutageLog) -> None:
        self._address = address
        self._outages = outages
        # limits connections; `close` acquires all permits to wait for reads
        self._places = threading.BoundedSemaphore(READERS)
        self._idle: list[Session] = []
        self._lock = threading.Lock()  # guards _idle and _closed; not held while a connection is opened or used
        self._closed = False

    @contextmanager
    def lend(self) -> Generator[Session]:
        """Lend a connection for the duration of the block. Raises StoreUnavailableError or StoreDamagedError."""
        with self._places:
            session = None
            try:
                session = self._take()
                yield session
            except BaseException as error:
                if session is not None:
                    self._after_error(session, error)
                cause = explained(error)
                if isinstance(cause, DatabaseAwayError):
                    self._outages.failed(str(cause))
                if cause is None or cause is error:
                    raise
                raise cause from error
            self._outages.worked()
            self._give_back(session)

    def _take(self) -> Session:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreUnavailableError("the store is closed")
                session = self._idle.pop() if self._idle else None
            if session is None:
                return connect(self._address)
            if not session.ended:
                return session
            session.close()  # the database was away meanwhile

    def _after_error(self, session: Session, error: BaseException) -> None:
        """Keep a connection that has nothing to do with the error: what was found was refused, not the statement."""
        if isinstance(error, StoreError) and not session.lost:
            if session.in_transaction:
                try:
                    session.execute("ROLLBACK")
                except psycopg.Error:
                    session.close()
                    return
            self._give_back(session)
        else:
            session.close()

    def _give_back(self, session: Session) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    def close(self) -> None:
        """Refuse new reads, wait for current ones, close every connection. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
        for _ in range(READERS):
            self._places.acquire()
        self._places.release(READERS)
