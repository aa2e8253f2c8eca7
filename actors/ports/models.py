"""Models that can be asked, one attempt at a time."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from actors.core.content import Content, Image, Usage
from actors.core.context import ToolTraits
from actors.core.history import Turn
from actors.ports.images import ImageView

if TYPE_CHECKING:
    from actors.core.errors import LlmFailure
    from actors.ports.cancellation import CancelToken

#: Bytes in UTF-8 of one response's text, reasoning and tool calls: its message has to fit into what clients take.
MAX_MODEL_RESPONSE_BYTES = 1 << 20


class ModelInfo(Struct, frozen=True):
    """What is known about a model before it is asked anything. Tokens throughout."""

    name: str
    """As in conversations' `model`, without a prefix: e.g. "claude-sonnet-5-5" or "demo"."""
    display_name: str
    provider: str
    protocol: str
    """"anthropic", "openai-chat", "openai-responses" or "demo"."""
    context_window: int
    max_output: int
    usable_window: int
    """min(input limit, context window minus reserved output): thresholds count against this."""
    images: bool = False
    known: bool = True
    """False: limits are the smallest known window (REQ-BED-022)."""
    lean: bool = False
    """It is slow to read: it is told little before a conversation begins, and offered the essential tools only."""


class ToolSpec(Struct, frozen=True):
    """A tool as the model and the machine see it. Never varies with the mode."""

    description: str
    input_schema: dict[str, Any]
    traits: ToolTraits
    essential: bool = False
    """Offered to lean models too."""

    @property
    def name(self) -> str:
        """The name that the model calls the tool by."""
        return self.traits.name


def no_view(_image: Image) -> ImageView | None:
    """Show no image."""
    return None


class Purpose(StrEnum):
    """What a request is for."""

    CONVERSATION = "conversation"
    TITLE = "title"
    """Beside a conversation: what it is about, in a line."""
    EXCERPTS = "excerpts"
    """Beside a conversation: what matters of something long."""


class ModelRequest(Struct, frozen=True):
    """One attempt of one request."""

    conversation_id: str
    request_id: str
    attempt: int
    system: str
    tools: tuple[ToolSpec, ...]
    """Empty for the tool-less summary request."""
    turns: tuple[Turn, ...]
    """From core.history.provider_view: alternating roles, complete tool rounds."""
    view_of: Callable[[Image], ImageView | None] = no_view
    """What a model that takes images sees of one in `turns`, the same bytes each time; None: a text stands in for it.
    Reads the store (runner thread). Raises StoreError or ImagesUnavailableError."""
    max_output: int = 0
    """Tokens that the answer may have; 0: what the model's limits allow."""
    purpose: Purpose = Purpose.CONVERSATION
    """What the answer is for. Only the scripted model looks at it."""


class SideQuery(Struct, frozen=True):
    """A small request beside a conversation, for a small model: no tools, no history."""

    purpose: Purpose
    system: str
    text: str
    max_output: int
    """Tokens that the answer may have, its reasoning included."""


class SideQueryError(Exception):
    """An aside was not answered; the text says why, without a period."""


class ModelAnswer(Struct, frozen=True):
    """A whole answer."""

    content: tuple[Content, ...]
    """Text, Reasoning, ToolUse; ids of tool uses are unique in the conversation."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    refusal: bool = False


class ModelFailedError(Exception):
    """The attempt failed; the text is for people and holds no secret."""

    def __init__(self, failure: LlmFailure, retry_after_ms: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ModelAbortedError(Exception):
    """The cancel token was pulled. Decided by the token, never by what the socket raised."""

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__()
        self.usage = usage
        """What the provider had counted by then."""


class ModelSink(Protocol):
    """Where an answer goes while it arrives. Called on the thread of `respond`."""

    def started(self) -> None:
        """The answer's stream has begun."""
        ...

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """The next piece of text."""
        ...


class Model(Protocol):
    """A model that can be asked. One call of `respond` is one attempt: it never retries."""

    @property
    def info(self) -> ModelInfo:
        """Its limits may become known when it is asked for the first or second time."""
        ...

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Ask, and block until the whole answer is there (runner thread).

        Raises ModelFailedError or ModelAbortedError, what the request's `view_of` raises, and nothing else. Once
        `cancel` is pulled its socket is shut at once and the call returns soon, in whatever phase it is; nobody waits
        for it.
        """
        ...


class ModelCatalog(Protocol):
    """The models that this server offers. Any thread."""

    @property
    def default(self) -> str:
        """The model of conversations that name none; "" if they have to name one. `learn` may change it."""
        ...

    def list(self) -> tuple[ModelInfo, ...]: ...

    def get(self, name: str) -> Model | None:
        """The model of a conversation, or None if nobody is known to serve it; never a substitute. Never waits.

        It may have been accepted before a restart: where only one provider can have served it, it is that one's.
        """
        ...

    def offers(self, name: str) -> bool:
        """Whether a conversation may begin with this model, as far as is known. Never waits."""
        ...

    def undecided(self, name: str) -> bool:
        """Whether providers may know better than `offers`, so that `learn` should ask them first. Never waits."""
        ...

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Ask the providers that may serve this model which models they have; "": all that can be asked. Waits some
        seconds for each of them at most; never raises."""
        ...

    def refusal(self, name: str) -> LlmFailure:
        """Why nobody serves this model, with the names of those that are served; passing if a provider that may serve
        it could not be asked."""
        ...

    def forget(self, conversation_id: str) -> None:
        """Keep nothing in memory of what this conversation asked: it has gone to sleep, or was deleted. Never waits."""
        ...

    def small(self, name: str) -> Model | None:
        """The model for small requests beside a conversation with the model `name`; None: none are to be made."""
        ...
