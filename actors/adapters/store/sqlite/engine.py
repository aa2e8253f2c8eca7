"""Opens SQLite connections with Bedrock's settings, pools those that read, and brings the tables up to date.

If two copies of the SQLite library use one file in one process, they break each other's locks. All code therefore
imports `sqlite3` from here. It is the module that peewee uses: pysqlite3 if it is installed, else the standard
library's.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import peewee
from peewee import SqliteDatabase

from actors.adapters.store.listing import CONTAINS
from actors.adapters.store.migrations import Migrations
from actors.adapters.store.query import Session
from actors.adapters.store.reads import ReaderPool
from actors.adapters.store.rows import UNREADABLE
from actors.common.machine import out_of_file_descriptors
from actors.ports import StoreDamagedError, StoreError, StoreUnavailableError, StoreUnusableError

if TYPE_CHECKING:
    import sqlite3
else:
    from peewee import sqlite3

__all__ = ["sqlite3"]  # names that others may import although they are not defined here

_log = logging.getLogger(__name__)


FILE = "bedrock.db"  # the name of the database file in the data directory
# The auto_vacuum mode in which a few free pages at a time can be returned to the file system.
#
# The mode can be set only on an empty file.
INCREMENTAL = 2
# Once the write-ahead log has this many pages (32 MiB), SQLite checkpoints it at the end of each commit.
WAL_PAGES = 8_192
# Size of the writing connection's page cache in bytes.
#
# A larger cache made commits no faster, because the operating system caches the file, too.
CACHE_BYTES = 16 << 20
BUSY_SECONDS = 5  # seconds that a connection waits for another connection's lock
_MEBIBYTE = 1 << 20


class SqliteSession(Session):
    """A connection that executes statements."""

    dialect = SqliteDatabase(None)
    refusals = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.connection = raw(database)
        self.run, self.run_many = self.connection.execute, self.connection.executemany

    def close(self) -> None:
        with suppress(sqlite3.Error, peewee.PeeweeException):
            self._database.close()


def contains_folded(text: bytes, folded: str) -> bool:
    """Whether `text` (UTF-8) contains `folded`, ignoring case; `folded` must already be case-folded."""
    return folded in text.decode(errors="replace").casefold()


def wal_reset_race(version: tuple[int, int, int]) -> bool:
    """Whether this version of SQLite can corrupt a database if one connection commits while another checkpoints.

    Bedrock does both on one connection, but other programs that open the file are not safe.
    """
    fixed = {(3, 44): 6, (3, 50): 7}.get(version[:2])
    return version < (3, 51, 3) if fixed is None else version[2] < fixed


def raw(database: SqliteDatabase) -> sqlite3.Connection:
    connection: sqlite3.Connection = database.connection()  # type: ignore[no-untyped-call]
    return connection


def decode_texts(connection: sqlite3.Connection, errors: str) -> None:
    """Make the connection decode invalid UTF-8 with the error handler `errors`."""
    # `str` selects SQLite's own decoder, which is strict and fast.
    connection.text_factory = str if errors == "strict" else lambda text: text.decode(errors=errors)


def open_writer(path: Path) -> SqliteDatabase:
    """Open the only connection that writes and checkpoints, for one thread at a time. Raises StoreUnusableError.

    Every commit is synced to the disk. Only the owner may access the file and SQLite's -wal and -shm files.
    """
    if wal_reset_race(sqlite3.sqlite_version_info):
        _log.warning("SQLite %s has the WAL-reset bug; no other program may open the database", sqlite3.sqlite_version)
    database = SqliteDatabase(
        str(path),
        pragmas={
            "wal_autocheckpoint": WAL_PAGES,  # set first; until then, commits checkpoint at the default of 1,000 pages
            # set only for a new file, because setting it writes to the file, which fails on a full disk
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
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        database.connect()
        if database.journal_mode != "wal":
            raise StoreUnusableError(f"{path}: this file system does not support a write-ahead log")
    except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
        raise StoreUnusableError(f"{path} cannot be opened: {error}") from error
    except UnicodeDecodeError as error:  # SQLite's error message may contain names that are not valid UTF-8
        raise StoreUnusableError(f"{path} cannot be opened: its schema is damaged") from error
    return database


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


class Readers(ReaderPool[SqliteSession]):
    """A pool of read-only connections."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        super().__init__()
        self._path = path
        self._files = files

    def _usable(self, session: SqliteSession | None, texts: str) -> SqliteSession:
        self._files.refuse_if_missing()
        session = session or self._opened()
        decode_texts(session.connection, texts)
        return session

    def _opened(self) -> SqliteSession:
        """Open a connection that never writes, checkpoints or creates a file. Raises what SQLite raises."""
        database = SqliteDatabase(
            f"{self._path.absolute().as_uri()}?mode=rw",
            uri=True,
            pragmas={"query_only": 1, "wal_autocheckpoint": 0},
            timeout=BUSY_SECONDS,
            thread_safe=False,
            check_same_thread=False,
        )
        try:
            database.connect()
        except (sqlite3.OperationalError, peewee.OperationalError):
            if out_of_file_descriptors():  # SQLite's error only says that the file cannot be opened
                raise StoreUnavailableError("the database cannot be opened") from OSError(errno.EMFILE, "no file left")
            raise
        if not self._files.database_is_there:
            database.close()
            raise StoreUnavailableError("the database was removed or replaced")
        raw(database).create_function(CONTAINS, 2, contains_folded, deterministic=True)
        return SqliteSession(database)

    def _explained(self, error: BaseException) -> StoreError | None:
        match error:
            case sqlite3.OperationalError() | peewee.OperationalError() if "decode" not in str(error):
                return StoreUnavailableError(f"the database cannot be read: {error}")
            case _ if isinstance(error, (sqlite3.Error, peewee.DatabaseError, *UNREADABLE)):
                return StoreDamagedError(f"stored data cannot be read: {error}")
            case _:
                return None


