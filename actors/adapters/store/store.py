"""The writing methods that the stores on SQLite and PostgreSQL share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Generic, TypeVar

from actors.adapters.store import changes
from actors.adapters.store.audit import audit_values
from actors.adapters.store.changes import EncodedCommit
from actors.adapters.store.log_rows import place_after
from actors.adapters.store.reads import StoreReads
from actors.adapters.store.removal import abandon_unfinished
from actors.adapters.store.rows import attachment_values
from actors.adapters.store.writer import Writer
from actors.ports import Attachment, Clock, Commit, Spending, StoreError
from actors.ports.records import AuditEntry

WriterT = TypeVar("WriterT", bound=Writer)


class SqlStore(StoreReads, Generic[WriterT]):
    """Implements ports.Store, but for what differs between the databases. Safe to call from any thread."""

    def __init__(self, writer: WriterT, clock: Clock | None, closing: Sequence[Callable[[], object]]) -> None:
        """`writer` writes the changes; `close` calls `closing`, the last one first.

        The system's clock is used if `clock` is None.
        """
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
        commits = [EncodedCommit(part) for part in parts]
        prepared = {commit: part for commit, part in zip(commits, parts, strict=True) if commit.prepared}
        try:
            for commit, part in prepared.items():
                self._prepare(commit, part)
            self._writer.write(
                commits[0] if len(commits) == 1 else partial(changes.write_alone, commits=commits), urgent=urgent
            )
        except BaseException:
            self._abandon(prepared)
            raise

    def _prepare(self, encoded: EncodedCommit, fork: Commit) -> None:
        """Copy the attachments into a new fork, which stays hidden until it is complete.

        The attachments are copied in several transactions, so that other changes can be written in between. Raises
        FencedError if the conversation that was forked does not exist, and other StoreErrors.
        """
        self._writer.write(partial(changes.begin_fork, fork=encoded))
        for piece in changes.copied_pieces(fork, self.attachment):
            with self._copying:
                self._writer.write(partial(changes.copy_attachments, piece=piece))

    def _abandon(self, forks: Iterable[EncodedCommit]) -> None:
        """Mark for removal the forks that could not be finished; their rows are removed in the background.

        If that fails, the next start removes the rows, or another server once this one has been declared dead.
        """
        with suppress(StoreError):
            for fork in forks:
                self._writer.write(partial(abandon_unfinished, conversation_id=fork.id))
                self._writer.tidy()

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation and its sub-agents; see ports.Store.

        The conversations are hidden at once; their rows are removed in the background.
        """
        entries = [] if audit is None else [audit_values(audit)]
        self._writer.write(partial(changes.delete, conversation_id=conversation_id, audit=entries), frees=True)
        self._writer.tidy()

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete one batch of old rows of an event log and return their number; see ports.Store."""
        was, going = self._to_prune(conversation_id, before_revision, older_than)
        if going:
            begins = place_after(going[-1])
            self._writer.write(partial(changes.prune_log, conversation_id=conversation_id, begins=begins, was=was))
        return len(going)

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment, unless one with the same id exists; see ports.Store."""
        now = self._clock.now_ms() if self._clock is not None else time.time_ns() // 1_000_000
        row = attachment_values(conversation_id, attachment, now)
        self._writer.write(partial(changes.put_attachment, row=row))

    def put_spending(self, spending: Spending) -> None:
        """Add tokens and costs to what a principal spent on a day; see ports.Store."""
        self._writer.write(partial(changes.add_spendings, spendings=[spending]))

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are in no event log; see ports.Store."""
        encoded = list(map(audit_values, entries))
        self._writer.write(lambda session: session.insert(changes.INSERT_AUDIT, encoded))

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are in no event log; return how many; see ports.Store."""
        return self._writer.write(partial(changes.prune_audit, before=before, keep=keep))

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be written."""
        return self._writer.waiting

    def close(self) -> None:
        """Write the queued changes, then close every connection. Idempotent; see ports.Store."""
        with self._close_once:
            self._closing.close()
