"""The PostgreSQL store: its writing methods, and how it is opened and closed."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from actors.adapters.store.postgres import changes
from actors.adapters.store.postgres.engine import address_of, database_outages, reached
from actors.adapters.store.postgres.readers import Readers
from actors.adapters.store.postgres.reads import PostgresReads
from actors.adapters.store.postgres.writer import Writer
from actors.adapters.store.pruning import place_after
from actors.adapters.store.sql.commit_rows import copied_pieces, is_prepared
from actors.adapters.store.sql.stored_writes import StoreWrites
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

    from actors.ports.store.audit import AuditEntry
    from actors.ports.store.outage_log import OutageLog


class PostgresStore(PostgresReads, StoreWrites[Writer]):
    """Implements ports.Store on a PostgreSQL database, for one of the servers that share it.

    Safe to call from any thread. Open a store with `open_postgres`.
    """

    def __init__(self, writer: Writer, readers: Readers, *, me: int, version: str, clock: Clock | None) -> None:
        PostgresReads.__init__(self, readers, me)
        closing = ExitStack()
        StoreWrites.__init__(self, writer, clock, closing)
        self._version = version
        for close in (readers.close, writer.close):
            closing.callback(close)

    # --- writing ----------------------------------------------------------------------------------------------

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write the commits atomically and durably; see ports.Store."""
        transition, prepared = changes.Transition(parts, self._me), [part for part in parts if is_prepared(part)]
        try:
            for part in prepared:
                self._prepare(part)
            self._writer.write(transition, urgent=urgent)
        except BaseException:
            self._abandon(prepared)
            raise

    def _prepare(self, fork: Commit) -> None:
        """Copy the attachments of a fork, which stays hidden until it is finished.

        They are copied in several transactions, so that other changes can be written in between. Raises FencedError if
        the conversation from which it is forked does not exist, and other StoreErrors.
        """
        self._writer.write(changes.UnfinishedFork(fork, self._me))
        for piece in copied_pieces(fork, self.attachment):
            with self._copying:
                self._writer.write(changes.AttachmentCopies(piece, self._me))

    def _abandon(self, forks: Sequence[Commit]) -> None:
        """Remove the rows of forks that could not be finished.

        If that fails, the rows are removed after this server was declared dead.
        """
        with suppress(StoreError):
            for fork in forks:
                self._writer.write(changes.AbandonedFork(fork.record.id, self._me))
                self._writer.tidy()

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation and its sub-agents; see ports.Store.

        They are hidden at once; their rows are removed in the background.
        """
        self._writer.write(changes.Deletion(conversation_id, self._me, audit))
        self._writer.tidy()

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete one batch of old rows of an event log and return their number; see ports.Store."""
        begins, going = self._to_prune(conversation_id, before_revision, older_than)
        if going:
            self._writer.write(changes.Pruning(conversation_id, self._me, place_after(going[-1]), was=begins))
        return len(going)

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Do nothing and return False, because PostgreSQL's autovacuum frees the space; see ports.Store."""
        return False

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment, unless one with the same id exists; see ports.Store."""
        self._writer.write(changes.NewAttachment(conversation_id, self._me, attachment, self._now_ms()))

    # --- lifetime ---------------------------------------------------------------------------------------------

    @property
    def engine_version(self) -> str:
        """The version of PostgreSQL, such as "16.4"; see ports.Store."""
        return self._version


def open_postgres(
    url: str,
    me: int,
    faults: FaultPoints | None = None,
    clock: Clock | None = None,
    *,
    written: Callable[[int, float], None] | None = None,
    outages: OutageLog | None = None,
) -> PostgresStore:
    """Open the store in a database to which `migrate` has applied all migrations.

    `me` is the incarnation (number) of this server; the store can neither take over conversations nor write before this
    server has a row in the table `nodes`. The fault points store.before_begin, store.before_savepoint (once per
    change), store.before_commit and store.after_commit (once per transaction) of `faults` are hit on the thread that
    writes. `written` is called there after each batch, with the number of its changes and the seconds it took.
    `outages` logs when the database cannot be reached. Raises StoreUnusableError.
    """
    address = address_of(url)
    session = reached(address)
    try:
        version = str(session.execute("SELECT current_setting('server_version')").fetchone()[0])
    except BaseException:
        session.close()
        raise
    outages = outages or database_outages()
    writer = Writer(address, session, faults or NoFaultPoints(), outages, written=written)
    return PostgresStore(writer, Readers(address, outages), me=me, version=version, clock=clock)
