"""The port for language models and requests to them. A `Model` never retries: each call is one attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from actors.common.json_schema import NativeOutput
from actors.core.content import Content, Image, Usage, tokens_of, utf8_size
from actors.core.context import Generation, ReasoningEffort, ToolTraits
from actors.core.errors import LlmFailure
from actors.core.history import ProviderView, Turn
from actors.ports.live_conversations import CancelToken
from actors.ports.workspace import ImageView

# The maximum UTF-8 bytes of the text, reasoning and tool calls in one model response, because the stored message must
# fit into a gRPC message that clients accept.
MAX_MODEL_RESPONSE_BYTES = 1 << 20


# A model with a smaller context window than this, in tokens, gets a short system prompt and short tool descriptions.
SMALL_WINDOW = 16_384


class ModelInfo(Struct, frozen=True):
    """A model's identity, capabilities and limits. Limits are in tokens."""

    name: str
    """The name that conversations use, without a prefix, for example "claude-sonnet-5-5"."""
    display_name: str
    provider: str
    protocol: str
    """The wire protocol of the provider, such as "anthropic"."""
    context_window: int
    max_output: int
    usable_window: int
    """The smaller of the input limit and (context window - reserved output); near it a context counts as full."""
    images: bool = False
    """Whether requests contain images: the model accepts them, or may accept them."""
    images_assumed: bool = False
    """Whether it is only assumed, but not known, that the model accepts images."""
    known: bool = True
    """Whether the model's limits are known; if not, they are only assumed (REQ-BED-022)."""
    lean: bool = False
    """Whether the model reads input slowly: it then gets a short system prompt and only the essential tools."""
    reasoning_efforts: tuple[ReasoningEffort, ...] = ()
    """The reasoning efforts that a request can ask for."""
    temperature: bool = False
    """Whether a request can set the temperature."""
    structured_output: bool = False
    """Whether the provider can enforce a JSON Schema for an answer."""
    answer_limit: int = 0
    """The highest limit that a request can set for the length of its answer, in tokens; 0: a request cannot set one."""

    @property
    def small(self) -> bool:
        return self.context_window < SMALL_WINDOW


class ToolSpec(Struct, frozen=True):
    """The description of a tool, for the model and for the state machine; the same in every permission mode."""

    description: str
    input_schema: dict[str, Any]
    traits: ToolTraits
    essential: bool = False
    """Whether models that read slowly (see `ModelInfo.lean`) are offered the tool, too."""
    instant: bool = False
    """Whether a call only computes, in less time than a commit takes.

    Such a call runs on the conversation's thread, in the unit of work that starts it, and again if that unit fails.
    """
    tokens: int = 0
    """The estimated tokens of the tool's definition in a request; set by `__post_init__`."""

    def __post_init__(self) -> None:
        """Estimate the tokens only once, since every request adds up those of all its tools."""
        texts = (self.name, self.description, json.dumps(self.input_schema))
        force_setattr(self, "tokens", tokens_of(sum(map(utf8_size, texts))))

    @property
    def name(self) -> str:
        return self.traits.name


def fixed_tokens(system: str, tools: Iterable[ToolSpec]) -> int:
    """Estimate the tokens with which each request of a conversation begins: the system prompt and the tools."""
    return tokens_of(utf8_size(system)) + sum(tool.tokens for tool in tools)


def no_view(_image: Image) -> ImageView | None:
    """Return None for every image, because the model does not accept images."""
    return None


class Purpose(StrEnum):
    CONVERSATION = "conversation"
    TITLE = "title"
    EXCERPTS = "excerpts"


