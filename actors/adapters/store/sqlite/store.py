"""The SQLite store: its writing methods, and how it is opened and closed."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from actors.adapters.store.pruning import place_after
from actors.adapters.store.sql.commit_rows import copied_pieces, is_prepared
from actors.adapters.store.sql.stored_writes import StoreWrites
from actors.adapters.store.sqlite import changes
from actors.adapters.store.sqlite.engine import FILE, INCREMENTAL, open_writer, raw, sqlite3
from actors.adapters.store.sqlite.files.data_directory import DataDirectory
from actors.adapters.store.sqlite.files.disk_reserve import DiskReserve
from actors.adapters.store.sqlite.files.open_files import OpenFiles
from actors.adapters.store.sqlite.files.write_ahead_log import WriteAheadLog, close_database
from actors.adapters.store.sqlite.readers import Readers
from actors.adapters.store.sqlite.reads import SqliteReads
from actors.adapters.store.sqlite.removal import Removal
from actors.adapters.store.sqlite.schema.version import migrate
from actors.adapters.store.sqlite.writer import Writer
from actors.ports import (
    Attachment,
    Clock,
    Commit,
    FaultPoints,
    NoFaultPoints,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from peewee import SqliteDatabase

    from actors.ports.store.audit import AuditEntry


class PeeweeStore(SqliteReads, StoreWrites[Writer]):
    """Implements ports.Store on one SQLite file. Safe to call from any thread. Open a store with `open_store`."""

    def __init__(
        self,
        directory: DataDirectory,
        database: SqliteDatabase,
        writer: Writer,
        readers: Readers,
        *,
        files: OpenFiles,
        removal: Removal,
        space: DiskReserve,
        clock: Clock | None,
    ) -> None:
        SqliteReads.__init__(self, readers, removal)
        closing = ExitStack()
        StoreWrites.__init__(self, writer, clock, closing)
        self._directory = directory
        self._database = database
        self._space = space
        self._files = files
        for close in (directory.close, space.close, self._close_database, readers.close, writer.close):
            closing.callback(close)

    # --- writing ----------------------------------------------------------------------------------------------

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write the commits atomically and durably; see ports.Store."""
        transition, prepared = changes.Transition(parts), [part for part in parts if is_prepared(part)]
        try:
            for part in prepared:
                self._prepare(part)
            self._writer.write(transition, urgent=urgent)
        except BaseException:
            self._abandon(prepared)
            raise
        self._removal.forget(part.record.id for part in parts if part.create)

    def _prepare(self, fork: Commit) -> None:
        """Copy the attachments into a new fork, which stays hidden until it is complete.

        The attachments are copied in several transactions, so that other changes can be written in between. Raises
        FencedError if the conversation that was forked does not exist, and other StoreErrors.
        """
        self._writer.write(changes.UnfinishedFork(fork))
        for piece in copied_pieces(fork, self.attachment):
            with self._copying:
                self._writer.write(changes.AttachmentCopies(piece))

    def _abandon(self, forks: Sequence[Commit]) -> None:
        """Mark for removal the forks that could not be finished; their rows are removed in the background.

        If that fails, the next start removes the rows.
        """
        with suppress(StoreError):
            for fork in forks:
                abandoned = changes.AbandonedFork(fork.record.id)
                self._writer.write(abandoned)
                self._removal.add(abandoned.hidden)
                self._writer.tidy()

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation and its sub-agents; see ports.Store.

        The conversations are hidden at once; their rows are removed in the background.
        """
        deletion = changes.Deletion(conversation_id, audit)
        self._writer.write(deletion)
        self._removal.add(deletion.hidden)
        self._writer.tidy()

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete one batch of old rows of an event log and return their number; see ports.Store."""
        begins, going = self._to_prune(conversation_id, before_revision, older_than)
        if going:
            self._writer.write(changes.Pruning(conversation_id, place_after(going[-1]), was=begins))
        return len(going)

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Shrink the file by at most `max_bytes`, keeping `spare_bytes` of free space in it; see ports.Store.

        Return whether the file was shrunk.
        """
        pragmas = ("freelist_count", "page_size", "auto_vacuum")
        free, page_size, mode = self._read(
            lambda connection: [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        )
        pages = min(max_bytes, free * page_size - spare_bytes) // page_size
        if mode != INCREMENTAL or pages <= 0:
            return False
        self._writer.write(changes.Compaction(pages))
        return True

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment, unless one with the same id exists; see ports.Store."""
        self._writer.write(changes.NewAttachment(conversation_id, attachment, self._now_ms()))

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
        files, removal = OpenFiles(path / FILE), Removal(raw(database))
        space.make()
        if space.scarce:
            WriteAheadLog(database).cut(space)

        def every_second() -> None:
            directory.check_lock_file()
            space.make()

        def tidy(connection: sqlite3.Connection) -> bool:
            return removal.remove_slice(connection) or space.give_back(connection)

        writer = Writer(
            database,
            faults or NoFaultPoints(),
            files,
            every_second=every_second,
            tidy=tidy,
            space=space,
            written=written,
        )
        readers = Readers(path / FILE, files)
        store = PeeweeStore(
            directory, database, writer, readers, files=files, removal=removal, space=space, clock=clock
        )
        opened.pop_all()
        if removal.pending or space.scarce:
            writer.tidy()
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
