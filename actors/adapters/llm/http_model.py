"""A model behind a provider: what is known about it, and one request to it at a time of asking."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from actors.adapters.llm.discovery import Discovery
from actors.adapters.llm.http_request import Exchange, Wire
from actors.adapters.llm.model_limits import ModelLimits, Stated, needs_telling, resolved
from actors.adapters.llm.protocols.answer_builder import Asked
from actors.adapters.llm.protocols.rendering import TurnCache
from actors.ports import CancelToken, ModelAnswer, ModelInfo, ModelRequest, ModelSink, Purpose


class HttpModel:
    """Implements ports.Model over one wire protocol. Any thread."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        discovery: Discovery,
        *,
        wire: Wire,
        operator: Mapping[str, Stated],
        turns: TurnCache,
    ) -> None:
        self._name = name
        self._wire = wire
        self._exchange = exchange
        self._discovery = discovery
        self._operator = operator
        self._turns = turns
        self._asks_server = needs_telling(name, exchange.provider, operator)
        self._told: Stated | None = None
        self._known = self._resolve()

    @property
    def info(self) -> ModelInfo:
        """Changes at most once, when the server has told its limits."""
        return self._current()[0]

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """See ports.Model."""
        if self._asks_server:
            self._discovery.look(self._name, cancel)
        asked = self._asked(request)
        return self._exchange.ask(self._wire, asked, self._body(asked), sink, cancel)

    def body_of(self, request: ModelRequest) -> bytes:
        """The body that `request` is sent with."""
        return self._body(self._asked(request))

    def _asked(self, request: ModelRequest) -> Asked:
        info, limits = self._current()
        if request.max_output:
            limits = replace(limits, output=min(limits.output, request.max_output))
        return Asked(self._exchange.provider, info, limits, request)

    def _body(self, asked: Asked) -> bytes:
        request = asked.request
        if request.purpose is not Purpose.CONVERSATION:  # nothing of it is ever sent again
            return self._wire.body_of(asked, [(turn.role, self._wire.turn_of(turn, asked)) for turn in request.turns])
        form = (self._exchange.provider.name, self._name, asked.info.images)
        turns = self._turns.rendered(
            request.conversation_id, form, request.turns, lambda turn: self._wire.turn_of(turn, asked)
        )
        return self._wire.body_of(asked, turns)

    def _current(self) -> tuple[ModelInfo, ModelLimits]:
        told = self._discovery.told(self._name)
        if told is not self._told:
            self._told, self._known = told, self._resolve(told)
        return self._known

    def _resolve(self, told: Stated | None = None) -> tuple[ModelInfo, ModelLimits]:
        provider = self._exchange.provider
        limits, known = resolved(self._name, provider, self._operator, told)
        info = ModelInfo(
            name=self._name,
            display_name=limits.name or self._name,
            provider=provider.name,
            protocol=provider.protocol,
            context_window=limits.window,
            max_output=limits.output,
            usable_window=limits.usable_window,
            lean=provider.profile == "lean",
            images=limits.images,
            known=known,
        )
        return info, limits
