"""A database connection that is reopened after a loss. Each node has two of them, in addition to those of the store."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from actors.adapters.store.postgres.engine import FITNESS, address_of, database_outages, refuse_unfit, words
from actors.ports import DatabaseAwayError, StoreError, StoreUnavailableError, StoreUnusableError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from actors.ports.store.outage_log import OutageLog

_LIMITS = "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"


class NodeSession:
    """Runs SQL statements on one connection, each in a transaction of its own.

    Safe to call from any thread. One statement runs at a time, and other callers wait.
    """

    def __init__(self, url: str, name: str, *, seconds: float, outages: OutageLog | None = None) -> None:
        """`name` is the application name that the database shows; `seconds` is the time limit of a statement.

        Raises StoreUnusableError if the database URL is invalid.
        """
        self._parameters: dict[str, Any] = dict(address_of(url).parameters)
        self._name = name
        self._seconds = seconds
        self._outages = outages or database_outages()
        self._guard = threading.Lock()  # held during a statement, and while the connection is opened or closed
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._closed = False
        self._opened = 0
        self.direct = True
        """Whether the connection leads to the database itself. Behind a pooler, sessions cannot keep locks."""

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; [] for a statement that returns none.

        Raises StoreUnavailableError if there is no answer; the statement may have been executed nevertheless. Raises
        StoreUnusableError if this database is not suitable.
        """
        with self._turn():
            connection = self._ready()
            try:
                cursor = connection.execute(sql.encode(), values)
                rows = cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if connection.closed or connection.broken:
                    self._drop()
                raise DatabaseAwayError(f"the database does not answer: {words(error)}") from None
            self._outages.worked()
            return rows

    def open(self) -> int:
        """Open a connection if there is none; return how many connections this object has opened so far.

        A changed number means a new database session. Raises the same errors as `rows`.
        """
        with self._turn():
            self._ready()
            return self._opened

    def close(self) -> None:
        """Close the connection for good; idempotent.

        Waits for a running statement, up to its time limit. After that, the thread of the statement closes the
        connection.
        """
        self._closed = True
        with suppress(StoreUnavailableError), self._turn():
            self._drop()

    @contextmanager
    def _turn(self) -> Generator[None]:
        if not self._guard.acquire(timeout=self._seconds):
            self._outages.failed("the database does not answer")
            raise DatabaseAwayError("the database does not answer")
        try:
            yield
        except (DatabaseAwayError, StoreUnusableError) as error:
            self._outages.failed(str(error))
            raise
        finally:
            if self._closed:
                self._drop()
            self._guard.release()

    def _ready(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._closed:
            raise StoreUnavailableError("the session is closed")
        if self._connection is None:
            self._connection = self._connected()
            self._opened += 1
        return self._connection

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        milliseconds = math.ceil(self._seconds * 1000)
        limits: dict[str, Any] = {
            "connect_timeout": max(2, math.ceil(self._seconds)),
            "application_name": self._name,
            "keepalives_idle": max(1, math.ceil(self._seconds)),
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": milliseconds,
        }
        try:
            connection = psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters | limits)
        except psycopg.Error as error:
            raise DatabaseAwayError(f"the database can't be reached: {words(error)}") from None
        try:
            self._greet(connection, str(milliseconds))
        except psycopg.Error as error:
            connection.close()
            raise DatabaseAwayError(f"the database does not answer: {words(error)}") from None
        except StoreError:
            connection.close()
            raise
        return connection

    def _greet(self, connection: psycopg.Connection[tuple[Any, ...]], milliseconds: str) -> None:
        ((process, *fitness),) = connection.execute(f"SELECT pg_backend_pid(), {FITNESS}".encode()).fetchall()
        refuse_unfit(*fitness)
        # A pooler reports a different process id from that of the database process that runs the statement.
        self.direct = connection.info.backend_pid == process
        if self.direct:
            connection.execute(_LIMITS, (milliseconds, milliseconds))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
