"""The port for language models and requests to them. A `Model` never retries: each call is one attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from actors.core.content import Content, Image, Usage
from actors.core.context import Generation, ReasoningEffort, ToolTraits
from actors.core.history import ProviderView, Turn
from actors.core.thresholds import tokens_of, utf8_size
from actors.ports.json_schema import NativeOutput
from actors.ports.workspace import ImageView

if TYPE_CHECKING:
    from actors.core.errors import LlmFailure
    from actors.ports.live_conversations import CancelToken

#: Maximum UTF-8 bytes of the text, reasoning and tool calls of one model response, because its message must fit into a
#: gRPC message that clients accept.
MAX_MODEL_RESPONSE_BYTES = 1 << 20


#: A model with a smaller context window than this, in tokens, gets a short system prompt and briefer tools.
SMALL_WINDOW = 16_384


class ModelInfo(Struct, frozen=True):
    """A model's identity, capabilities and limits. Limits are in tokens."""

    name: str
    """The name that conversations use for the model, without a prefix, for example "claude-sonnet-5-5" or "demo"."""
    display_name: str
    provider: str
    protocol: str
    """The protocol of its provider: "anthropic", "openai-chat", "openai-responses" or "demo"."""
    context_window: int
    max_output: int
    usable_window: int
    """The smaller of the input limit and (context window - reserved output); near it a context counts as full."""
    images: bool = False
    """Whether requests contain images: the model takes them, or it is not known whether it does."""
    images_assumed: bool = False
    """Whether it is not known that the model takes images, but only assumed."""
    known: bool = True
    """Whether the model's limits are known. If not, others are assumed (REQ-BED-022)."""
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
        """Whether the window is so small that system prompt and tools are cut to half."""
        return self.context_window < SMALL_WINDOW


class ToolSpec(Struct, frozen=True):
    """The description of a tool, for the model and for the state machine; the same in every permission mode."""

    description: str
    input_schema: dict[str, Any]
    traits: ToolTraits
    essential: bool = False
    """Whether models that read slowly (see `ModelInfo.lean`) are offered the tool, too."""
    instant: bool = False
    """Whether a call only computes its output from its arguments, in less time than a commit takes.

    Such calls run on the conversation's thread, in the unit of work that starts them, and once more if it fails.
    """
    tokens: int = 0
    """The estimated tokens of its definition in a request; set here."""

    def __post_init__(self) -> None:
        """Estimate the tokens once, since every request counts those of all its tools."""
        texts = (self.name, self.description, json.dumps(self.input_schema))
        force_setattr(self, "tokens", tokens_of(sum(map(utf8_size, texts))))

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        return self.traits.name


