"""Durable memory, and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors.core.content import Message
    from actors.ports.records import (
        Attachment,
        CommandRecord,
        Commit,
        ConversationRecord,
        SettledInput,
        Snapshot,
        StoppedRun,
        StoredEvent,
        StoredTransition,
    )


class StoreError(Exception):
    """Base of the store's refusals; nothing was written."""


class StoreUnavailableError(StoreError):
    """Disk full, I/O error, closed: may work later."""


class FencedError(StoreError):
    """Another owner wrote: this actor's state is no longer the truth."""


class SlugTakenError(StoreError):
    """UNIQUE(slug)."""


class CommandExistsError(StoreError):
    """(conversation or principal, request id) is there already."""


class RevisionTooOldError(StoreError):
    """The log no longer has the events after this revision."""

    def __init__(self, text: str = "", *, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest
        """The oldest revision whose later events are all kept."""


class StoreDamagedError(StoreError):
    """What is stored cannot be read back: a broken file, or a row that is not what was written."""


class StoreUnusableError(StoreError):
    """The store cannot be opened; the text says why: read-only, not a database, a newer schema."""


class DataDirectoryBusyError(StoreError):
    """Another process holds the data directory."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid
        """0 if it is not known."""


class Store(Protocol):
    """Durable memory. Reads see only what is committed. Any thread; reads and commits block briefly.

    Reads raise StoreUnavailableError or StoreDamagedError.
    """

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write all parts in one transaction and return once it is durable. `urgent` ones go first.

        Raises StoreUnavailableError, FencedError, SlugTakenError or CommandExistsError; ValueError if the parts
        contradict themselves.
        """
        ...

    def delete(self, conversation_id: str) -> None:
        """Remove the conversation, its sub-agents and everything of theirs."""
        ...

    def load(self, conversation_id: str) -> ConversationRecord | None: ...

    def owner(self, conversation_id: str) -> str | None:
        """Whom it belongs to, even if the rest of its row cannot be read; None: there is no such conversation."""
        ...

    def find_slug(self, slug: str) -> str | None:
        """The id of the conversation with this slug."""
        ...

    def list(
        self,
        *,
        principal: str,
        archived: bool,
        parent: str | None,
        directory: str | None = None,
        before: tuple[int, str] | None,
        limit: int,
        skipped: Callable[[str], object] = lambda _conversation_id: None,
    ) -> tuple[ConversationRecord, ...]:
        """Latest updated first; `before` is (updated_at, id) of the last one seen; parent=None lists only
        what people started; with a `directory`, a real path, only those that work in it. Those whose rows cannot be
        read are left out, and `skipped` is told their ids; fewer than `limit` are the last ones."""
        ...

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Ids of all sub-agents of a conversation."""
        ...

    def unsettled(self) -> tuple[str, ...]:
        """Ids of the conversations that a restart must bring to rest: neither idle nor terminal, and sub-agents
        that are not terminal."""
        ...

    def messages(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[Message, ...]: ...

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Every message up to this sequence, in order."""
        ...

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Durable events after this revision, in order, gap-free; raises RevisionTooOldError."""
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
        """Runs that have ended, by the revision that told it. Pruning leaves them."""
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
        """Steers and follow-ups that wait no more, by the revision that told it. Pruning leaves them."""
        ...

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Record and latest messages from one read transaction."""
        ...

    def journal(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Transitions after this step, in order."""
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """What is wrong with what is stored, in words, nothing repaired: the hash chain, gaps in steps, revisions
        and messages, messages that are not what the log says. Empty if all is well."""
        ...

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Drop the oldest of the log's transitions whose events all lie before this revision, and that were written
        before the time `older_than` if it is given; never the latest event's. A few hundred at a time, so that nobody
        waits for it long. Returns how many were dropped: 0 if there are no more.

        Raises StoreUnavailableError; StoreDamagedError if they are not what was written, and then they stay.
        """
        ...

    def aged(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Ids, in order and after `after`, of conversations whose log begins before the time `before` and that have
        more than `keep` revisions."""
        ...

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Ids, in order and after `after`, of conversations that have been archived since before the time `before`;
        sub-agents are left out."""
        ...

    def reclaim(self, pages: int, *, spare: int) -> bool:
        """Give free space back to the file system, at most so many pages; `spare` free pages are kept for what will
        be written. Returns whether there was any to give. Raises StoreUnavailableError."""
        ...

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None: ...

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None: ...

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None: ...

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None: ...

    def close(self) -> None:
        """Write what was accepted, then close every connection; idempotent."""
        ...
