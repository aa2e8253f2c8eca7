"""Checkpoints SQLite's write-ahead log: copies its pages into the database file, and truncates a long log."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import peewee

from actors.adapters.store.sqlite.engine import BUSY_SECONDS, WAL_PAGES, raw, sqlite3

if TYPE_CHECKING:
    from actors.adapters.store.sqlite.files.disk_reserve import DiskReserve

_log = logging.getLogger(__name__)

MOVE_EVERY = 1_000
"""Number of changes between two checkpoints."""
PAGES = 32_768
"""Length of the log in pages beyond which a checkpoint also truncates it, waiting for readers if necessary."""
CUT_SECONDS = 0.1
"""Maximum seconds that a checkpoint waits for readers before it truncates the log.

The time is short because writers have to wait, too. If it does not suffice, the next checkpoint tries again.
"""


class WriteAheadLog:
    """The write-ahead log of a database with one writing connection.

    Used only by the thread that currently holds the write lock, and while the store is opened.
    """

    def __init__(self, database: peewee.SqliteDatabase) -> None:
        self._database = database
        self._since = 0

    def count(self, written: int) -> None:
        """Add `written` to the number of changes since the last checkpoint."""
        self._since += written

    @property
    def due(self) -> bool:
        """Whether MOVE_EVERY changes were written since the last checkpoint."""
        return self._since >= MOVE_EVERY and not self._database.is_closed()

    def move_if_due(self, space: DiskReserve | None = None) -> None:
        """Checkpoint if MOVE_EVERY changes were written since the last checkpoint and the disk has space for that."""
        if not self.due:
            return
        if space is None or _fits(self._database, space):
            self.move()
        self._since = 0

    def move(self) -> None:
        """Checkpoint the log into the database; truncate it if it is long. Errors are logged, not raised."""
        self._since = 0
        try:
            connection = raw(self._database)
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > PAGES:
                _cut(connection)
        except sqlite3.Error as error:
            _log.warning("the write-ahead log could not be moved into the database: %s", error)

    def cut(self, space: DiskReserve) -> None:
        """Checkpoint and truncate the log if the disk has space for that. Errors are logged, not raised.

        Without space, only turn SQLite's automatic checkpoints off; the next call that finds space turns them on again.
        """
        try:
            connection = raw(self._database)
            fits = space.log_fits(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if fits else 0}").fetchall()
            if fits:
                _cut(connection)
        except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
            _log.warning("the write-ahead log could not be cut: %s", error)


def close_database(database: peewee.SqliteDatabase, space: DiskReserve) -> None:
    """Close the last connection to the database; SQLite then checkpoints and removes the write-ahead log.

    If the disk has no space for that, the log stays for the next start, as after a crash.
    """
    if database.is_closed():
        return
    if _fits(database, space):
        database.close()
    else:
        _log.warning("the disk is full: the write-ahead log stays beside the database until the next start")
        _close_leaving_log(database)


def _close_leaving_log(database: peewee.SqliteDatabase) -> None:
    """Close the connection without a checkpoint of the log.

    SQLite checkpoints when the last connection to a database is closed, unless this connection is read-only. So a
    read-only connection is opened here and closed last.
    """
    try:
        address = f"{Path(database.database).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as last:
            last.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            database.close()
    finally:
        database.close()


def _fits(database: peewee.SqliteDatabase, space: DiskReserve) -> bool:
    """Return whether the disk has space to checkpoint the log; True if that cannot be determined."""
    try:
        return space.log_fits(raw(database))
    except (OSError, sqlite3.Error, peewee.PeeweeException):
        return True


def _cut(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {CUT_SECONDS * 1000:.0f}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
