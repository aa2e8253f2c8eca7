"""The writing methods that the stores on SQLite and PostgreSQL share."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from actors.adapters.store import changes
from actors.adapters.store.commits import is_prepared
from actors.adapters.store.log_rows import place_after
from actors.adapters.store.reads import Reading, StoreReads
from actors.adapters.store.writer import Writer
from actors.ports import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.ports import Attachment, Clock, Commit, Spending
    from actors.ports.records import AuditEntry

WriterT = TypeVar("WriterT", bound=Writer)


class SqlStore(StoreReads, Generic[WriterT]):
    """Implements ports.Store, but for what differs between the databases. Safe to call from any thread."""

    def __init__(
        self, read: Reading, writer: WriterT, clock: Clock | None, closing: Sequence[Callable[[], object]]
    ) -> None:
        """`writer` writes the changes; `close` calls `closing`, the last one first.

        The system's clock is used if `clock` is None.
        """
        super().__init__(read)
        self._writer = writer
        self._clock = clock
        # Held while one batch of a fork's attachments is copied, so that no transaction contains batches of two forks.
        self._copying = threading.Lock()
        self._close_once = threading.Lock()  # a second, concurrent close returns only after the first
        self._closing = ExitStack()
        for close in closing:
            self._closing.callback(close)

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

    def _prepare(self, fork: Commit) -> None:
        """Copy the attachments into a new fork, which stays hidden until it is complete.

        The attachments are copied in several transactions, so that other changes can be written in between. Raises
        FencedError if the conversation that was forked does not exist, and other StoreErrors.
        """
        self._writer.write(changes.UnfinishedFork(fork))
        for piece in changes.copied_pieces(fork, self.attachment):
            with self._copying:
                self._writer.write(changes.AttachmentCopies(piece))

    def _abandon(self, forks: Sequence[Commit]) -> None:
        """Mark for removal the forks that could not be finished; their rows are removed in the background.

        If that fails, the next start removes the rows, or another server once this one has been declared dead.
        """
        with suppress(StoreError):
            for fork in forks:
                self._writer.write(changes.AbandonedFork(fork.record.id))
                self._writer.tidy()

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation and its sub-agents; see ports.Store.

        The conversations are hidden at once; their rows are removed in the background.
        """
        self._writer.write(changes.Deletion(conversation_id, audit))
        self._writer.tidy()

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete one batch of old rows of an event log and return their number; see ports.Store."""
        begins, going = self._to_prune(conversation_id, before_revision, older_than)
        if going:
            self._writer.write(changes.Pruning(conversation_id, place_after(going[-1]), was=begins))
        return len(going)

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment, unless one with the same id exists; see ports.Store."""
        now = self._clock.now_ms() if self._clock is not None else time.time_ns() // 1_000_000
        self._writer.write(changes.NewAttachment(conversation_id, attachment, now))

    def put_spending(self, spending: Spending) -> None:
        """Add tokens and costs to what a principal spent on a day; see ports.Store."""
        self._writer.write(changes.NewSpending(spending))

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are in no event log; see ports.Store."""
        self._writer.write(changes.AuditEntries(entries))

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are in no event log; return how many; see ports.Store."""
        oldest = changes.AuditPruning(before, keep)
        self._writer.write(oldest)
        return oldest.deleted

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be written."""
        return self._writer.waiting

    def close(self) -> None:
        """Write the queued changes, then close every connection. Idempotent; see ports.Store."""
        with self._close_once:
            self._closing.close()
