"""The part of the Store port that writes conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.audit import AuditEntry
    from actors.ports.store.records import Commit, Spending


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
