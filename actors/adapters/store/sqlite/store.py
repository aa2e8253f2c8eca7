"""The store on one SQLite file: what differs from PostgreSQL, and how it is opened and closed.

The writer's own thread checkpoints the write-ahead log between transactions; under heavy load SQLite itself checkpoints
at the end of a commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import peewee
from peewee import SqliteDatabase

from actors.adapters.store import store
from actors.adapters.store.query import Session
from actors.adapters.store.reads import Found
from actors.adapters.store.removal import abandon_of_the_dead
from actors.adapters.store.sqlite.data_directory import DataDirectory, DiskReserve
from actors.adapters.store.sqlite.engine import (
    BUSY_SECONDS,
    FILE,
    INCREMENTAL,
    WAL_PAGES,
    OpenFiles,
    Readers,
    SqliteSession,
    migrate,
    open_writer,
    raw,
    sqlite3,
)
from actors.adapters.store.store import SqlStore, Ticket, Writer, refusal
from actors.ports import ConversationRecord, FaultPoints, NoFaultPoints, StoreDamagedError, StoreUnavailableError

_log = logging.getLogger(__name__)

TIDY_AGAIN_SECONDS = 5.0  # seconds before background work is retried after a failure
WATCH_SECONDS = 1.0  # seconds between two checks of the open files while nothing is written


# --- the write-ahead log ----------------------------------------------------------------------------------

# A checkpoint copies the log's pages into the database file.

# Length of the log in pages beyond which a checkpoint also truncates it, waiting for readers if necessary.
PAGES = 32_768
# Maximum seconds that a checkpoint waits for readers so that it can truncate the log.
#
# The time is short because writers have to wait, too. If it is not enough, the next checkpoint tries again.
CUT_SECONDS = 0.1


class WriteAheadLog:
    """The log of the only writing connection, which `close` closes. Call methods only while holding the write lock."""

    def __init__(self, database: peewee.SqliteDatabase, space: DiskReserve) -> None:
        self._database = database
        self._space = space
        self._since = 0

    def count(self, written: int) -> None:
        self._since += written

    def move_if_due(self) -> None:
        if self._since >= store.WORK_EVERY and not self._database.is_closed():
            if self._fits():
                self.move()
            self._since = 0

    def move(self) -> None:
        self._since = 0
        try:
            connection = raw(self._database)
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > PAGES:
                _cut(connection)
        except sqlite3.Error as error:
            _log.warning("cannot checkpoint the write-ahead log: %s", error)

    def cut(self) -> None:
        """Checkpoint and truncate the write-ahead log; errors go to the server's log.

        If the disk is full, only turn off SQLite's automatic checkpoints, until a later call finds space.
        """
        try:
            connection = raw(self._database)
            fits = self._space.log_fits(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if fits else 0}").fetchall()
            if fits:
                _cut(connection)
        except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
            _log.warning("cannot truncate the write-ahead log: %s", error)

    def close(self) -> None:
        """Close the last connection, so that SQLite checkpoints and removes the log; keep the log on a full disk."""
        if self._database.is_closed():
            return
        if self._fits():
            self._database.close()
            return
        _log.warning("the disk is full; keeping the write-ahead log next to the database until the next start")
        # SQLite checkpoints when the last connection is closed, unless that connection is read-only.
        try:
            address = f"{Path(self._database.database).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True)) as last:
                last.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                self._database.close()
        finally:
            self._database.close()

    def _fits(self) -> bool:
        try:
            return self._space.log_fits(raw(self._database))
        except (OSError, sqlite3.Error, peewee.PeeweeException):
            return True


def _cut(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {CUT_SECONDS * 1000:.0f}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")


# --- the store ------------------------------------------------------------------------------------------------


class SqliteWriter(Writer):
    _begin = "BEGIN IMMEDIATE"

    def __init__(  # noqa: PLR0917 -- the objects that `open_store` opens
        self,
        directory: DataDirectory,
        database: peewee.SqliteDatabase,
        files: OpenFiles,
        space: DiskReserve,
        log: WriteAheadLog,
        faults: FaultPoints,
        written: Callable[[int, float], None] | None,
    ) -> None:
        """Start the writer's thread. `written` is called after each batch; see Writer."""
        super().__init__(faults, written, longest_wait=WATCH_SECONDS)
        self.directory = directory
        self._database = database
        self._files = files
        self._space = space
        self._tidying = True  # at first, because an earlier process may not have finished a removal
        self._tidy_again_at = 0.0
        self._log = log
        self._watched_at = time.monotonic()
        self._thread.start()

    def _between(self, batch: int) -> None:
        self._log.count(batch)
        if self._tidying and self._tidy(batch) and self._space.scarce:
            self._log.cut()
        self._log.move_if_due()
        self._watch_if_due()

    def _remove_slice(self, session: Session) -> bool:
        self._log.count(1)
        return super()._remove_slice(session) or self._space.give_back(raw(self._database))

    def _not_removed(self, error: Exception) -> None:
        _log.warning("cannot purge deleted rows; will try again: %s", error)
        self._rollback()
        self._make_room()
        self._tidy_again_at = time.monotonic() + TIDY_AGAIN_SECONDS

    def _watch_if_due(self) -> None:
        now = time.monotonic()
        if now - self._watched_at >= WATCH_SECONDS:
            self._watched_at = now
            if 0 < self._tidy_again_at <= now:
                self._tidying, self._tidy_again_at = True, 0.0
            self.directory.check_lock_file()
            self._space.make()
            with suppress(StoreUnavailableError):
                self._check_files()

    def _check_files(self) -> None:
        """Raise StoreUnavailableError if the database or its log was removed or replaced.

        If only the log was removed, it is checkpointed first; otherwise its content would be lost.
        """
        try:
            self._files.check()
        except StoreUnavailableError:
            if self._files.database_is_there and not self._database.is_closed():
                self._log.move()
            raise

    def _ready(self) -> SqliteSession:
        self._check_files()
        return SqliteSession(self._database)

    def _committed(self) -> None:
        self._check_files()

    def _refused(self, error: Exception) -> Exception | None:
        if isinstance(error, sqlite3.IntegrityError):
            return refusal(str(error))
        # The disk failed, not the change; SQLite may have rolled the transaction back.
        return None if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError) else error

    def _failed(self, batch: list[Ticket], error: BaseException) -> str:
        self._rollback()
        if isinstance(error, sqlite3.OperationalError):
            self._serve_from_reserve(batch)
        if lost := sum(ticket.lost for ticket in batch):
            _log.error("%d changes were not written: %s", lost, error)
        return f"nothing was written: {error}"

    def _serve_from_reserve(self, batch: list[Ticket]) -> None:
        """Release the disk space reserve, and try again to write the changes in `batch` that free space."""
        freeing = [ticket for ticket in batch if ticket.error is None and ticket.frees]
        if not freeing:
            return
        self._make_room()
        try:
            self._transact(freeing)
        except Exception:  # noqa: BLE001 -- the callers get the error of the first attempt
            self._rollback()

    def _make_room(self) -> None:
        self._space.release()
        self._log.cut()

    def _rollback(self) -> None:
        """Roll back the transaction if one is open. If SQLite has already ended it, a rollback would raise."""
        try:
            connection = raw(self._database)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, peewee.PeeweeException):
            _log.exception("the rollback failed; closing the connection, and the next change opens a new one")
            self._database.close()
            self._files.forget_log()


