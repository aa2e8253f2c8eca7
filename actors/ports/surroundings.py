"""Who is told of events, and where conversations work."""

from __future__ import annotations

from typing import Protocol

from actors.core.notifications import Token
from actors.ports.records import ConversationRecord, StoredEvent


class EventBus(Protocol):
    """Tells watchers that something is there. Any thread; never blocks."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Committed events, in order, and the conversation after them."""
        ...

    def token(self, conversation_id: str, token: Token) -> None:
        """Passing text of the request under way."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Passing output of the tool under way."""
        ...

    def deleted(self, conversation_id: str) -> None:
        """The conversation is gone."""
        ...


class Workspace(Protocol):
    """The directories that conversations work in. Any thread; may touch the disk."""

    def check(self, path: str) -> str:
        """The real path of an existing directory; raises ValueError with a text for people."""
        ...
