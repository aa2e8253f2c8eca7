"""The pool of read-only SQLite connections."""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import peewee
from msgspec import DecodeError

from actors.adapters.store.sql.reader_pool import ReaderPool
from actors.adapters.store.sqlite.engine import open_reader, reader_of, sqlite3
from actors.ports import StoreDamagedError, StoreError, StoreUnavailableError
from actors.ports.machine.resources import out_of_file_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from actors.adapters.store.sqlite.files.open_files import OpenFiles

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Readers(ReaderPool[peewee.SqliteDatabase]):
    """A pool of read-only connections; any thread may borrow a connection for a read."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        super().__init__(_close)
        self._path = path
        self._files = files

    @contextmanager
    def lend(self) -> Generator[peewee.SqliteDatabase]:
        """Lend a connection for the duration of the `with` block. Raises StoreUnavailableError or StoreDamagedError."""
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
        self._files.refuse_if_missing()
        if (idle := self._take_idle()) is not None:
            return idle
        try:
            database = open_reader(self._path)
        except (sqlite3.OperationalError, peewee.OperationalError):
            if out_of_file_descriptors():  # SQLite's error only says that the file cannot be opened
                raise StoreUnavailableError("the database cannot be opened") from OSError(errno.EMFILE, "no file left")
            raise
        if not self._files.database_is_there:
            database.close()
            raise StoreUnavailableError("the database was removed or replaced")
        return database


def _close(database: peewee.SqliteDatabase) -> None:
    with suppress(sqlite3.Error, peewee.PeeweeException):
        database.close()


def read_again(read: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls `read`, and calls it a second time if it raises StoreDamagedError.

    SQLite also reports a page as damaged if the disk failed to deliver it; then a second attempt often succeeds.
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
    """Convert an error of SQLite or of a decoder to an exception of the store port; None for any other error."""
    match error:
        case sqlite3.OperationalError() | peewee.OperationalError() if "decode" not in str(error):
            return StoreUnavailableError(f"the database cannot be read: {error}")
        case sqlite3.Error() | peewee.DatabaseError() | DecodeError() | ValueError() | KeyError():
            return StoreDamagedError(f"what is stored cannot be read: {error}")
        case _:
            return None
