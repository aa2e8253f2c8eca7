"""Models that are reached over HTTP: what the server of a provider states about them, and the adapter for one model.

A server's list of names is fetched when a user names an unknown model; a model's limits are fetched before the first
request to it if they are unknown.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from actors.adapters.llm.protocols.answer_builder import PreparedRequest, token_count
from actors.adapters.llm.protocols.encoding import EncodedTurns, PrefixCache
from actors.adapters.llm.provider import (
    ANTHROPIC,
    ONLY_MODEL,
    OPENAI_CHAT,
    RESERVED_OUTPUT,
    ModelLimits,
    Price,
    ProviderConfig,
    StatedLimits,
    Timeouts,
    needs_discovery,
    resolve_limits,
)
from actors.adapters.llm.provider_client import ProviderClient, WireProtocol
from actors.adapters.llm.provider_errors import ImagesRefusedError
from actors.adapters.llm.transport.connections import TransportError
from actors.core.content import Usage, has_image
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import Turn
from actors.ports import (
    CancelToken,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelInfo,
    ModelRequest,
    ModelSink,
)

log = logging.getLogger(__name__)

_WITHOUT_IMAGES = (
    "Send a message to continue without them ({name} now gets placeholders instead), or choose another model. "
    'To never send it images, set images = false in [models."{name}"] of the server\'s settings.'
)

_IMAGES_MAYBE_REFUSED = (
    "The request contained images, and {name} may not accept them; if it does not, set images = false in "
    '[models."{name}"] of the server\'s settings.'
)


class HttpModel:
    """Implements ports.Model over one wire protocol. Thread-safe."""

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
        """The model's description, which changes once the server has stated the model's limits or refused images."""
        return self._info_and_limits()[0]

    def ask_limits(self, cancel: CancelToken) -> None:
        """Ask the server for the model's limits, unless they are known or were just asked for. Never raises. Blocks."""
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
        # Turns that no longer change are encoded once and kept; only the others are encoded for each request.
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


# --- what a provider's server states about its models -----------------------------------------------------------------


# Time limits in seconds for fetching the names of a server's models. They are short, because a client that names an
# unknown model waits for the list.
LIST_TIMEOUTS = Timeouts(connect=2, first_byte=3, idle=3, total=5)
# Seconds after which the names may be fetched again, because a server's models change, and a server that was down may
# be back up.
LIST_AGAIN_SECONDS = 10.0
# Time limits in seconds for fetching a model's limits, for which the first request to the model waits.
PATIENCE = Timeouts(connect=3, first_byte=5, idle=5, total=10)
# Seconds before limits are asked for again after a failure.
LIMITS_AGAIN_SECONDS = 60.0
# The path at which Ollama lists the models that it has in memory.
OLLAMA_LOADED = "/api/ps"
# Maximum bytes of a list that are read; OpenRouter's list is half a megabyte.
_MAX_BYTES = 16 << 20
_MAX_NAMES = 5_000

# HTTP statuses that mean that a server has no list of models. A server that answers with one of them is not asked again
# about the same model; after any other error status, it is asked again.
_NO_LIST = frozenset({400, 404, 405, 410, 501})


