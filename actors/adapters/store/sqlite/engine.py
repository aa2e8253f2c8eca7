"""The process's one SQLite module, and the settings of Bedrock's connections.

Two copies of SQLite that use one file in one process break its locks. So all code imports `sqlite3` from here: it is
the module that peewee has chosen, the newer of the standard library's and pysqlite3.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import peewee
from peewee import SqliteDatabase

from actors.adapters.store.sqlite.sqlite_dialect import CONTAINS, contains_folded
from actors.ports import StoreUnusableError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator
    from pathlib import Path
else:
    from peewee import sqlite3

__all__ = [
    "BUSY_SECONDS",
    "FILE",
    "INCREMENTAL",
    "every_text",
    "open_reader",
    "open_writer",
    "raw",
    "reader_of",
    "sqlite3",
    "wal_reset_race",
]

_log = logging.getLogger(__name__)

FILE = "bedrock.db"
"""The name of the database inside the data directory."""
INCREMENTAL = 2
"""The auto_vacuum mode that allows returning free pages a few at a time. Can be set only on an empty file."""
WAL_PAGES = 8_192
"""Pages in the write-ahead log (32 MiB) at which SQLite checkpoints automatically at a commit."""
CACHE_BYTES = 16 << 20
"""The page cache of the writer. A larger one made commits no faster: the operating system caches the file, too."""
BUSY_SECONDS = 5
"""Seconds that a connection waits for the lock of another one."""
_MEBIBYTE = 1 << 20


def wal_reset_race(version: tuple[int, int, int]) -> bool:
    """Return whether this SQLite can corrupt a database when one connection commits while another checkpoints.

    Bedrock has a single connection that commits and checkpoints, so it is safe with any version; other programs that
    open the file are not.
    """
    fixed = {(3, 44): 6, (3, 50): 7}.get(version[:2])
    return version < (3, 51, 3) if fixed is None else version[2] < fixed


def raw(database: SqliteDatabase) -> sqlite3.Connection:
    """Return peewee's underlying connection, for fixed SQL; opens it if it is closed."""
    connection: sqlite3.Connection = database.connection()  # type: ignore[no-untyped-call]
    return connection


@contextmanager
def every_text(connection: sqlite3.Connection, errors: str = "replace") -> Generator[None]:
    """Within the block, decode texts that are not valid UTF-8 by the error handler `errors` instead of raising."""
    connection.text_factory = lambda raw: raw.decode(errors=errors)
    try:
        yield
    finally:
        connection.text_factory = str


def open_writer(path: Path) -> SqliteDatabase:
    """Open the only connection that writes and checkpoints; it may move between threads, one at a time.

    Every commit is synced to the disk. Only the owner may access the file, and the -wal and -shm files of SQLite.
    Raises StoreUnusableError.
    """
    if wal_reset_race(sqlite3.sqlite_version_info):
        _log.warning("SQLite %s has the WAL-reset race; nothing else may open the database", sqlite3.sqlite_version)
    database = SqliteDatabase(
        str(path),
        pragmas={
            "wal_autocheckpoint": WAL_PAGES,  # set first, because the default is 1,000
            # setting it writes to the file, which fails on a full disk
            **({} if _has_content(path) else {"auto_vacuum": INCREMENTAL}),
            "journal_mode": "wal",
            "synchronous": "full",
            "foreign_keys": 1,
            "journal_size_limit": 64 * _MEBIBYTE,
            "cache_size": -CACHE_BYTES // 1024,
        },
        timeout=BUSY_SECONDS,
        thread_safe=False,
        check_same_thread=False,
    )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        database.connect()
        if database.journal_mode != "wal":
            raise StoreUnusableError(f"{path}: this file system cannot hold a write-ahead log")
    except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
        raise StoreUnusableError(f"{path} cannot be opened: {error}") from error
    except UnicodeDecodeError as error:  # SQLite's error message may contain invalid names of the schema
        raise StoreUnusableError(f"{path} cannot be opened: its schema is damaged") from error
    return database


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


class Reader(sqlite3.Connection):
    """A connection that tracks its cursors, because an open cursor would keep the connection at an old snapshot."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._cursors: list[sqlite3.Cursor] = []

    def cursor(self, *args: Any) -> sqlite3.Cursor:  # type: ignore[override]
        """Return a new cursor; `execute` gets its cursors from here as well."""
        made: sqlite3.Cursor = super().cursor(*args)
        self._cursors.append(made)
        return made

    def end_reads(self) -> None:
        """Close every cursor, so that the next read sees the current data."""
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()


def reader_of(database: SqliteDatabase) -> Reader:
    """Return the connection of a database that `open_reader` opened."""
    connection: Reader = database.connection()  # type: ignore[no-untyped-call]
    return connection


def open_reader(path: Path) -> SqliteDatabase:
    """Open a connection that cannot write, never checkpoints, and creates no file. Raises what SQLite raises."""
    database = SqliteDatabase(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        factory=Reader,
        pragmas={"query_only": 1, "wal_autocheckpoint": 0},
        timeout=BUSY_SECONDS,
        thread_safe=False,
        check_same_thread=False,
    )
    database.connect()
    raw(database).create_function(CONTAINS, 2, contains_folded, deterministic=True)
    return database
