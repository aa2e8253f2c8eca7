"""The adapter for one model that is reached over HTTP: it describes the model, finds its limits, and sends requests."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from actors.adapters.llm.discovery import Server
from actors.adapters.llm.model_limits import RESERVED_OUTPUT, ModelLimits, StatedLimits, needs_discovery, resolve_limits
from actors.adapters.llm.protocols.answer_builder import PreparedRequest
from actors.adapters.llm.protocols.encoding import EncodedTurns, PrefixCache
from actors.adapters.llm.provider import ANTHROPIC, OPENAI_CHAT, ProviderConfig
from actors.adapters.llm.provider_client import WireProtocol
from actors.adapters.llm.provider_errors import ImagesRefusedError
from actors.core.content import Usage, has_image
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import Turn
from actors.ports import CancelToken, ModelAnswer, ModelFailedError, ModelInfo, ModelRequest, ModelSink

_WITHOUT_IMAGES = (
    "Send a message to continue without them, since {name} now gets a text in their place; or choose another model. "
    'With images = false in [models."{name}"] of the server\'s settings it gets none from the start.'
)

_IMAGES_MAYBE_REFUSED = (
    "It had images, and it is not known whether {name} takes them: if not, set images = false in "
    '[models."{name}"] of the server\'s settings.'
)


class HttpModel:
    """Implements ports.Model over one wire protocol. Safe to call from any thread."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        protocol: WireProtocol,
        operator: Mapping[str, StatedLimits],
        prefixes: PrefixCache,
    ) -> None:
        self._name = name
        self._protocol = protocol
        self._server = server
        self._client = server.client
        self._operator = operator
        self._prefixes = prefixes
        self._asks_server = needs_discovery(name, server.provider, operator)
        self._server_facts: tuple[StatedLimits | None, bool] = (None, False)
        self._description = self._resolve(*self._server_facts)

    @property
    def info(self) -> ModelInfo:
        """The model's description. It changes when the server has stated the model's limits, or has refused images."""
        return self._info_and_limits()[0]

    def ask_limits(self, cancel: CancelToken) -> None:
        """Ask the server for the model's limits unless they are known or it was just asked. Never raises. Blocks."""
        if self._asks_server:
            self._server.ask_limits(self._name, cancel)

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Send one request and return the answer; see ports.Model. Asks the server for unknown limits first."""
        expected_images = self.info.images
        self.ask_limits(cancel)
        prepared = self._prepare(request)
        if expected_images and not prepared.info.images and _has_images(request):
            raise self._without_images(f"{prepared.info.provider} does not accept images for {self._name}.")
        try:
            return self._client.request(self._protocol, prepared, self._body(prepared), sink, cancel)
        except ImagesRefusedError as refused:
            self._server.images_refused.add(self._name)
            raise self._without_images(refused.failure.message, refused.usage) from None
        except ModelFailedError as failed:
            doubtful = failed.failure.kind is ErrorKind.INVALID_REQUEST and prepared.info.images_assumed
            if not (doubtful and _has_images(request)):
                raise
            text = f"{failed.failure.message} {_IMAGES_MAYBE_REFUSED.format(name=self._name)}"
            raise ModelFailedError(replace(failed.failure, message=text), usage=failed.usage) from None

    def _without_images(self, reason: str, usage: Usage | None = None) -> ModelFailedError:
        text = f"{reason} {_WITHOUT_IMAGES.format(name=self._name)}"
        return ModelFailedError(LlmFailure(ErrorKind.INVALID_REQUEST, text), usage=usage)

    def body_of(self, request: ModelRequest) -> bytes:
        return self._body(self._prepare(request))

    def _prepare(self, request: ModelRequest) -> PreparedRequest:
        info, limits = self._info_and_limits()
        if request.max_output:
            limit = limits.output if info.known else request.max_output
            limits = replace(limits, output=min(limit, request.max_output))
        return PreparedRequest(self._client.provider, info, limits, request)

    def _body(self, prepared: PreparedRequest) -> bytes:
        request, view, protocol = prepared.request, prepared.request.view, self._protocol

        def encode(turn: Turn) -> bytes:
            return protocol.turn_of(turn, prepared)

        cache_key = (self._client.provider.name, self._name, prepared.info.images)
        # Turns that will not change are encoded once and kept; only the others are encoded for each request.
        prefix = self._prefixes.pop(request.conversation_id, cache_key, protocol.joint, view)
        prefix.grow(view, encode)
        tail = EncodedTurns(protocol.joint, prefix.encoded.role)
        tail.add(view.turns[view.settled :], encode)
        body = protocol.body_of(prepared, (prefix.encoded.data, tail.data))
        if view.settled:
            self._prefixes.put(request.conversation_id, prefix)
        return body

    def _info_and_limits(self) -> tuple[ModelInfo, ModelLimits]:
        stated = self._server.limits(self._name), self._name in self._server.images_refused
        if stated != self._server_facts:
            self._server_facts, self._description = stated, self._resolve(*stated)
        return self._description

    def _resolve(self, stated: StatedLimits | None, images_refused: bool) -> tuple[ModelInfo, ModelLimits]:
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
            images=limits.images is not False and not images_refused,
            images_assumed=limits.images is None and not images_refused,
            known=known,
            reasoning_efforts=limits.reasoning_efforts,
            temperature=limits.temperature and provider.protocol != ANTHROPIC,
            structured_output=provider.structured_output,
            answer_limit=_answer_limit(provider, limits, known=known),
        )
        return info, limits


def _has_images(request: ModelRequest) -> bool:
    return any(has_image(turn.content) for turn in request.turns)


def _answer_limit(provider: ProviderConfig, limits: ModelLimits, *, known: bool) -> int:
    if provider.protocol == OPENAI_CHAT and not provider.max_tokens_field:
        return 0
    return limits.reserved_output if known else RESERVED_OUTPUT
