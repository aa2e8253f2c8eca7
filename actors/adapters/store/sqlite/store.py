"""The store on one SQLite file: what differs from PostgreSQL, and how it is opened and closed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from actors.adapters.store import models
from actors.adapters.store.query import Session, Statement, undeleted
from actors.adapters.store.removal import abandon_all, remove_slice
from actors.adapters.store.sqlite.engine import (
    FILE,
    INCREMENTAL,
    Readers,
    SqliteSession,
    every_text,
    open_writer,
    raw,
    read_again,
    sqlite3,
)
from actors.adapters.store.sqlite.files.data_directory import DataDirectory
from actors.adapters.store.sqlite.files.disk_reserve import DiskReserve
from actors.adapters.store.sqlite.files.open_files import OpenFiles
from actors.adapters.store.sqlite.files.write_ahead_log import WriteAheadLog, close_database
from actors.adapters.store.sqlite.schema.version import migrate
from actors.adapters.store.sqlite.writer import SqliteWriter
from actors.adapters.store.store import SqlStore
from actors.ports import Clock, FaultPoints, NoFaultPoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from peewee import SqliteDatabase

    from actors.ports import ConversationRecord

Found = TypeVar("Found")

_UNSETTLED = Statement(
    models.Conversation.select(models.Conversation.id).where(models.IS_UNSETTLED, undeleted(models.Conversation.id))
)


class Compaction:
    """A change that gives free pages of the database file back to the file system."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    def apply(self, session: Session) -> None:
        """Give at most `pages` free pages back to the file system.

        Do nothing if the file was created without SQLite's mode for incremental vacuum.
        """
        session.run(f"PRAGMA incremental_vacuum({self._pages:d})").fetchall()


class PeeweeStore(SqlStore[SqliteWriter]):
    """Implements ports.Store on one SQLite file. Safe to call from any thread. Open a store with `open_store`."""

    def __init__(
        self,
        directory: DataDirectory,
        database: SqliteDatabase,
        writer: SqliteWriter,
        readers: Readers,
        *,
        files: OpenFiles,
        space: DiskReserve,
        clock: Clock | None,
    ) -> None:
        closing = (directory.close, space.close, self._close_database, readers.close, writer.close)
        super().__init__(self._read_pooled, writer, clock, closing)
        self._directory = directory
        self._database = database
        self._space = space
        self._files = files
        self._readers = readers

    @read_again
    def _read_pooled(
        self, body: Callable[[Session], Found], *, at_one_moment: bool = False, texts: str = "strict"
    ) -> Found:
        with self._readers.lend() as database, every_text(raw(database), texts):
            session = SqliteSession(raw(database))
            if not at_one_moment:
                return body(session)
            session.run("BEGIN")
            found = body(session)
            session.run("COMMIT")
            return found

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is no such conversation; see ports.Store.

        Nothing has to be claimed, because with SQLite this process owns all conversations.
        """
        return self.load(conversation_id)

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of the conversations that must be recovered on start; see ports.Store."""
        return self._column(_UNSETTLED)

    def stored_bytes(self, principal: str) -> int:
        """Return the bytes that a principal has stored; see ports.Store.

        For "", return the size of the database file without its free pages.
        """
        if principal:
            return self._stored_bytes_of(principal)
        pages, free, size = self._pragmas("page_count", "freelist_count", "page_size")
        return (pages - free) * size

    def _pragmas(self, *names: str) -> list[int]:
        return self._read(lambda session: [int(session.run(f"PRAGMA {name}").fetchone()[0]) for name in names])

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Shrink the file by at most `max_bytes`, keeping `spare_bytes` of free space in it; see ports.Store.

        Return whether the file was shrunk.
        """
        free, page_size, mode = self._pragmas("freelist_count", "page_size", "auto_vacuum")
        pages = min(max_bytes, free * page_size - spare_bytes) // page_size
        if mode != INCREMENTAL or pages <= 0:
            return False
        self._writer.write(Compaction(pages))
        return True

    # --- lifetime ---------------------------------------------------------------------------------------------

    @property
    def engine_version(self) -> str:
        """The version of SQLite, such as "3.45.1"; see ports.Store."""
        return sqlite3.sqlite_version

    def mark_moved(self, where: str) -> None:
        """Make every later attempt to open this database fail, because its content was moved to the database `where`.

        Raises StoreUnusableError.
        """
        self._directory.mark_moved(where)

    def _close_database(self) -> None:
        """Close the last connection, unless the database's path now leads to another file.

        On closing, SQLite checkpoints the write-ahead log and removes the file at the log's path. If the database was
        replaced, this file may be the log of the new database, so the connection stays open until the process exits.
        """
        if self._files.database_is_there:
            close_database(self._database, self._space)


def open_store(
    path: Path,
    faults: FaultPoints | None = None,
    clock: Clock | None = None,
    *,
    written: Callable[[int, float], None] | None = None,
) -> PeeweeStore:
    """Open or create the store in the data directory `path`, which this process keeps locked until `close`.

    The thread that writes to the database hits the fault points (hooks by which tests inject failures)
    store.before_begin, store.before_savepoint (once per change), store.before_commit and store.after_commit of
    `faults`. It also calls `written` after each batch, with the number of changes and the seconds it took. Raises
    DataDirectoryBusyError or StoreUnusableError.
    """
    with ExitStack() as opened:
        directory = DataDirectory(path)
        opened.callback(directory.close)
        directory.expect(path / FILE)
        space = DiskReserve(path)
        opened.callback(space.close)
        database = space.open_with(lambda: _open_database(directory, space))
        opened.callback(close_database, database, space)
        files = OpenFiles(path / FILE)
        abandon_all(SqliteSession(raw(database)))
        space.make()
        if space.scarce:
            WriteAheadLog(database).cut(space)

        def every_second() -> None:
            directory.check_lock_file()
            space.make()

        def tidy(session: Session) -> bool:
            return remove_slice(session) or space.give_back(raw(database))

        writer = SqliteWriter(
            database,
            faults or NoFaultPoints(),
            files,
            every_second=every_second,
            tidy=tidy,
            space=space,
            written=written,
        )
        readers = Readers(path / FILE, files)
        store = PeeweeStore(directory, database, writer, readers, files=files, space=space, clock=clock)
        opened.pop_all()
        writer.tidy()  # the removal that an earlier process did not finish
    return store


def _open_database(directory: DataDirectory, space: DiskReserve) -> SqliteDatabase:
    """Open the database, apply migrations, and record that the directory has a database. Raises StoreUnusableError."""
    with ExitStack() as opened:
        database = open_writer(directory.path / FILE)
        opened.callback(close_database, database, space)
        migrate(database)
        directory.mark()
        opened.pop_all()
    return database
