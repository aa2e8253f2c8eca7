"""Keeps the messages of one conversation in memory, and builds from them the turns that a model request contains."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.core.history import UNLIMITED, GrowingView, ImageBudget, ProviderView, Room, provider_view
from actors.ports import ConversationReader, StoreDamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.core.content import Image, Message
    from actors.ports import ModelInfo

PAGE = 1_000
"""How many messages are read from the store at a time."""


class HistoryCache:
    """The messages of one conversation in memory: added when they are committed, or read from the store once.

    Safe to use from any thread. Messages are never changed, so cached messages stay valid.
    """

    def __init__(self, store: ConversationReader, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id
        self._lock = threading.Lock()
        """Held while messages are read or added: a cancelled request may still be reading when the next one begins."""
        self._messages: list[Message] = []
        self._views = _Views()

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages that were just committed.

        Messages that do not follow directly on the cached ones are ignored, and read from the store when needed.
        """
        with self._lock:
            for message in messages:
                if message.sequence == len(self._messages) + 1:
                    self._messages.append(message)

    def read(self, sequence: int) -> None:
        """Read the missing messages up to number `sequence`. Raises StoreError, also if a message does not exist."""
        with self._lock:
            while len(self._messages) < sequence:
                after = len(self._messages)
                page = self._store.messages(self._conversation_id, after=after, limit=PAGE)
                if not page:
                    raise StoreDamagedError(f"message {after + 1} of conversation {self._conversation_id} is missing")
                self._messages.extend(page)

    def through(self, sequence: int) -> tuple[Message, ...]:
        """Return every message up to number `sequence`, in order. Raises StoreError, also if a message is missing."""
        self.read(sequence)
        return tuple(self._messages[:sequence])

    def view(self, sequence: int, model: ModelInfo, room: Room, size_of: Callable[[Image], int]) -> ProviderView:
        """Return the turns of a request to `model`, built from the messages up to number `sequence`.

        `size_of` returns the size in bytes of an image as it is sent. Raises StoreError, or what `size_of` raises.
        """
        self.read(sequence)
        return self._views.of(self._messages, sequence, model, room, size_of)


class _Views:
    """Builds the turns of each model request by adding the new messages to the turns of the previous request.

    Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a cancelled request may still build its turns when the next one begins
        self._for = ("", "", UNLIMITED)
        self._view = GrowingView()
        self._budget = ImageBudget()

    def of(
        self,
        messages: Sequence[Message],
        sequence: int,
        model: ModelInfo,
        room: Room,
        size_of: Callable[[Image], int],
    ) -> ProviderView:
        """Return the turns built from the messages up to number `sequence`. Raises what `size_of` raises."""
        with self._lock:
            view = self._unlimited(messages, sequence, model, room)
            return self._budget.apply(view, size_of) if model.images else view

    def _unlimited(self, messages: Sequence[Message], sequence: int, model: ModelInfo, room: Room) -> ProviderView:
        if (model.protocol, model.name, room) != self._for:
            self._for = model.protocol, model.name, room
            self._view = GrowingView(*self._for)
        if sequence < self._view.sequence:  # a cancelled request: `_view` was already extended for the next one
            turns = provider_view(messages, sequence, protocol=model.protocol, model=model.name, room=room)
            return ProviderView(turns)
        for message in messages[self._view.sequence : sequence]:
            self._view.add(message)
        return self._view.view()
