"""Code shared by the answer readers of all wire protocols: text buffers, size limits, token counts, final checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.adapters.llm import provider_errors
from actors.adapters.llm.model_limits import ModelLimits
from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.provider import ProviderConfig
from actors.core.content import Content, Reasoning, Text, ToolUse, Usage
from actors.ports import MAX_MODEL_RESPONSE_BYTES, ModelAnswer, ModelFailedError, ModelInfo, ModelRequest, ModelSink

if TYPE_CHECKING:
    from actors.adapters.llm.transport.sse import SseEvent

#: The default of fields of type Raw (undecoded JSON): the value if the provider did not send the field.
ABSENT = Raw(b"")

#: Maximum number of content blocks of one answer. Each block adds some bytes to the message that clients get, and the
#: size of this message is limited, too.
MAX_BLOCKS = 2_048

#: Maximum bytes that one byte of text takes when it is escaped in JSON. The raw JSON of a reasoning block contains its
#: text and other data, so the other data have at least the size of the JSON minus this many times that of the text.
_ESCAPED_BYTES = 6

_MOST_BYTES = f"{MAX_MODEL_RESPONSE_BYTES >> 20} MiB"

#: A token count that a provider has written as a string is ignored if it has this many digits or more.
_DIGITS = 20

#: Higher token counts are reduced to this limit, so that sums of counts fit into 64 bits. No real count reaches it.
MAX_TOKENS = 1 << 40


def is_present(raw: Raw) -> bool:
    """Return whether a field that is kept as undecoded JSON was present and not null."""
    return bytes(raw) not in (b"", b"null")


def token_count(usage: object, *path: str) -> int | None:
    """Return the count at `path` in a provider's token usage, limited to 0..MAX_TOKENS; None if there is no count.

    Whole numbers are accepted in any spelling: 12, 12.0 or "12". Anything else is ignored, so that an invalid usage
    never makes an answer fail.
    """
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(usage, str):
        usage = int(usage) if usage.isascii() and usage.isdigit() and len(usage) < _DIGITS else None
    if isinstance(usage, float):
        usage = int(usage) if usage.is_integer() else None
    if not isinstance(usage, int) or isinstance(usage, bool):
        return None
    return min(max(usage, 0), MAX_TOKENS)


class PreparedRequest(Struct, frozen=True):
    """A request, and what else is needed to encode it and to read its answer: settings and limits of the model."""

    provider: ProviderConfig
    info: ModelInfo
    limits: ModelLimits
    request: ModelRequest

    def reasoning(self, text: str, raw: str = "") -> Reasoning:
        """Return a reasoning block that is marked as written by this model.

        `raw` is the block in the provider's JSON, which later requests send back; "" for none.
        """
        return Reasoning(text, self.info.protocol, self.info.name, raw)

    def can_echo(self, block: Content) -> TypeGuard[Reasoning]:
        """Return whether `block` is reasoning of this model and protocol that can be sent back."""
        return (
            isinstance(block, Reasoning)
            and bool(block.raw)
            and (block.protocol, block.model) == (self.info.protocol, self.info.name)
        )

    def priced(self, usage: Usage | None) -> Usage | None:
        """Return `usage` with its cost set by the model's price (0 if it is unknown); None if `usage` is None."""
        return usage and replace(usage, cost_micros=self.limits.cost_micros(usage))


class Stop(Struct, frozen=True):
    """Why the model stopped, in the same form for all wire protocols."""

    end_turn: bool = True
    truncated: bool = False
    refusal: bool = False
    said: str = ""
    """The provider's explanation of a refusal; "" for none."""
    context_full: bool = False
    """Whether the provider says that the context window is full."""


#: The meaning of the reasons by which providers, and servers in front of them, say that the context window is full.
WINDOW_STOPS = dict.fromkeys(
    ("model_context_window_exceeded", "model_length"), Stop(end_turn=False, truncated=True, context_full=True)
)


class AnswerReader(Protocol):
    """Builds one answer from a stream or a complete body. Not thread-safe; used by the request's thread.

    Each method may raise ModelFailedError, if the provider reports an error or violates the protocol.
    """

    def event(self, event: SseEvent) -> None:
        """Process the next event of the stream."""
        ...

    def whole(self, body: bytes) -> None:
        """Process an answer that came as one JSON body instead of a stream. None of its text is passed to the sink."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the marker of the answer's end has arrived. A stream that ends before this marker is an error."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the stream need not be read any further: the answer has ended, and no token counts can follow."""
        ...

    @property
    def usage(self) -> Usage | None:
        """The token usage reported so far; None if none was reported."""
        ...

    @property
    def size(self) -> ContentSize:
        """The size of the content that has arrived so far."""
        ...

    def answer(self) -> ModelAnswer:
        """Return the answer. Raises ModelFailedError if the marker of its end has not arrived."""
        ...


