"""The event bus: shows watchers what happens in conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.core.notifications import TextDelta
    from actors.ports.records import ConversationRecord, StoredEvent


class EventBus(Protocol):
    """Shows watchers what happens. Any thread; never blocks for long."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Show committed events, in order, and the conversation after them."""
        ...

    def text_delta(self, conversation_id: str, delta: TextDelta) -> None:
        """Show the next text of a streaming model request; ephemeral."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Show the next output of a running tool call; ephemeral."""
        ...

    def created(self, record: ConversationRecord) -> None:
        """Show a new conversation, which has no events yet."""
        ...

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the watches of a deleted conversation.

        `record` is its last one, or that of the conversation it was a sub-agent of.
        """
        ...