class Server:
    """A provider and what its server has stated about its models. Thread-safe.

    Only `refresh` and `ask_limits` block; neither raises.
    """

    def __init__(self, client: ProviderClient) -> None:
        self.client = client
        self.provider: ProviderConfig = client.provider
        self.names: tuple[str, ...] | None = None
        """The listed names; None if the server has not been asked yet, or has never answered with a list."""
        self.failure = ""
        """Why the last fetch of the names failed, as the end of a sentence; "" if it succeeded."""
        self.images_refused: set[str] = set()
        """The models for which the provider has refused images since this process started."""
        self._loaded: tuple[str, ...] = ()
        self._listing = threading.Lock()  # held while the list is fetched, so that concurrent callers wait for it
        self._requested_at = float("-inf")
        self._asking_guard = threading.Lock()  # guards _asking; not held while the server is asked
        self._asking: set[str] = set()
        self._limits: dict[str, StatedLimits | None] = {}
        self._failed_at: dict[str, float] = {}

    @property
    def lists(self) -> bool:
        """Whether the server's list determines the provider's models, because the settings name none."""
        return not self.provider.models

    @property
    def default(self) -> str:
        """The provider's default model; "" if it has none, or only a guess that its server does not list.

        The name "default" stands for the server's only model, or its only loaded one.
        """
        if self.presumes(ONLY_MODEL) and not self.has(ONLY_MODEL):
            found = self.names if self.names is not None and len(self.names) == 1 else self._loaded
            if len(found) == 1:
                return found[0]
        return "" if self.refuted else self.provider.default_model

    @property
    def refuted(self) -> bool:
        """Whether the default model was only a guess (`presumed`), and the server's list shows that it is wrong."""
        presumed = self.provider.default_model
        if not self.provider.presumed or self.names is None or self.has(presumed):
            return False
        return presumed != ONLY_MODEL or len(self.names) != 1

    @property
    def stale(self) -> bool:
        """Whether the names were never fetched, or so long ago that they may be fetched again."""
        return time.monotonic() - self._requested_at >= LIST_AGAIN_SECONDS

    def presumes(self, name: str) -> bool:
        return self.provider.presumed and name == self.provider.default_model

    def has(self, name: str) -> bool:
        """Whether the server lists the model; ":latest" may be omitted from Ollama's names."""
        return self.names is not None and (name in self.names or f"{name}:latest" in self.names)

    def refresh(self, cancel: CancelToken) -> None:
        with self._listing:
            if not self.stale:
                return
            names, failure = self._names(self.provider.list_url, cancel)
            loaded: tuple[str, ...] = ()
            if self.provider.presumed and names is not None and len(names) > 1:
                loaded = self._names(self.provider.root_url(OLLAMA_LOADED), cancel)[0] or ()
            if cancel.cancelled:
                return
            self._requested_at = time.monotonic()
            self.names, self.failure, self._loaded = names or self.names, failure, loaded
            if failure:
                log.info("cannot list the models of provider %s: %s", self.provider.name, failure)

    def _names(self, url: str, cancel: CancelToken) -> tuple[tuple[str, ...] | None, str]:
        if self.provider.discover == "never":
            return None, 'discover is set to "never"'
        try:
            status, body = self._fetch(url, LIST_TIMEOUTS, cancel)
            return (None, f"HTTP {status}") if body is None else (listed_in(body), "")
        except TransportError as failed:
            return None, failed.text
        except ModelFailedError as failed:
            return None, failed.failure.message.rstrip(".")
        except ModelAbortedError:
            return None, "the request was cancelled"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, "the response cannot be parsed"

    def _fetch(self, url: str, timeouts: Timeouts, cancel: CancelToken) -> tuple[int, bytes | None]:
        headers = self.client.keys.with_key(cancel).request_headers()
        with self.client.transport.send("GET", url, headers, b"", cancel, timeouts=timeouts) as reply:
            return reply.status, reply.read_all(_MAX_BYTES) if 200 <= reply.status < 300 else None

    def limits(self, model: str) -> StatedLimits | None:
        """The limits that the server has stated for `model`; None if it was not asked, or stated none."""
        return self._limits.get(model)

    def ask_limits(self, model: str, cancel: CancelToken) -> None:
        """Ask the server for the limits of `model`, unless it was already asked, is being asked, or has just failed."""
        with self._asking_guard:
            again = time.monotonic() - self._failed_at.get(model, float("-inf")) >= LIMITS_AGAIN_SECONDS
            if model in self._limits or model in self._asking or not again:
                return
            self._asking.add(model)
        try:
            status, body = self._fetch(self.provider.models_url, PATIENCE, cancel)
            if body is None and status not in _NO_LIST:
                raise TransportError(f"HTTP {status}", ErrorKind.SERVER_ERROR)
            of_loaded = bool(self.provider.loaded_path)
            stated = None if body is None else limits_in_list(body, model, loaded=of_loaded)
            if body is None or not of_loaded or (stated is not None and stated.window is not None):
                self._limits[model] = stated
            # Otherwise this model is not loaded yet, and the server states the windows of loaded models only. The
            # request that follows loads the model, and the request after that asks for its limits again.
        except (
            TransportError,
            ModelFailedError,
            ModelAbortedError,
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ):
            if not cancel.cancelled:
                self._failed_at[model] = time.monotonic()
                log.info("cannot get model limits from provider %s; using defaults", self.provider.name)
        finally:
            with self._asking_guard:
                self._asking.discard(model)


