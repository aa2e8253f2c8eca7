"""Builds the requests that a model gets: system prompt, tools, and the history as its protocol takes it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.history import provider_view, summary_view
from actors.ports import ConversationReader, ModelRequest, StoreDamagedError, ToolSpec
from actors.runners.image_budget import within_limits

if TYPE_CHECKING:
    from actors.core.content import Message
    from actors.ports import CancelToken, ConversationRecord, Model
    from actors.runtime.services import Services

PAGE = 1_000
"""Messages that are read from the store at a time."""


class HistoryCache:
    """A conversation's messages, each read from the store once. Any thread; reads block briefly.

    Messages are only ever appended, so what was read stays true.
    """

    def __init__(self, store: ConversationReader, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id
        self._lock = threading.Lock()
        """Held while reading: an abandoned request may still read while the next one begins."""
        self._messages: list[Message] = []

    def through(self, sequence: int) -> tuple[Message, ...]:
        """Return every message up to this sequence, in order. Raises StoreError, also if one is missing."""
        with self._lock:
            while len(self._messages) < sequence:
                after = len(self._messages)
                page = self._store.messages(self._conversation_id, after=after, limit=PAGE)
                if not page:
                    raise StoreDamagedError(f"message {after + 1} of conversation {self._conversation_id} is missing")
                self._messages.extend(page)
            return tuple(self._messages[:sequence])


class RequestBuilder:
    """Builds the model requests of one conversation."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._history: HistoryCache | None = None

    def read_history(self, record: ConversationRecord) -> None:
        """Read all messages now, so that a run begins only if a model can be shown them. Raises StoreError."""
        self.history_of(record).through(record.state.ledger.seq)

    def history_of(self, record: ConversationRecord) -> HistoryCache:
        """Return the history of the conversation, made at its first use (conversation's thread)."""
        if self._history is None:
            self._history = HistoryCache(self._services.store, record.id)
        return self._history

    def build(
        self,
        record: ConversationRecord,
        effect: RequestLlm | RequestContinuation,
        history: HistoryCache,
        cancel: CancelToken,
        model: Model,
    ) -> ModelRequest:
        """Return the request of an effect for a model (runner's thread).

        Raises StoreError or ImagesUnavailableError.
        """
        messages, images = history.through(effect.through_sequence), self._services.images
        tools: tuple[ToolSpec, ...] = ()
        if isinstance(effect, RequestContinuation):
            turns = summary_view(messages, effect.through_sequence, effect.rejected)
        else:
            tools = self._tools(record, model)
            info = model.info
            turns = provider_view(messages, effect.through_sequence, protocol=info.protocol, model=info.name)
        if model.info.images:
            turns = within_limits(turns, lambda image: images.view_bytes(record.id, image, cancel))
        return ModelRequest(
            conversation_id=record.id,
            request_id=effect.request_id,
            attempt=effect.attempt,
            system=record.system_prompt,
            tools=tools,
            turns=turns,
            view_of=lambda image: images.view(record.id, image, cancel),
        )

    def _tools(self, record: ConversationRecord, model: Model) -> tuple[ToolSpec, ...]:
        specs = self._services.toolbox.specs(sub_agent=not record.user_initiated)
        return tuple(spec for spec in specs if spec.essential) if model.info.lean else specs
