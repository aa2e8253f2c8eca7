"""Reserves disk space for operations that free space, and keeps SQLite's write-ahead log short.

A deletion has to be written before it frees any space. On a full disk that write fails, and so do the writes of a
starting server. Therefore the data directory contains a reserve file of some MiB, also while no server runs. The file
is removed when a deletion or a start finds no space, and created again once space was freed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import peewee

from actors.adapters.store.sqlite.engine import BUSY_SECONDS, FILE, WAL_PAGES, raw, sqlite3
from actors.ports import StoreUnusableError

T = TypeVar("T")

_log = logging.getLogger(__name__)

RESERVE = "reserve"  # the name of the reserve file in the data directory
SIZE = 4 * 1024 * 1024
ENOUGH_BYTES = 2 * SIZE  # the free bytes that a server needs to work again after the disk was full
# Bytes that a starting server writes: the index of a write-ahead log of some hundred MiB, and a few small files.
START_BYTES = 1024 * 1024
GIVE_BACK_PAGES = 256  # number of free pages of the database that are returned to the file system in one step


NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
# SQLite's error messages if it cannot extend the index of the write-ahead log; they can have other causes, too.
_MAYBE_FULL = ("disk i/o error", "unable to open database file")


def free_bytes(directory: Path) -> int:
    """Return how many bytes can still be written to the file system of a directory. Raises OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def is_want_of_room(error: BaseException, directory: Path) -> bool:
    """Return whether a full disk caused an error. SQLite often reports a full disk as an I/O error."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, (sqlite3.OperationalError, peewee.OperationalError)):
            if "disk is full" in text:
                return True
            if text in _MAYBE_FULL and free_bytes(directory) < START_BYTES:
                return True
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return True
        cause = cause.__cause__
    return False


def disk_is_full(directory: Path) -> str:
    """Return an error message for users that says that the disk is full and what to do."""
    return f"the disk is full: free at least {ENOUGH_BYTES >> 20} MiB on the file system of {directory}, and try again"


class DiskReserve:
    """Creates and releases the reserve file.

    Used by the thread that writes to the database, except while the store is opened and closed.
    """

    def __init__(self, directory: Path) -> None:
        """Create the object, but not the file (see `make`). This process must have locked the data directory."""
        self._path = directory / RESERVE
        # Whether the reserve file may be missing or incomplete.
        #
        # This is True until `make` has created or found a complete file, and again after `release`.
        self.scarce = True
        self._released = False

    def open_with(self, opening: Callable[[], T]) -> T:
        """Return what `opening` returns. If the disk is full, release the reserve and call `opening` again.

        Raises what `opening` raises, and StoreUnusableError with advice if the disk is still full.
        """
        directory = self._path.parent
        if free_bytes(directory) < START_BYTES:
            self.release()
        try:
            return opening()
        except StoreUnusableError as error:
            if not is_want_of_room(error, directory):
                raise
            if not self._path.exists():
                raise StoreUnusableError(disk_is_full(directory)) from error
        self.release()
        try:
            return opening()
        except StoreUnusableError as error:
            if is_want_of_room(error, directory):
                raise StoreUnusableError(disk_is_full(directory)) from error
            raise

    def make(self) -> None:
        """Create the reserve file, unless a complete one exists or less than twice its size is free.

        If that fails, a warning is logged.
        """
        if not self.scarce:
            return
        try:
            if free_bytes(self._path.parent) >= 2 * SIZE or self._whole():
                self._allocate(SIZE)
                self.scarce = self._released = False
        except OSError as error:
            _log.warning("no room is kept for deletions on a full disk: %s", error.strerror)
            self._path.unlink(missing_ok=True)

    def _whole(self) -> bool:
        return self._path.exists() and self._path.stat().st_size >= SIZE

    def _allocate(self, size: int) -> None:
        made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(made, 0, size)
        finally:
            os.close(made)

    def release(self) -> None:
        """Remove the reserve file, so that its space can be used. Does nothing if there is none."""
        if self._path.exists():
            _log.warning("the disk is full: the room that is kept for deletions and starts is used")
            self._released = True
        self.scarce = True
        self._path.unlink(missing_ok=True)

    def log_fits(self, connection: sqlite3.Connection, *, without: int = 0) -> bool:
        """Return whether the disk has space for a checkpoint of the write-ahead log, which lets the database file grow.

        `without` pages of the growth are not counted, because they are returned to the file system first. A checkpoint
        that fails half-way makes the shortage worse: the database has grown, and the log has not shrunk.
        """
        pages, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        growth = (pages - without) * page_size - (self._path.parent / FILE).stat().st_size
        return bool(growth <= 0 or growth <= free_bytes(self._path.parent) - SIZE // 2)

    def give_back(self, connection: sqlite3.Connection) -> bool:
        """If there is no reserve file, return up to GIVE_BACK_PAGES free pages of the database to the file system.

        Return whether any pages were returned.
        """
        if not self.scarce:
            return False
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if not free or not self.log_fits(connection, without=free):
            return False
        connection.execute(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})").fetchall()
        (left,) = connection.execute("PRAGMA freelist_count").fetchone()
        return bool(left < free)

    def close(self) -> None:
        """If the reserve file was released, create one for the next start, smaller if the disk is nearly full."""
        if not self._released:
            return
        try:
            size = min(SIZE, free_bytes(self._path.parent) // 4096 * 4096)
            if size:
                self._allocate(size)
        except OSError as error:
            _log.warning("no room is kept for the next start: %s", error.strerror)
            self._path.unlink(missing_ok=True)


# --- the write-ahead log ----------------------------------------------------------------------------------

# A checkpoint copies its pages into the database file.

MOVE_EVERY = 1_000  # number of changes between two checkpoints
# Length of the log in pages beyond which a checkpoint also truncates it, waiting for readers if necessary.
PAGES = 32_768
# Maximum seconds that a checkpoint waits for readers before it truncates the log.
#
# The time is short because writers have to wait, too. If it does not suffice, the next checkpoint tries again.
CUT_SECONDS = 0.1


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

    def move_if_due(self, space: DiskReserve) -> None:
        """Checkpoint if MOVE_EVERY changes were written since the last checkpoint and the disk has space for that."""
        if not self.due:
            return
        if _fits(self._database, space):
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
