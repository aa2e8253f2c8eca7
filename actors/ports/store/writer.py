"""The part of the Store port that writes conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.audit import AuditEntry
    from actors.ports.store.records import Commit, Spending


class ConversationWriter(Protocol):
    """Atomic, durable writes. Any thread; blocks until the write is on disk."""

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write all parts in one transaction and return once it is durable. Urgent writes precede other queued ones.

        Raises StoreUnavailableError, NotOwnerError, FencedError, SlugTakenError or CommandExistsError; ValueError if
        the parts contradict each other. What it creates is owned by this server.
        """
        ...

    def put_spending(self, spending: Spending) -> None:
        """Add what a principal spent on a day, where that belongs to no commit: its conversation is gone.

        Raises StoreUnavailableError.
        """
        ...

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation with its sub-agents, messages, log and attachments; store `audit` with that.

        Raises StoreUnavailableError or NotOwnerError.
        """
        ...