# --- the open files ---------------------------------------------------------------------------------------


_WITHOUT_DATABASE = "If it does not come back, stop the server and restore a backup."
_WITHOUT_LOG = "Its contents are moved into the database; restart the server."


Inode = tuple[int, int]  # device number and inode number of a file


def inode_of(descriptor: int) -> Inode:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def inode_at(path: str | Path) -> Inode | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OpenFiles:
    """Checks that the paths of an open database and of its write-ahead log still lead to the open files.

    SQLite keeps using a file that was removed or replaced, and would acknowledge changes that are lost. Inodes are
    therefore compared before and after every transaction, and every second while nothing is written. Call `check` and
    `forget_log` only on the writer's thread; the rest is thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = f"{path}-wal"
        self._database = inode_at(path)
        self._write_ahead_log = inode_at(self._log_path)
        self.missing = ""  # the path of the file that was removed or replaced; "" if all files are in place

    @property
    def database_is_there(self) -> bool:
        return self._database is not None and inode_at(self._path) == self._database

    def check(self) -> None:
        was, self.missing = self.missing, self._find_missing()
        if self.missing and not was:
            _log.critical(
                "%s was removed or replaced while in use; nothing is read or written until it is back. %s",
                self.missing,
                _WITHOUT_DATABASE if self.missing == str(self._path) else _WITHOUT_LOG,
            )
        elif was and not self.missing:
            _log.warning("%s is back; the store resumes reads and writes", was)
        self.refuse_if_missing()

    def refuse_if_missing(self) -> None:
        if self.missing:
            raise StoreUnavailableError(f"{self.missing} was removed or replaced")

    def forget_log(self) -> None:
        """Forget the inode of the write-ahead log. SQLite may create a new log once the connection is closed."""
        self._write_ahead_log = None

    def _find_missing(self) -> str:
        if not self.database_is_there:
            return str(self._path)
        log = inode_at(self._log_path)
        if self._write_ahead_log is None:
            self._write_ahead_log = log
        return "" if log == self._write_ahead_log else self._log_path


# --- migrations -------------------------------------------------------------------------------------------

# A migration is recorded by its name only. A database with a different migration of the same name, or with tables that
# were changed by hand, would fail later, in the middle of a conversation. The tables themselves are therefore compared,
# too.

MIGRATIONS = Path(__file__).with_name("migrations")
_HISTORY = "schema_migration"
_OBJECTS = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"


def schema_of(database: SqliteDatabase, path: Path, directory: Path = MIGRATIONS) -> str:
    """The name of the latest migration; "" if the file is not a Bedrock database.

    Raises StoreUnusableError for a newer version or unexpected tables, and what SQLite raises.
    """
    had = [migration.name for migration in Migrations(database, directory).known(str(path)) if migration.applied]
    if not had:
        return ""
    latest: str = had[-1]
    if wrong := _made_by(latest, directory).items() ^ _objects(raw(database)).items():
        raise StoreUnusableError(
            f"{path} does not match this version: the {min(wrong)[0]} is missing, unexpected or different; "
            "use the version that wrote it, or restore a backup of this version"
        )
    return latest


def migrate(database: SqliteDatabase, directory: Path = MIGRATIONS) -> None:
    """Apply missing migrations, each in its own transaction.

    Raises StoreUnusableError for a newer file, unexpected tables, or a migration that fails.
    """
    try:
        schema_of(database, Path(database.database), directory)
        Migrations(database, directory).up()
    except (sqlite3.Error, peewee.PeeweeException) as error:
        raise StoreUnusableError(f"{database.database} cannot be upgraded: {error}") from error


def _made_by(latest: str, directory: Path) -> dict[str, str]:
    database = SqliteDatabase(":memory:", thread_safe=False)
    try:
        Migrations(database, directory).up(latest)
        return _objects(raw(database))
    finally:
        database.close()


def _objects(connection: sqlite3.Connection) -> dict[str, str]:
    objects: list[tuple[str, str | None]] = connection.execute(_OBJECTS).fetchall()
    return {name: " ".join((sql or "").split()) for name, sql in objects if _HISTORY not in name}