class ContentSize:
    """The size of one answer's content, and whether it exceeds a limit.

    It is counted while the answer streams, so that an oversized answer is stopped, and again for the complete answer.
    """

    def __init__(self) -> None:
        self.begun = False
        """Whether any part of an answer has arrived."""
        self.bytes = 0
        """Bytes of text, reasoning and tool calls."""
        self._blocks = 0
        self.excess = ""
        """The exceeded limit, as text for users; "" if none is exceeded."""

    @classmethod
    def of(cls, content: tuple[Content, ...]) -> ContentSize:
        """Return the size of complete content."""
        size = cls()
        for block in content:
            size.begin_block()
            match block:
                case Text(text=text):
                    size.add(text)
                case Reasoning(text=text, raw=raw):
                    size.add_bytes(max(utf8_size(text), utf8_size(raw) - _ESCAPED_BYTES * utf8_size(text)))
                case ToolUse(name=name, input=arguments):
                    size.add(name)
                    size.add(arguments)
                case _:
                    pass
        return size

    def begin_block(self) -> None:
        """Count one more content block."""
        self._blocks += 1
        if self._blocks > MAX_BLOCKS:
            self.excess = self.excess or f"{MAX_BLOCKS:,} parts"

    def add(self, text: str) -> None:
        """Count a chunk of text, reasoning or a tool call."""
        self.bytes += len(text) if text.isascii() else utf8_size(text)
        if self.bytes > MAX_MODEL_RESPONSE_BYTES:
            self.excess = _MOST_BYTES

    def add_bytes(self, size: int) -> None:
        """Count `size` bytes of content that is not available as text."""
        self.bytes += size
        if self.bytes > MAX_MODEL_RESPONSE_BYTES:
            self.excess = _MOST_BYTES


def utf8_size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class TextBuffer:
    """Collects the chunks of one block of text or reasoning; also counts each chunk, and passes it to the sink."""

    def __init__(self, sink: ModelSink | None, size: ContentSize, *, reasoning: bool = False) -> None:
        self._sink = sink
        self._size = size
        self._reasoning = reasoning
        self._parts: list[str] = []

    def add(self, text: str | None) -> None:
        """Append a chunk; None and "" are ignored."""
        if text:
            self._parts.append(text)
            self._size.add(text)
            if self._sink is not None:
                self._sink.text(text, reasoning=self._reasoning)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._parts)


def build_answer(
    prepared: PreparedRequest, content: tuple[Content, ...], stop: Stop, usage: Usage | None
) -> ModelAnswer:
    """Check a complete answer and return it.

    Tool calls get ids and inputs that every provider accepts. If the model refused to answer, its tool calls are
    dropped. If an answer consists only of reasoning, its content becomes empty.

    Raises ModelFailedError: content_filter for a refusal without text, response_too_large if the content exceeds the
    limits of one message.
    """
    if excess := ContentSize.of(content).excess:
        raise provider_errors.too_large(prepared.provider, excess, usage)
    blocks = tool_calls.accepted(content, prepared.request)
    if stop.refusal:
        # The refusal may have interrupted a call in the middle of its input.
        blocks = tuple(block for block in blocks if not isinstance(block, ToolUse))
        if not any(isinstance(block, Text) and block.text.strip() for block in blocks):
            raise provider_errors.filtered(prepared.provider, stop.said, usage)
    if all(isinstance(block, Reasoning) for block in blocks):
        blocks = ()
    return ModelAnswer(blocks, stop.end_turn, usage, stop.truncated, stop.refusal, stop.context_full)


def incomplete_answer(prepared: PreparedRequest, usage: Usage | None) -> ModelFailedError:
    """Return the error for a stream that ended before the marker of the answer's end."""
    return provider_errors.broken_answer(prepared.provider, "the answer ended before it was complete", usage)


def malformed_answer(prepared: PreparedRequest, usage: Usage | None = None) -> ModelFailedError:
    """Return the error for an answer that violates the protocol."""
    return provider_errors.broken_answer(prepared.provider, "the answer is malformed", usage)