def fixed_tokens(system: str, tools: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of what each request of a conversation begins with: the system prompt and the tools."""
    return tokens_of(utf8_size(system)) + sum(tool.tokens for tool in tools)


def no_view(_image: Image) -> ImageView | None:
    """Return None, because no copy of the image can be sent to a model that does not accept images."""
    return None


class Purpose(StrEnum):
    """The purpose of a model request."""

    CONVERSATION = "conversation"
    TITLE = "title"
    """A request outside of the conversation's runs, for a one-line title of the conversation."""
    EXCERPTS = "excerpts"
    """A request outside of the conversation's runs, for the relevant parts of a long text."""


class ModelRequest(Struct, frozen=True):
    """One attempt of one model request."""

    conversation_id: str
    request_id: str
    attempt: int
    system: str
    tools: tuple[ToolSpec, ...]
    """The tools that the model can call; () in the request for a summary."""
    view: ProviderView
    """The conversation as the model gets it: roles alternate, and every tool call has its result."""
    view_of: Callable[[Image], ImageView | None] = no_view
    """Returns the copy of an image to send to the model, always the same bytes; None: send a text instead.

    Call it only on the thread that makes the request, because it reads the store. Raises StoreError or
    ImagesUnavailableError.
    """
    max_output: int = 0
    """The limit of the answer in tokens; 0: the model's own limit."""
    generation: Generation = Generation()
    """The settings for generating the answer, such as the temperature; the model supports those that are set."""
    output: NativeOutput | None = None
    """The output schema that the provider must enforce for the run's last answer.

    None if the run has no output schema, or if the model must pass its output to a tool instead.
    """
    purpose: Purpose = Purpose.CONVERSATION
    """What the request is for. Only the demo model and telemetry use this field; providers do not get it."""
    counted_tokens: int = 0
    """The token count that the provider last reported for this conversation, including the answer; 0 if none."""
    cache_key: str = ""
    """The key by which a provider finds the cached beginnings of requests; "": use the conversation's id.

    A fork of a conversation has the key of its original, because both begin with the same messages.
    """

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
    """A side query failed; the text says why, without a period."""


class ModelAnswer(Struct, frozen=True):
    """A complete answer of a model."""

    content: tuple[Content, ...]
    """Text, Reasoning and ToolUse blocks. The ids of tool calls are unique in the conversation."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    refusal: bool = False
    context_full: bool = False
    """Whether the answer was cut off because the context window has no room left."""


class ModelFailedError(Exception):
    """An attempt of a model request failed; the text is human-readable and contains no secret."""

    def __init__(self, failure: LlmFailure, retry_after_ms: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ModelAbortedError(Exception):
    """An attempt was cancelled.

    Raised whenever the cancel token is cancelled, whatever error the closed socket caused.
    """

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__()
        self.usage = usage
        """The tokens used before the abort, reported by the provider or estimated; None if no answer had begun."""


class ModelSink(Protocol):
    """Receives an answer while it streams. Called on the thread that called `Model.respond`."""

    def started(self) -> None:
        """Record that the stream has started."""
        ...

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Receive the next chunk of text."""
        ...

    def flush(self) -> None:
        """Publish the text received so far, because the model has no more data at the moment.

        Until this call, the start of the stream and the text may be buffered. This method is not called at the end of
        the answer, because `respond` returns the whole answer.
        """
        ...


class Model(Protocol):
    """A model of a provider. It never retries: each call of `respond` is one attempt."""

    @property
    def info(self) -> ModelInfo:
        """The model's name, capabilities and limits.

        The limits may change once, when the model's server has stated them. `images` becomes False when the
        provider refuses images.
        """
        ...

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Send the request and block until the answer is complete. Called on the thread of a model runner.

        Raises ModelFailedError or ModelAbortedError, what the request's `view_of` raises, and nothing else. Once
        `cancel` is cancelled, the socket is shut down at once and the call returns soon, in every phase.
        """
        ...


class ModelCatalog(Protocol):
    """The models that this server offers. Safe to call from any thread; only `learn` blocks."""

    @property
    def default(self) -> str:
        """The default model of conversations; "" if there is none. `learn` may change it."""
        ...

    def list(self) -> tuple[ModelInfo, ...]:
        """Return the known models."""
        ...

    def get(self, name: str) -> Model | None:
        """Return the model with this name, never a substitute; None if it is not known which provider serves it.

        If the providers were not asked for their models yet, as after a restart, this is known if only one provider
        can serve the model.
        """
        ...

    def offers(self, name: str) -> bool:
        """Return whether a conversation can be created with this model, as far as is known now."""
        ...

    def undecided(self, name: str) -> bool:
        """Return whether `learn` must be called for this model before the answer of `offers` can be relied on."""
        ...

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Ask those providers that may serve the model `name` which models they have; "": ask all providers.

        Blocks for at most some seconds per provider; never raises.
        """
        ...

    def measure(self, name: str, cancel: CancelToken) -> None:
        """Ask the provider of a known model for the model's limits, unless they are known or it was just asked.

        Call it before a request is built for the model. Blocks for at most some seconds; never raises.
        """
        ...

    def refusal(self, name: str) -> LlmFailure:
        """Return why no provider serves this model, with the names of the models that are served.

        The failure is retryable if a provider that may serve the model could not be asked.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Drop cached data for this conversation, because its actor has stopped or it was deleted."""
        ...

    def small(self, name: str) -> Model | None:
        """Return the small model that writes titles and excerpts for conversations with the model `name`, or None."""
        ...
