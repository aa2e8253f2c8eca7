"""The write-ahead log, moved into the database between transactions by the one thread that writes."""

from __future__ import annotations

import logging

import peewee

from actors.store.engine import BUSY_SECONDS, raw, sqlite3
from actors.store.space import Space

_log = logging.getLogger(__name__)

MOVE_EVERY = 1_000
"""Changes between two moves."""
PAGES = 32_768
"""A longer log is cut, waiting for readers if need be."""
CUT_SECONDS = 0.1
"""How long, since everybody who writes waits as well. The next move tries again."""


class WriteAheadLog:
    """Of a database that is written through this connection only. Writer's thread."""

    def __init__(self, database: peewee.SqliteDatabase) -> None:
        self._database = database
        self._since = 0

    def move_if_due(self, written: int) -> None:
        """So many changes have been written since the last call."""
        self._since += written
        if self._since >= MOVE_EVERY and not self._database.is_closed():
            self.move()

    def move(self) -> None:
        """Move it into the database; cut it if it is long."""
        self._since = 0
        try:
            connection = raw(self._database)
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > PAGES:
                _cut(connection)
        except sqlite3.Error as error:
            _log.warning("the write-ahead log could not be moved into the database: %s", error)

    def cut(self, space: Space) -> None:
        """Move it, and give its room back to the file system, if it fits into the database."""
        try:
            connection = raw(self._database)
            if space.log_fits(connection):
                _cut(connection)
        except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
            _log.warning("the write-ahead log could not be cut: %s", error)


def _cut(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {CUT_SECONDS * 1000:.0f}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
