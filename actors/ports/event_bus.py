"""The port of the event bus, which publishes the events of conversations to watchers (clients with open streams)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.core.notifications import TextDelta
    from actors.ports.store.records import ConversationRecord, StoredEvent


class EventBus(Protocol):
    """Publishes events to watchers. Safe to call from any thread; never blocks for long."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Publish committed events, in order, together with the conversation's record as it is after these events."""
        ...

    def text_delta(self, conversation_id: str, delta: TextDelta) -> None:
        """Publish the next piece of a text that a model is streaming. The text is not stored."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Publish the next piece of the output of a running tool call. The output is not stored."""
        ...

    def created(self, record: ConversationRecord) -> None:
        """Publish a new conversation, which has no events yet."""
        ...

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the open streams of clients that watch a deleted conversation.

        `record` is the last record of the conversation; for a sub-agent, the record of the conversation that started
        it.
        """
        ...
