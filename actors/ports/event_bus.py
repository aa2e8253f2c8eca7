"""The event bus: publishes the events of conversations to watchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.core.notifications import TextDelta
    from actors.ports.store.records import ConversationRecord, StoredEvent


class EventBus(Protocol):
    """Publishes events to watchers. Any thread; never blocks for long."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Publish committed events, in order, with the conversation's record after them."""
        ...

    def text_delta(self, conversation_id: str, delta: TextDelta) -> None:
        """Publish the next text of a streaming model request; ephemeral."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Publish the next output of a running tool call; ephemeral."""
        ...

    def created(self, record: ConversationRecord) -> None:
        """Publish a new conversation, which has no events yet."""
        ...

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the watches of a deleted conversation.

        `record` is its last record; for a sub-agent that of the conversation that started it.
        """
        ...
