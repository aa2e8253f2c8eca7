"""The pool of PostgreSQL connections for reading and for `claim`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from actors.adapters.store.postgres.engine import Address, PostgresConnection, connect, explained
from actors.adapters.store.sql.reader_pool import ReaderPool
from actors.ports import DatabaseAwayError, StoreError

if TYPE_CHECKING:
    from collections.abc import Generator

    from actors.ports.store.outage_log import OutageLog


class Readers(ReaderPool[PostgresConnection]):
    """A pool of connections, of which any thread may borrow one at a time for a read."""

    def __init__(self, address: Address, outages: OutageLog) -> None:
        super().__init__(PostgresConnection.close)
        self._address = address
        self._outages = outages

    @contextmanager
    def lend(self) -> Generator[PostgresConnection]:
        """Lend a connection for the duration of the `with` block. Raises StoreUnavailableError or StoreDamagedError."""
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

    def _take(self) -> PostgresConnection:
        while (session := self._take_idle()) is not None:
            if not session.ended:
                return session
            session.close()  # the connection was lost while it was in the pool
        return connect(self._address)

    def _after_error(self, session: PostgresConnection, error: BaseException) -> None:
        """Keep the connection if the store refused the request and the connection itself works; else close it."""
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