class ModelRequest(Struct, frozen=True):
    """One attempt at a model request."""

    conversation_id: str
    request_id: str
    attempt: int
    system: str
    tools: tuple[ToolSpec, ...]
    """The tools that the model can call; () in the request for a summary."""
    view: ProviderView
    """The conversation as the model gets it: roles alternate, and every tool call has its result."""
    view_of: Callable[[Image], ImageView | None] = no_view
    """Returns the copy of an image that is sent to the model, always the same bytes; None if text is sent instead.

    Reads the store, so call it on the request's thread. Raises StoreError or ImagesUnavailableError.
    """
    max_output: int = 0
    """The limit of the answer in tokens; 0: the model's own limit."""
    generation: Generation = Generation()
    """Settings such as the temperature; the model supports those that are set."""
    output: NativeOutput | None = None
    """The schema that the provider must enforce for the run's last answer; None if the run has no output schema, or if
    the model submits the output by calling a tool."""
    purpose: Purpose = Purpose.CONVERSATION
    """What the request is for. Only the demo model and telemetry use this field; providers do not get it."""
    counted_tokens: int = 0
    """The token count that the provider last reported for this conversation, answer included; 0 if none."""
    cache_key: str = ""
    """The key under which the provider caches prompts; a fork uses its original's key. "": the conversation's id."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation's turns, as the model gets them."""
        return self.view.turns


class SideQuery(Struct, frozen=True):
    """A small request to a small model, without tools or history, that is not part of a conversation's runs."""

    purpose: Purpose
    system: str
    text: str
    max_output: int
    """The limit of the answer in tokens, including its reasoning."""


class SideQueryError(Exception):
    """A side query failed; the message says why, without a period."""


class ModelAnswer(Struct, frozen=True):
    """A model's complete answer."""

    content: tuple[Content, ...]
    """Text, Reasoning and ToolUse blocks. The ids of tool calls are unique in the conversation."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    refusal: bool = False
    context_full: bool = False
    """Whether the answer was cut off because the context window has no room left."""


class ModelFailedError(Exception):
    """A model-request attempt failed; the message is human-readable and contains no secret."""

    def __init__(self, failure: LlmFailure, retry_after_ms: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ModelAbortedError(Exception):
    """An attempt was cancelled; raised regardless of the error that the closed socket caused."""

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__()
        self.usage = usage
        """The tokens used before the abort, reported by the provider or estimated; None if no answer had begun."""


class ModelSink(Protocol):
    """Receives an answer as it streams, on the thread of `Model.respond`."""

    def started(self) -> None:
        """Record that the stream has started."""
        ...

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Receive the next chunk of text."""
        ...

    def flush(self) -> None:
        """Publish the buffered start and text, because the model has no more data at the moment.

        Not called at the end, because `respond` returns the whole answer.
        """
        ...


class Model(Protocol):
    """A provider's model. It never retries: each call of `respond` is one attempt."""

    @property
    def info(self) -> ModelInfo:
        """The facts about the model. They may change once its server states limits or its provider refuses images."""
        ...

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Make one request. Blocks until the answer is complete, on the thread of a model runner.

        Raises only ModelFailedError, ModelAbortedError, and the errors of `view_of`. In every phase, a cancel shuts the
        socket at once and soon ends the call.
        """
        ...


class ModelCatalog(Protocol):
    """The models that this server offers. Thread-safe; only `learn` and `measure` block."""

    @property
    def default(self) -> str: ...

    def list(self) -> tuple[ModelInfo, ...]: ...

    def get(self, name: str) -> Model | None:
        """The model with this name, never a substitute; None if no provider is known to serve it.

        Until the providers have been asked for their models, a model counts as known if only one can serve it.
        """
        ...

    def offers(self, name: str) -> bool:
        """Whether a conversation can be created with this model, as far as is known now."""
        ...

    def undecided(self, name: str) -> bool:
        """Whether `learn` must be called for this model before the answer of `offers` can be relied on."""
        ...

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Ask the providers that may serve `name` ("": all) for their models.

        May block for a few seconds per provider; never raises.
        """
        ...

    def measure(self, name: str, cancel: CancelToken) -> None:
        """Ask the provider for the model's unknown limits, unless this was done a moment ago.

        May block for a few seconds; never raises. Call it before a request is built for the model.
        """
        ...

    def refusal(self, name: str) -> LlmFailure:
        """Why no provider serves this model, and which are served; retryable if a provider could not be asked."""
        ...

    def forget(self, conversation_id: str) -> None:
        """Drop cached data for this conversation, because its actor has stopped or it was deleted."""
        ...

    def small(self, name: str) -> Model | None:
        """The small model that writes titles and excerpts for conversations with the model `name`, or None."""
        ...
