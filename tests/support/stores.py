"""Stores for tests: SQLite in temporary directories, and a PostgreSQL database that several servers share."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, LiteralString
from unittest.mock import patch

import psycopg

from actors.adapters.store.postgres.engine import address_of, migrate
from actors.adapters.store.postgres.store import PostgresStore, open_postgres
from actors.adapters.store.sqlite import store as sqlite_store
from actors.adapters.store.sqlite.data_directory import MARKER
from actors.adapters.store.sqlite.engine import FILE, open_writer, raw

if TYPE_CHECKING:
    from collections.abc import Generator

    from peewee import SqliteDatabase

    from actors.adapters.store.sqlite.store import PeeweeStore

    _Store = PeeweeStore
else:
    _Store = object

ME = 1  # the incarnation of the first server of `with_nodes`

_scopes: list[tuple[ExitStack, Path]] = []


@contextmanager
def closing_stores(directory: Path | None = None) -> Generator[None]:
    """Close what `new_store` opens meanwhile, and remove its files.

    The files are in temporary directories beneath `directory`, by default that of the surrounding call. Each test is in
    such a call; one that opens many stores makes its own.
    """
    with ExitStack() as opened:
        scope = (opened, directory or _scopes[-1][1])
        _scopes.append(scope)
        try:
            yield
        finally:
            _scopes.remove(scope)


def new_store(path: Path | None = None) -> PeeweeStore:
    """Open an SQLite store, which the innermost `closing_stores` closes.

    Without the path of a data directory it is empty. What is written survives the process, but not the machine.
    """
    opened, directory = _scopes[-1]
    with ExitStack() as patched:
        patched.enter_context(patch.object(sqlite_store, "open_writer", _unsynced))
        if path is None:
            path = Path(opened.enter_context(TemporaryDirectory(dir=directory))) / "data"
            path.mkdir(mode=0o700)
            for name, content in _empty_store().items():
                (path / name).write_bytes(content)
            patched.enter_context(patch.object(sqlite_store, "migrate"))
        return opened.enter_context(closing(sqlite_store.open_store(path)))


@cache
def _empty_store() -> dict[str, bytes]:
    """The files of a new store. To write them is a fifth of the work of making and comparing every table again."""
    with TemporaryDirectory() as directory:
        sqlite_store.open_store(Path(directory) / "data").close()
        return {name: (Path(directory) / "data" / name).read_bytes() for name in (FILE, MARKER)}


def _unsynced(path: Path) -> SqliteDatabase:
    database = open_writer(path)
    raw(database).execute("PRAGMA synchronous = OFF")
    return database


class StoreProxy(_Store):
    """A store, by default a new one, of which a test overrides what it is about (ports.Store)."""

    def __init__(self, inner: PeeweeStore | None = None) -> None:
        self.inner = inner or new_store()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def with_nodes(url: str) -> None:
    """Make the tables of a database, and let three servers be there."""
    migrate(address_of(url))
    for number, name in enumerate(("first", "second", "third"), 1):
        _join(url, number, name)


def _join(url: str, incarnation: int, name: str = "") -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO nodes (incarnation, name, address, version, labels, session, lease_seconds, expires)"
            " VALUES (%s, %s, %s, '', '{}', true, 10, 'infinity') ON CONFLICT (incarnation) DO NOTHING",
            (incarnation, name, f"127.0.0.1:{incarnation}"),
        )


class SharedDatabase:
    """A PostgreSQL database made by `with_nodes` that the servers of a test share. Close it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened = ExitStack()
        self.reader = self.node(0)

    def node(self, incarnation: int) -> PostgresStore:
        """Open the database as this server, which has joined."""
        _join(self._url, incarnation)
        return self._opened.enter_context(closing(open_postgres(self._url, incarnation)))

    def kill(self, incarnation: int) -> None:
        """Declare a server dead: others can take over its conversations."""
        self._execute("UPDATE nodes SET dead = true WHERE incarnation = %s", incarnation)

    def release(self, incarnation: int) -> None:
        """Remove a server as the owner of all its conversations, as a server does before it leaves."""
        self._execute("UPDATE conversations SET owner = NULL WHERE owner = %s", incarnation)

    def owner(self, conversation_id: str) -> int | None:
        """Return the living server that owns a conversation; None if there is none."""
        owned = "SELECT owner FROM conversations JOIN nodes ON incarnation = owner AND NOT dead WHERE id = %s"
        with psycopg.connect(self._url) as connection:
            row = connection.execute(owned, (conversation_id,)).fetchone()
        return None if row is None else int(row[0])

    def close(self) -> None:
        self._opened.close()

    def _execute(self, statement: LiteralString, incarnation: int) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute(statement, (incarnation,))
