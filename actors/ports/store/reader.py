"""The part of the Store port that reads conversations, their messages and their commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.content import Message
    from actors.ports.store.conditions import Listed, ListPosition, Selection
    from actors.ports.store.records import CommandRecord, ConversationRecord, Snapshot, Spending


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
