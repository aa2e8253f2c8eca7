"""A conversation's messages for its model requests, each read from the store once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.ports import ConversationReader, StoreDamagedError

if TYPE_CHECKING:
    from actors.core.content import Message

PAGE = 1_000


class StoredHistory:
    """Messages are only ever appended (I28), so what was read stays true. Any thread; reads block briefly."""

    def __init__(self, store: ConversationReader, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id
        self._lock = threading.Lock()
        self._messages: list[Message] = []

    def through(self, sequence: int) -> tuple[Message, ...]:
        """Every message up to this sequence, in order. Raises StoreError, also if one is missing."""
        with self._lock:
            while len(self._messages) < sequence:
                after = len(self._messages)
                page = self._store.messages(self._conversation_id, after=after, limit=PAGE)
                if not page:
                    raise StoreDamagedError(f"message {after + 1} of conversation {self._conversation_id} is missing")
                self._messages.extend(page)
            return tuple(self._messages[:sequence])