def lists_in(body: bytes) -> list[list[dict[str, Any]]]:
    """The lists of models in a server's answer, with only those entries that are objects.

    The lists are in `data` and `models` (llama.cpp has both), or at the top level. Raises msgspec.DecodeError,
    UnicodeDecodeError or RecursionError.
    """
    found = msgspec.json.decode(body)
    if isinstance(found, dict):
        lists = [found[key] for key in ("data", "models") if isinstance(found.get(key), list)]
    else:
        lists = [found] if isinstance(found, list) else []
    if not lists:
        raise msgspec.DecodeError("not a list of models")
    return [[each for each in map(_entry, entries) if isinstance(each, dict)] for entries in lists]


def _entry(model: object) -> object:
    return {"id": model} if isinstance(model, str) else model


def names_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """The names of an entry in a server's list: its id (or another name if it has no id) and its aliases."""
    aliases = entry.get("aliases")
    name = next((entry[key] for key in ("id", "name", "model_name") if entry.get(key)), None)
    return tuple(filter(_usable, (name, *(aliases if isinstance(aliases, list) else ()))))


def listed_in(body: bytes) -> tuple[str, ...]:
    """The names in a server's list of models, in the server's order. Raises what `lists_in` raises."""
    entries = itertools.chain.from_iterable(lists_in(body))
    names = dict.fromkeys(itertools.chain.from_iterable(map(names_of, entries)))
    return tuple(names)[:_MAX_NAMES]


def _usable(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and bool(name.strip()) and name.isprintable() and len(name) <= 200


# The fields in which servers (of llama.cpp, LM Studio, vLLM, Groq, OpenRouter, GitHub Copilot, Mistral, Anthropic and
# LiteLLM) state a model's window. Fields that describe the running server come first. In Ollama's model_info, the field
# is prefixed with the name of the model's family.
_WINDOWS = (
    "n_ctx", "loaded_context_length", "max_model_len", "context_window", "context_length", "max_context_window_tokens",
    "max_context_length", "max_input_tokens", "n_ctx_train",
)  # fmt: skip
_OUTPUTS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
# The fields that state the window that a model supports, not the one it was loaded with.
_POSSIBLE = frozenset({"max_context_length", "n_ctx_train"})
# The objects inside an entry that may contain these fields; the entry itself may contain them, too.
_PLACES = ("meta", "model_info", "limits", "top_provider")


def limits_in_list(body: bytes, model: str, *, loaded: bool = False) -> StatedLimits | None:
    """The limits that a list states for `model` (in the list, ":latest" may follow the name); None if it states none.

    If the list has a single entry, it is used whatever its name, unless the list has only `loaded` models. Raises what
    `lists_in` raises.
    """
    names = {model, f"{model}:latest"}
    for entries in lists_in(body):
        named = [each for each in entries if names & {*names_of(each), *filter(_is_text, (each.get("name"),))}]
        for entry in (named or (entries if len(entries) == 1 and not loaded else ()))[:1]:
            if stated := _stated(entry, loaded=loaded):
                return stated
    return None


def _stated(entry: dict[str, Any], *, loaded: bool) -> StatedLimits | None:
    inner = [entry.get(place) for place in _PLACES]
    capabilities = entry.get("capabilities")
    if isinstance(capabilities, dict):
        inner.append(capabilities.get("limits"))
    places = [entry, *(place for place in inner if isinstance(place, dict))]
    of_family = [name for place in places for name in place if name.endswith(".context_length")]
    architecture = entry.get("architecture")
    modalities = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    sees = "image" in modalities if isinstance(modalities, list) and any(map(_is_text, modalities)) else None
    stated = StatedLimits(
        window=_count_in(places, (name for name in (*_WINDOWS, *of_family) if not loaded or name not in _POSSIBLE)),
        output=_count_in(places, _OUTPUTS),
        images=True if entry.get("type") == "vlm" else sees,
        price=_price(entry.get("pricing")),
    )
    return stated if stated != StatedLimits() else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _count_in(places: Sequence[dict[str, Any]], names: Iterable[str]) -> int | None:
    return next(filter(None, (token_count(place.get(name)) for name in names for place in places)), None)


def _price(pricing: object) -> Price | None:
    """The prices in an OpenRouter entry (strings, in dollars per token); None unless they are fixed (not negative)."""
    if not isinstance(pricing, dict):
        return None
    names = ("prompt", "completion", "input_cache_read", "input_cache_write")
    prompt, completion, read, write = (_per_million(pricing.get(name)) for name in names)
    return Price(prompt, completion, read, write) if prompt is not None and completion is not None else None


def _per_million(text: object) -> float | None:
    try:
        dollars = float(text) if isinstance(text, str) else -1.0
    except ValueError:
        return None
    return dollars * 1_000_000 if 0 <= dollars < 1 else None
