"""Builds model requests: the system prompt, the tools, and the history in the form of the model's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.history import ProviderView, Room, summary_view, within_limits
from actors.core.profile import Generation
from actors.ports import ModelRequest, ToolSpec
from actors.ports.models import fixed_tokens
from actors.runners.history_cache import HistoryCache
from actors.runtime.validation import for_model, output_form, supported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.core.content import Image, Message
    from actors.ports import CancelToken, ConversationRecord, Model
    from actors.runtime.services import Services


class RequestBuilder:
    """Builds the model requests of one conversation."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._history: HistoryCache | None = None

    def read_history(self, record: ConversationRecord) -> None:
        """Read all messages now, so that a run begins only if they are readable. Raises StoreError."""
        self.history_of(record).read(record.state.ledger.seq)

    def committed(self, record: ConversationRecord, messages: Sequence[Message]) -> None:
        """Add messages that were just committed, so that they need not be read from the store.

        Only the conversation's thread may call this.
        """
        self.history_of(record).extend(messages)

    def history_of(self, record: ConversationRecord) -> HistoryCache:
        """Return the cache of the conversation's messages; the first call creates it.

        Only the conversation's thread may call this.
        """
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
        *,
        refused: int,
    ) -> ModelRequest:
        """Return the model request that `effect` asks for. Called on the runner's thread.

        `refused` is how often the provider has found this request too long; each time it gets shorter.
        Raises StoreError or ImagesUnavailableError.
        """
        images = self._services.images
        tools: tuple[ToolSpec, ...] = ()
        generation, output = Generation(), None

        def size_of(image: Image) -> int:
            return images.view_bytes(record.id, image, cancel)

        ledger, through = record.state.ledger, effect.through_sequence
        room = Room(
            usable=model.info.usable_window,
            fixed=fixed_tokens(record.system_prompt, ()),
            images=model.info.images,
            narrowed=ledger.narrowed,
        )
        if isinstance(effect, RequestContinuation):
            turns = summary_view(
                history.through(through),
                through,
                effect.rejected,
                room=room,
                used=ledger.used_tokens,
                halved=refused,
            )
            view = ProviderView(within_limits(turns, size_of) if model.info.images else turns)
        else:
            tools = self._tools(record, model)
            generation = supported(_generation(record), model.info)
            if schema := ledger.output_schema:
                output, submitting = output_form(schema, model.info)
                tools = (*tools, *submitting)
            room = replace(
                room,
                fixed=fixed_tokens(record.system_prompt, tools),
                narrowed=through if refused else ledger.narrowed,
            )
            view = history.view(through, model.info, room, size_of)
        return ModelRequest(
            conversation_id=record.id,
            request_id=effect.request_id,
            attempt=effect.attempt,
            system=record.system_prompt,
            tools=tools,
            view=view,
            view_of=lambda image: images.view(record.id, image, cancel),
            max_output=generation.max_output_tokens,
            generation=generation,
            output=output,
            counted_tokens=ledger.used_tokens,
            cache_key=record.profile.cache_key,
        )

    def _tools(self, record: ConversationRecord, model: Model) -> tuple[ToolSpec, ...]:
        return for_model(model.info, self._services.offered(record), record.state.ledger.run_mode)


def _generation(record: ConversationRecord) -> Generation:
    """Return the run's generation settings; settings that the run does not have are taken from the conversation."""
    own, usual = record.state.ledger.generation, record.profile.generation
    return own.over(usual) if own else usual