class PeeweeStore(SqlStore):
    """Implements ports.Store on one SQLite file. Thread-safe. Open a store with `open_store`."""

    _writer: SqliteWriter
    sqlite_version = sqlite3.sqlite_version

    def _read(self, body: Callable[[Session], Found], *, at_one_moment: bool = False, texts: str = "strict") -> Found:
        try:
            return super()._read(body, at_one_moment=at_one_moment, texts=texts)
        except StoreDamagedError:  # SQLite also reports damage if the disk failed to read a page just once
            _log.warning("read corrupt data; reading again")
            return super()._read(body, at_one_moment=at_one_moment, texts=texts)

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        return self.load(conversation_id)

    def _database_bytes(self) -> int:
        pages, free, size = self._pragmas("page_count", "freelist_count", "page_size")
        return (pages - free) * size

    def _pragmas(self, *names: str) -> list[int]:
        return self._read(lambda session: [int(session.run(f"PRAGMA {name}").fetchone()[0]) for name in names])

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        free, page_size, mode = self._pragmas("freelist_count", "page_size", "auto_vacuum")
        pages = min(max_bytes, free * page_size - spare_bytes) // page_size
        if mode != INCREMENTAL or pages <= 0:
            return False
        self._writer.write(lambda session: session.run(f"PRAGMA incremental_vacuum({pages:d})").fetchall())
        return True

    def mark_moved(self, where: str) -> None:
        """Make every later attempt to open this database fail, because its content is now in the database `where`."""
        self._writer.directory.mark_moved(where)


def open_store(
    path: Path, faults: FaultPoints | None = None, *, written: Callable[[int, float], None] | None = None
) -> PeeweeStore:
    """Open or create the store in the data directory `path`, locked until `close`.

    The writing thread hits the fault points store.before_begin, store.before_commit and store.after_commit. After each
    batch, it calls `written(changes, seconds)` with the number of changes and how long writing them took. Raises
    DataDirectoryBusyError or StoreUnusableError.
    """
    with ExitStack() as opened:
        directory = DataDirectory(path)
        opened.callback(directory.close)
        directory.expect(path / FILE)
        space = DiskReserve(path)
        opened.callback(space.close)
        database, log = space.open_with(lambda: _open_database(directory, space))
        files = OpenFiles(path / FILE)
        opened.callback(_close_database, log, files)
        abandon_of_the_dead(SqliteSession(database))
        space.make()
        if space.scarce:
            log.cut()
        readers = Readers(path / FILE, files)
        opened.callback(readers.close)
        writer = SqliteWriter(directory, database, files, space, log, faults or NoFaultPoints(), written)
        opened.callback(writer.close)
        return PeeweeStore(writer, readers, opened.pop_all())


def _open_database(directory: DataDirectory, space: DiskReserve) -> tuple[SqliteDatabase, WriteAheadLog]:
    """Open the database, apply migrations, and record that the directory has a database. Raises StoreUnusableError."""
    database = open_writer(directory.path / FILE)
    log = WriteAheadLog(database, space)
    try:
        migrate(database)
        directory.mark()
    except BaseException:
        log.close()
        raise
    return database, log


def _close_database(log: WriteAheadLog, files: OpenFiles) -> None:
    """Close the last connection, unless the database's path now leads to another file.

    When the last connection closes, SQLite removes the file at the log's path, which may by now be another database's
    log. In that case, the connection stays open until the process exits.
    """
    if files.database_is_there:
        log.close()
