"""A database connection that is reopened after a loss. Each node has two of them, in addition to the store's."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from actors.adapters.store.postgres.engine import FITNESS, address_of, database_outages, opened, unfitness, words
from actors.common.machine import OutageLog
from actors.ports import DatabaseAwayError, StoreUnavailableError, StoreUnusableError

_LIMITS = "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"


class NodeSession:
    """Runs SQL statements on one connection, each in its own transaction, one at a time. Thread-safe."""

    def __init__(self, url: str, name: str, *, seconds: float, outages: OutageLog | None = None) -> None:
        """The database shows `name`; a statement may take `seconds`. Raises StoreUnusableError for an invalid URL."""
        self._address = address_of(url)
        self._name = name
        self._seconds = seconds
        self._milliseconds = str(math.ceil(seconds * 1000))
        self._outages = outages or database_outages()
        self._guard = threading.Lock()  # held during a statement, and while the connection is opened or closed
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._closed = False
        self._opened = 0
        # Whether the connection leads to the database itself, not to a pooler, behind which sessions cannot keep locks.
        self.direct = True

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement; [] if it returns no rows.

        Raises StoreUnavailableError if there is no answer (the statement may still have been executed), or
        StoreUnusableError if the database is not suitable.
        """
        with self._exclusive():
            connection = self._ready()
            try:
                cursor = connection.execute(sql.encode(), values)
                rows = cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if connection.closed or connection.broken:
                    self._drop()
                raise DatabaseAwayError(f"the database does not respond: {words(error)}") from None
            self._outages.worked()
            return rows

    def open(self) -> int:
        """Open a connection if there is none; return how many have been opened so far. Raises what `rows` raises."""
        with self._exclusive():
            self._ready()
            return self._opened

    def close(self) -> None:
        """Close the connection. Idempotent.

        Waits for a running statement; if it exceeds its time limit, the thread that runs it closes the connection.
        """
        self._closed = True
        with suppress(StoreUnavailableError), self._exclusive():
            self._drop()

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        if not self._guard.acquire(timeout=self._seconds):
            self._outages.failed("the database does not respond")
            raise DatabaseAwayError("the database does not respond")
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
        limits: dict[str, Any] = {
            "connect_timeout": max(2, math.ceil(self._seconds)),
            "application_name": self._name,
            "keepalives_idle": max(1, math.ceil(self._seconds)),
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": self._milliseconds,
        }
        try:
            return opened(self._address, self._greet, prepare_threshold=None, **limits)
        except psycopg.Error as error:
            raise DatabaseAwayError(f"the database cannot be reached: {words(error)}") from None

    def _greet(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        ((process, *fitness),) = connection.execute(f"SELECT pg_backend_pid(), {FITNESS}".encode()).fetchall()
        if error := unfitness(*fitness):
            raise error
        # With a pooler, the two ids differ: it does not report the id of the database process that runs the statement.
        self.direct = connection.info.backend_pid == process
        if self.direct:
            connection.execute(_LIMITS, (self._milliseconds, self._milliseconds))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


# --- documents that all servers share -----------------------------------------------------------------------


SECONDS = 5.0  # time limit of a statement in seconds
_READ = "SELECT version, content FROM documents WHERE name = %(name)s"
_REPLACE = """
INSERT INTO documents (name, version, content) VALUES (%(name)s, 1, %(content)s)
ON CONFLICT (name) DO UPDATE SET version = documents.version + 1, content = excluded.content
WHERE documents.version = %(version)s RETURNING version
"""


class Document:
    """A document in the database, accessed over its own connection. Thread-safe.

    `read` and `update` block, and raise StoreUnavailableError or StoreUnusableError.
    """

    def __init__(self, url: str, name: str) -> None:
        # The name of the document and the database URL without the password, for messages.
        self.location = f"{name} in {address_of(url).redacted}"
        self._name = name
        self._session = NodeSession(url, "bedrock documents", seconds=SECONDS)

    def read(self) -> bytes | None:
        return self._found()[1]

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content with `change(content)`.

        `change` gets None if there is no content, and may return None to keep it. It is called again with the new
        content if another program replaces the content meanwhile.
        """
        while True:
            version, before = self._found()
            content = change(before)
            if content is None:
                return
            values = {"name": self._name, "version": version, "content": content}
            if self._session.rows(_REPLACE, values):
                return

    def _found(self) -> tuple[int, bytes | None]:
        for version, content in self._session.rows(_READ, {"name": self._name}):
            return int(version), bytes(content)
        return 0, None

    def close(self) -> None:
        self._session.close()
