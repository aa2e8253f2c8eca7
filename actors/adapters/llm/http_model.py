"""The adapter for one model that is reached over HTTP: it describes the model, finds its limits, and sends requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.adapters.llm.model_limits import (
    RESERVED_OUTPUT,
    ModelLimits,
    StatedLimits,
    needs_discovery,
    resolve_limits,
)
from actors.adapters.llm.protocols.answer_builder import PreparedRequest
from actors.adapters.llm.protocols.encoded_turns import EncodedTurns
from actors.adapters.llm.provider import ANTHROPIC, OPENAI_CHAT
from actors.ports import CancelToken, ModelAnswer, ModelInfo, ModelRequest, ModelSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.adapters.llm.discovery import Discovery
    from actors.adapters.llm.protocols.encoded_turns import PrefixCache
    from actors.adapters.llm.provider import ProviderConfig
    from actors.adapters.llm.provider_client import ProviderClient, WireProtocol
    from actors.core.history import Turn


class HttpModel:
    """Implements ports.Model over one wire protocol. Safe to call from any thread."""

    def __init__(
        self,
        name: str,
        client: ProviderClient,
        discovery: Discovery,
        *,
        protocol: WireProtocol,
        operator: Mapping[str, StatedLimits],
        prefixes: PrefixCache,
    ) -> None:
        self._name = name
        self._protocol = protocol
        self._client = client
        self._discovery = discovery
        self._operator = operator
        self._prefixes = prefixes
        self._asks_server = needs_discovery(name, client.provider, operator)
        self._stated: StatedLimits | None = None
        self._known = self._resolve()

    @property
    def info(self) -> ModelInfo:
        """The model's description. It changes at most once, when the server has stated the model's limits."""
        return self._current()[0]

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Send one request and return the answer; see ports.Model. Asks the server for unknown limits first."""
        if self._asks_server:
            self._discovery.ask_server(self._name, cancel)
        prepared = self._prepare(request)
        return self._client.request(self._protocol, prepared, self._body(prepared), sink, cancel)

    def body_of(self, request: ModelRequest) -> bytes:
        """Return the HTTP body of a request."""
        return b"".join(self._body(self._prepare(request)))

    def _prepare(self, request: ModelRequest) -> PreparedRequest:
        info, limits = self._current()
        if request.max_output:
            most = limits.output if info.known else request.max_output
            limits = replace(limits, output=min(most, request.max_output))
        return PreparedRequest(self._client.provider, info, limits, request)

    def _body(self, prepared: PreparedRequest) -> Sequence[bytes]:
        request, view, protocol = prepared.request, prepared.request.view, self._protocol

        def encode(turn: Turn) -> bytes:
            return protocol.turn_of(turn, prepared)

        form = (self._client.provider.name, self._name, prepared.info.images)
        prefix = self._prefixes.take(request.conversation_id, form, protocol.joint, view)
        prefix.grow(view, encode)
        tail = EncodedTurns(protocol.joint, prefix.encoded.role)
        tail.add(view.turns[view.settled :], encode)
        body = protocol.body_of(prepared, (*prefix.encoded.pieces, *tail.pieces))
        if view.settled:
            self._prefixes.put(request.conversation_id, prefix)
        return body

    def _current(self) -> tuple[ModelInfo, ModelLimits]:
        stated = self._discovery.known(self._name)
        if stated is not self._stated:
            self._stated, self._known = stated, self._resolve(stated)
        return self._known

    def _resolve(self, stated: StatedLimits | None = None) -> tuple[ModelInfo, ModelLimits]:
        provider = self._client.provider
        limits, known = resolve_limits(self._name, provider, self._operator, stated)
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
            reasoning_efforts=limits.reasoning_efforts,
            temperature=limits.temperature and provider.protocol != ANTHROPIC,
            structured_output=provider.structured_output,
            answer_limit=_answer_limit(provider, limits, known=known),
        )
        return info, limits


def _answer_limit(provider: ProviderConfig, limits: ModelLimits, *, known: bool) -> int:
    """Return the maximum of the answer limit that a request may set, in tokens; 0 if the server accepts no limit."""
    if provider.protocol == OPENAI_CHAT and not provider.max_tokens_field:
        return 0
    return limits.reserved_output if known else RESERVED_OUTPUT
