"""A pool of read-only connections, each used for one read at a time."""

from __future__ import annotations

import errno
import logging
import threading
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import peewee
from msgspec import DecodeError

from actors.adapters.store.sqlite.engine import open_reader, reader_of, sqlite3
from actors.ports import StoreDamagedError, StoreError, StoreUnavailableError
from actors.ports.resources import out_of_file_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from actors.adapters.store.sqlite.files.open_files import OpenFiles

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

READERS = 16
"""Maximum number of connections; further reads wait for one."""


class Readers:
    """Lends connections to any thread; none belongs to a thread, so none leaks when a thread ends."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self._path = path
        self._files = files
        # limits open files; `close` acquires all permits to wait for reads
        self._places = threading.BoundedSemaphore(READERS)
        self._idle: list[peewee.SqliteDatabase] = []
        self._lock = threading.Lock()  # guards _idle and _closed; not held while SQLite opens or reads
        self._closed = False

    @contextmanager
    def lend(self) -> Generator[peewee.SqliteDatabase]:
        """Lend a connection for the duration of the block. Raises StoreUnavailableError or StoreDamagedError."""
        with self._places:
            database = None
            try:
                database = self._take()
                yield database
                reader_of(database).end_reads()
            except BaseException as error:
                if database is not None:
                    database.close()
                explained = _explained(error)
                if explained is None:
                    raise
                raise explained from error
            self._give_back(database)

    def _take(self) -> peewee.SqliteDatabase:
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("the store is closed")
            self._files.refuse_if_missing()
            if self._idle:
                return self._idle.pop()
        try:
            database = open_reader(self._path)
        except (sqlite3.OperationalError, peewee.OperationalError):
            if out_of_file_descriptors():  # SQLite only reports that it cannot open the file
                raise StoreUnavailableError("the database cannot be opened") from OSError(errno.EMFILE, "no file left")
            raise
        if not self._files.database_is_there:
            database.close()
            raise StoreUnavailableError("the database was removed or replaced")
        return database

    def _give_back(self, database: peewee.SqliteDatabase) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(database)
                return
        database.close()

    def close(self) -> None:
        """Refuse new reads, wait for current ones, close every connection. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for database in idle:
            with suppress(sqlite3.Error, peewee.PeeweeException):
                database.close()
        for _ in range(READERS):
            self._places.acquire()
        self._places.release(READERS)


def read_again(read: Callable[P, T]) -> Callable[P, T]:
    """Repeat a read once, on another connection, before its result counts as damaged.

    SQLite reports a page as damaged that the disk failed to deliver; a second attempt often succeeds.
    """

    @wraps(read)
    def reading(*args: P.args, **named: P.kwargs) -> T:
        try:
            return read(*args, **named)
        except StoreDamagedError:
            _log.warning("what was read is damaged; it is read once more")
            return read(*args, **named)

    return reading


def _explained(error: BaseException) -> StoreError | None:
    """Convert an error of SQLite or a decoder to an exception of the port; None for any other error."""
    match error:
        case sqlite3.OperationalError() | peewee.OperationalError() if "decode" not in str(error):
            return StoreUnavailableError(f"the database cannot be read: {error}")
        case sqlite3.Error() | peewee.DatabaseError() | DecodeError() | ValueError() | KeyError():
            return StoreDamagedError(f"what is stored cannot be read: {error}")
        case _:
            return None
