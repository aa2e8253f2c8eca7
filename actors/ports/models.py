"""Models, and requests to them: one call is one attempt."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from actors.core.content import Content, Image, Usage
from actors.core.context import ToolTraits
from actors.core.history import ProviderView, Turn
from actors.core.profile import Generation, ReasoningEffort
from actors.ports.images import ImageView
from actors.ports.schemas.output_schema import NativeOutput

if TYPE_CHECKING:
    from actors.core.errors import LlmFailure
    from actors.ports.cancellation import CancelToken

#: UTF-8 bytes of the text, reasoning and tool calls of one response: its message must fit into the response size that
#: clients accept.
MAX_MODEL_RESPONSE_BYTES = 1 << 20


class ModelInfo(Struct, frozen=True):
    """A model's identity, capabilities and limits. Limits are in tokens."""

    name: str
    """The name as in the `model` of conversations, without a prefix, e.g. "claude-sonnet-5-5" or "demo"."""
    display_name: str
    provider: str
    protocol: str
    """"anthropic", "openai-chat", "openai-responses" or "demo"."""
    context_window: int
    max_output: int
    usable_window: int
    """min(input limit, context window - reserved output): thresholds refer to this."""
    images: bool = False
    known: bool = True
    """Whether the limits are known; if not, the smallest known window is assumed (REQ-BED-022)."""
    lean: bool = False
    """Whether it processes input slowly: it then gets a short system prompt and only the essential tools."""
    reasoning_efforts: tuple[ReasoningEffort, ...] = ()
    """The efforts that a request can ask for."""
    temperature: bool = False
    """Whether a request can set the temperature."""
    structured_output: bool = False
    """Whether its provider keeps a JSON Schema by itself."""
    answer_limit: int = 0
    """The highest limit that a request can set for its answer, in tokens; 0: it can set none."""


class ToolSpec(Struct, frozen=True):
    """A tool as the model and the state machine see it. Independent of the mode."""

    description: str
    input_schema: dict[str, Any]
    traits: ToolTraits
    essential: bool = False
    """Whether lean models are offered it, too."""
    instant: bool = False
    """Whether it takes less time than the start of a thread: it waits for nothing, and there is nothing to kill."""

    @property
    def name(self) -> str:
        """The name that the model calls the tool by."""
        return self.traits.name


def no_view(_image: Image) -> ImageView | None:
    """Return no view: the model does not take images."""
    return None


class Purpose(StrEnum):
    """The purpose of a request."""

    CONVERSATION = "conversation"
    TITLE = "title"
    """A side query: a one-line title of the conversation."""
    EXCERPTS = "excerpts"
    """A side query: the relevant parts of a long text."""


class ModelRequest(Struct, frozen=True):
    """One attempt of one request."""

    conversation_id: str
    request_id: str
    attempt: int
    system: str
    tools: tuple[ToolSpec, ...]
    """The tools that the model can call; none in the summary request."""
    view: ProviderView
    """The conversation as the model gets it: alternating roles, complete tool rounds."""
    view_of: Callable[[Image], ImageView | None] = no_view
    """Returns the view of an image in the turns, the same bytes each time; None: a text replaces it.

    Reads the store (runner thread). Raises StoreError or ImagesUnavailableError.
    """
    max_output: int = 0
    """Limit of the answer in tokens; 0: the model's own limit."""
    generation: Generation = Generation()
    """How to answer. The model supports all that is set."""
    output: NativeOutput | None = None
    """The schema that the provider is to keep in the last answer of a run; None: none, or it is that of a tool."""
    purpose: Purpose = Purpose.CONVERSATION
    """Only the scripted model uses it."""
    counted_tokens: int = 0
    """How many tokens the provider counted last in the conversation, answer included; 0 before its first answer."""
    cache_key: str = ""
    """The key by which a provider finds the cached prefix, the same for forks of one conversation; "": its id."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the view."""
        return self.view.turns


class SideQuery(Struct, frozen=True):
    """A small request outside of the conversation's runs, to a small model, without tools or history."""

    purpose: Purpose
    system: str
    text: str
    max_output: int
    """Limit of the answer in tokens, its reasoning included."""


class SideQueryError(Exception):
    """A side query failed; the text says why, without a period."""


class ModelAnswer(Struct, frozen=True):
    """A complete answer."""

    content: tuple[Content, ...]
    """Text, Reasoning and ToolUse blocks. Ids of tool uses are unique in the conversation."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    refusal: bool = False


class ModelFailedError(Exception):
    """The attempt failed; the text is for people and contains no secret."""

    def __init__(self, failure: LlmFailure, retry_after_ms: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ModelAbortedError(Exception):
    """The attempt was cancelled. The cancel token decides this, not the exception of the socket."""

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__()
        self.usage = usage
        """The tokens used by then, as the provider had reported or by an estimate; None: no answer had begun."""


class ModelSink(Protocol):
    """Receives an answer as it streams. Called on the thread of `respond`."""

    def started(self) -> None:
        """Record that the stream has started."""
        ...

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Receive the next chunk of text."""
        ...

    def flush(self) -> None:
        """Publish the text received so far, because the model has no more data at the moment.

        Before that call, the start and the text may be buffered. Not called at the end of the answer, which `respond`
        returns.
        """
        ...


class Model(Protocol):
    """A model of a provider. One call of `respond` is one attempt: it never retries."""

    @property
    def info(self) -> ModelInfo:
        """The model's limits. They may change once, when its first or second answer reveals them."""
        ...

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Send the request and block until the answer is complete (runner thread).

        Raises ModelFailedError or ModelAbortedError, what the request's `view_of` raises, and nothing else. Once
        `cancel` is cancelled, the socket is shut down at once and the call returns soon, in every phase.
        """
        ...


class ModelCatalog(Protocol):
    """The models that this server offers. Any thread; only `learn` blocks."""

    @property
    def default(self) -> str:
        """The default model of conversations; "" if there is none. `learn` may change it."""
        ...

    def list(self) -> tuple[ModelInfo, ...]:
        """Return the known models."""
        ...

    def get(self, name: str) -> Model | None:
        """Return the model of a conversation, or None if no provider is known to serve it; never a substitute.

        A model that was accepted before a restart is found if only one provider can have served it.
        """
        ...

    def offers(self, name: str) -> bool:
        """Return whether a conversation can be created with this model, according to present knowledge."""
        ...

    def undecided(self, name: str) -> bool:
        """Return whether to call `learn` for this model first, because the answer of `offers` may be outdated."""
        ...

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Ask the providers that may serve this model which models they have; "": ask all providers.

        Blocks for some seconds per provider at most; never raises.
        """
        ...

    def refusal(self, name: str) -> LlmFailure:
        """Return why no provider serves this model, with the names of those that are served.

        Retryable if a provider that may serve it could not be asked.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Drop what is cached for this conversation: its actor has stopped, or it was deleted."""
        ...

    def small(self, name: str) -> Model | None:
        """Return the model for side queries of conversations with the model `name`; None: make none."""
        ...
