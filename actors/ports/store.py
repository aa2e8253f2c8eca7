"""The port for the store, which keeps conversations durably.

A class that needs only a part of the store can depend on the port of that part, such as StoreReader.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from actors.core.content import Message
from actors.ports.conditions import Listed, ListPosition, Selection
from actors.ports.records import (
    Attachment,
    AuditEntry,
    AuditStore,
    CommandRecord,
    Commit,
    ConversationRecord,
    SettledInput,
    Snapshot,
    Spending,
    StoppedRun,
    StoredEvent,
    StoredTransition,
)


class StoreError(Exception):
    """The base class of the store's errors."""


class StoreUnavailableError(StoreError):
    """The disk is full, an I/O error occurred, or the store is closed; a later attempt may succeed."""


class DatabaseAwayError(StoreUnavailableError):
    """The database does not answer.

    The store itself logs the beginning and the end of such an outage; callers need not.
    """


class FencedError(StoreError):
    """The stored conversation has changed since it was read, or was deleted: the state in memory is out of date."""


class SlugTakenError(StoreError):
    """Another conversation of the principal has this slug."""


class CommandExistsError(StoreError):
    """A command with this request id was accepted before, for the same conversation or principal."""


class RevisionTooOldError(StoreError):
    """Events after the requested revision were pruned from the log."""

    def __init__(self, text: str = "", *, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest
        """The lowest revision after which all events are still stored."""


class StoreDamagedError(StoreError):
    """Stored data cannot be read: the file is corrupt, or a row differs from what was written."""


class StoreUnusableError(StoreError):
    """The store cannot be opened; the text says why, for example because it is read-only or has a newer schema."""


class DataDirectoryBusyError(StoreError):
    """Another process has locked the data directory."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid
        """The id of the process that has locked the data directory; 0 if unknown."""


class ConversationReader(Protocol):
    """Reads conversations as they were last committed. Safe to call from any thread; blocks briefly.

    Every method may raise StoreUnavailableError or StoreDamagedError.
    """

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the conversation's row; None if there is no such conversation."""
        ...

    def owner(self, conversation_id: str) -> str | None:
        """Return the conversation's principal, even if the rest of its row is unreadable; None if there is no row."""
        ...

    def find_slug(self, principal: str, slug: str) -> str | None:
        """Return the id of the principal's conversation with this slug (short name); None if there is none."""
        ...

    def list(
        self,
        selection: Selection,
        *,
        after: ListPosition | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _: None,
    ) -> Listed:
        """Return the next page of a list of conversations, with at most `limit` of them.

        A page may have fewer, or none, even though there are more: one call looks at a bounded number of conversations,
        unless the list is ordered by title, or contains the sub-agents of all conversations.

        Args:
            selection: Which conversations the list contains, and in which order.
            after: Where the page begins: `Listed.more` of the previous page; None for the first page.
            limit: The maximum number of conversations.
            skipped: Called with the id of each conversation that is left out because its row is unreadable.
        """
        ...

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Return the ids of all sub-agents of a conversation."""
        ...

    def messages(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[Message, ...]:
        """Return the messages with sequence numbers between `after` and `before` (both excluded), in order.

        With `descending`, the latest message comes first.
        """
        ...

    def message(self, conversation_id: str, message_id: str) -> Message | None:
        """Return a message; None if the conversation has no such message."""
        ...

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Return all messages up to and including this sequence number, in order."""
        ...

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Return the row and the latest messages, read in one transaction; None if there is no such conversation."""
        ...

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None:
        """Return the accepted command of a conversation with this request id, or None."""
        ...

    def spendings(self, since: int) -> tuple[Spending, ...]:
        """Return what each principal spent per day, from the day `since` (in days since the epoch) on; in no order."""
        ...

    def stored_bytes(self, principal: str) -> int:
        """Return the total size in bytes of a principal's messages, attachments and profiles.

        For "", return the size of the whole database. May take seconds.
        """
        ...

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None:
        """Return the accepted command with this request id by which the principal created a conversation, or None."""
        ...


class LogReader(Protocol):
    """Reads the log of a conversation's committed state changes. Safe to call from any thread; blocks briefly.

    Every method may raise StoreUnavailableError or StoreDamagedError.
    """

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return the durable events after this revision, in order and without gaps.

        Raises RevisionTooOldError if some of them are no longer stored.
        """
        ...

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return the logged transitions (state changes) with a step number above `after_step`, in order."""
        ...

    def stopped_runs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[StoppedRun, ...]:
        """Return the runs that ended between the revisions `after` and `before` (both excluded).

        These records are kept as long as the conversation.
        """
        ...

    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; None if it has not ended or the conversation has no such run."""
        ...

    def settled_inputs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[SettledInput, ...]:
        """Return the queued inputs that left the queue between the revisions `after` and `before` (both excluded).

        These records are kept as long as the conversation.
        """
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Check the stored data of a conversation and return one sentence for each finding; () if there are none.

        Checks the hash chain of the log; whether steps, revisions and message sequences have gaps; and whether the
        messages are those that the log recorded. Repairs nothing.
        """
        ...


class ConversationWriter(Protocol):
    """Atomic, durable writes. Safe to call from any thread; every method blocks until the data is on disk."""

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write all parts in one transaction, and return once it is durable. Urgent writes overtake queued writes.

        Raises StoreUnavailableError, NotOwnerError, FencedError, SlugTakenError or CommandExistsError; ValueError if
        the parts contradict each other. This server owns the conversations that it creates.
        """
        ...

    def put_spending(self, spending: Spending) -> None:
        """Add to the stored totals what a principal spent on a day.

        Needed when the conversation is deleted, so that no commit can add the amount.

        Raises StoreUnavailableError.
        """
        ...

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete a conversation with its sub-agents, messages, log and attachments; store the audit entry `audit`.

        Raises StoreUnavailableError or NotOwnerError.
        """
        ...


class Owner(Struct, frozen=True):
    """A server process that can own conversations, from its start to its end."""

    incarnation: int
    """A number that is never used again: after a restart the server is another owner."""
    name: str = ""
    address: str = ""
    """The address of the gRPC listener for other servers, "host:port"; "" if unknown."""


class NotOwnerError(StoreError):
    """Another server owns the conversation, so this server may neither change the conversation nor act for it."""

    def __init__(self, text: str = "", *, owner: Owner | None = None) -> None:
        super().__init__(text)
        self.owner = owner
        """The owner; None if no living server owns the conversation or it is being taken over: a retry may succeed."""


class ConversationOwnership(Protocol):
    """Ownership of conversations. Safe to call from any thread.

    Both methods block, and may raise StoreUnavailableError. A store that only one process uses, such as SQLite, has no
    owners: every claim succeeds.
    """

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Make this server the owner of a conversation and return its row; None if the conversation does not exist.

        The claim covers a whole tree: the conversation at the top and all sub-agents beneath it. It succeeds if the
        tree has no owner, or if its owner was declared dead. If the owner has changed, `taken` is called with the ids
        of the tree's conversations whose work was interrupted, if there are any: the caller must recover them.

        Raises NotOwnerError if another server is the owner, or if this server was declared dead or is about to stop and
        takes no conversations any more; StoreDamagedError.
        """
        ...

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of this server's conversations that a restart must recover.

        These are conversations that are not idle, and sub-agents without an outcome.
        """
        ...


class AttachmentStore(Protocol):
    """The attachments of conversations. Safe to call from any thread.

    Reads block briefly; writes block until the data is on disk.
    """

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment of a conversation. Idempotent.

        Raises StoreUnavailableError, NotOwnerError, or FencedError if the conversation does not exist.
        """
        ...

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return the attachment; None if the conversation has none with this id.

        Raises StoreUnavailableError or StoreDamagedError.
        """
        ...


class StoreMaintenance(Protocol):
    """Deletes old data, and returns free space to the file system. Safe to call from any thread.

    Each call is one short transaction and may raise StoreUnavailableError.
    """

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the conversation's row, or None. See `ConversationReader.load`."""
        ...

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations whose logs can be pruned, in order, starting after the id `after`.

        These are the conversations whose log begins before the time `before` (ms since the epoch) and that have more
        than `keep` revisions.
        """
        ...

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete the oldest state changes (transitions) from a log; return their number, 0 if none is left to delete.

        Deletes only transitions whose events all precede `before_revision` and, if given, that were written before the
        time `older_than` (ms since the epoch), and never the transition of the latest event. A call deletes at most a
        few hundred, so that it does not delay other writers.

        Raises StoreUnavailableError; NotOwnerError if another server owns the conversation; or StoreDamagedError if the
        transitions fail verification, in which case they are kept.
        """
        ...

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations archived before the time `before` (ms), in order, after the id `after`.

        Sub-agents are left out.
        """
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are not part of a conversation's log. See `AuditStore.prune_audit`."""
        ...

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Return at most `max_bytes` of the store's free space to the file system; return False if none was returned.

        `spare_bytes` of free space are kept for later writes.
        """
        ...


class StoreReader(ConversationReader, LogReader, Protocol):
    """All methods that read conversations, their messages and their logs, but not their attachments."""


class Store(
    StoreReader, ConversationWriter, ConversationOwnership, AttachmentStore, AuditStore, StoreMaintenance, Protocol
):
    """The whole store. Safe to call from any thread. Reads see only committed data; reads and writes block."""

    @property
    def engine_version(self) -> str:
        """The version of the database engine."""
        ...

    def close(self) -> None:
        """Finish accepted writes, then close every connection. Idempotent."""
        ...
