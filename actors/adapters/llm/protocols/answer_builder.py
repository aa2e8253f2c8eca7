"""An answer as it takes shape: what the readers of all protocols share."""

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

#: Default of a field that is kept as JSON text.
ABSENT = Raw(b"")

#: Of one answer. What a message takes beside its texts has to fit into what clients take, too.
MAX_BLOCKS = 2_048

#: That JSON needs for one byte of text, at most. A longer raw block holds more than its text: that counts instead.
_ESCAPED_BYTES = 6

#: Of a count that is written as a text.
_DIGITS = 20

#: No answer has that many tokens. Sums of such counts fit everywhere where numbers have 64 bits.
MAX_TOKENS = 1 << 40


def is_present(raw: Raw) -> bool:
    """Whether a field kept as JSON text was there and not null."""
    return bytes(raw) not in (b"", b"null")


def token_count(usage: object, *path: str) -> int | None:
    """The count at `path` of a provider's usage, as one that can be stored, added and sent; None without one.

    A whole number counts however it is written: 12, 12.0 or "12". Anything else says nothing: usage never costs an
    answer.
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
    """Who was prepared, and what."""

    provider: ProviderConfig
    info: ModelInfo
    limits: ModelLimits
    request: ModelRequest

    def reasoning(self, text: str, raw: str = "") -> Reasoning:
        """Return reasoning marked as this model's; `raw` is what the provider wants back, "" for nothing."""
        return Reasoning(text, self.info.protocol, self.info.name, raw)

    def can_echo(self, block: Content) -> TypeGuard[Reasoning]:
        """Whether `block` is reasoning that this very model can read back over this protocol."""
        return (
            isinstance(block, Reasoning)
            and bool(block.raw)
            and (block.protocol, block.model) == (self.info.protocol, self.info.name)
        )

    def priced(self, usage: Usage | None) -> Usage | None:
        """`usage` with what it costs by the price list, where there is one."""
        return usage and replace(usage, cost_micros=self.limits.cost_micros(usage))


class Stop(Struct, frozen=True):
    """Why the model stopped, in the machine's terms."""

    end_turn: bool = True
    truncated: bool = False
    refusal: bool = False
    said: str = ""
    """The provider's explanation of a refusal."""


class AnswerReader(Protocol):
    """Builds one answer from a stream or from a whole body. Not thread-safe; the request's own thread.

    Each method raises ModelFailedError when the provider reports an error or cannot be understood.
    """

    def event(self, event: SseEvent) -> None:
        """Take the next event of the stream."""
        ...

    def whole(self, body: bytes) -> None:
        """Take a plain JSON answer; the sink stays untouched (C47)."""
        ...

    @property
    def complete(self) -> bool:
        """The terminal marker is here: a close is a proper end from now on."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing of interest can follow."""
        ...

    @property
    def usage(self) -> Usage | None:
        """Return what has been counted so far."""
        ...

    @property
    def size(self) -> ContentSize:
        """How much content has arrived by now."""
        ...

    def answer(self) -> ModelAnswer:
        """The answer; raises ModelFailedError if it has no proper end."""
        ...


class ContentSize:
    """Count the content of one answer: while it streams, to stop an oversized one, and when it is complete."""

    def __init__(self) -> None:
        self._bytes = 0
        self._blocks = 0

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
                    size._bytes += max(_utf8_size(text), _utf8_size(raw) - _ESCAPED_BYTES * _utf8_size(text))
                case ToolUse(name=name, input=arguments):
                    size.add(name)
                    size.add(arguments)
                case _:
                    pass
        return size

    def begin_block(self) -> None:
        """Count a block."""
        self._blocks += 1

    def add(self, text: str) -> None:
        """Count a piece of text, reasoning or tool call."""
        self._bytes += _utf8_size(text)

    @property
    def excess(self) -> str:
        """The limit that is exceeded, for people; "" if none is."""
        if self._bytes > MAX_MODEL_RESPONSE_BYTES:
            return f"{MAX_MODEL_RESPONSE_BYTES >> 20} MiB"
        return f"{MAX_BLOCKS:,} parts" if self._blocks > MAX_BLOCKS else ""


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class TextBuffer:
    """One text or reasoning as it arrives; counts it and passes it on at once."""

    def __init__(self, sink: ModelSink | None, size: ContentSize, *, reasoning: bool = False) -> None:
        self._sink = sink
        self._size = size
        self._reasoning = reasoning
        self._parts: list[str] = []

    def add(self, text: str | None) -> None:
        if text:
            self._parts.append(text)
            self._size.add(text)
            if self._sink is not None:
                self._sink.text(text, reasoning=self._reasoning)

    @property
    def text(self) -> str:
        return "".join(self._parts)


def build_answer(
    prepared: PreparedRequest, content: tuple[Content, ...], stop: Stop, usage: Usage | None
) -> ModelAnswer:
    """Judge a complete answer (C24 to C26): calls as every provider takes them, none in a refused answer.

    Raises ModelFailedError: content_filter for a refusal without text, response_too_large for more than a message may
    hold.
    """
    if excess := ContentSize.of(content).excess:
        raise provider_errors.too_large(prepared.provider, excess, usage)
    blocks = tool_calls.accepted(content, prepared.request)
    if stop.refusal:
        # It stopped wherever it was: a call may lack its end.
        blocks = tuple(block for block in blocks if not isinstance(block, ToolUse))
        if not any(isinstance(block, Text) and block.text.strip() for block in blocks):
            raise provider_errors.filtered(prepared.provider, stop.said, usage)
    if all(isinstance(block, Reasoning) for block in blocks):
        blocks = ()
    return ModelAnswer(blocks, stop.end_turn, usage, stop.truncated, stop.refusal)


def incomplete_answer(prepared: PreparedRequest, usage: Usage | None) -> ModelFailedError:
    """A stream that closed before its terminal marker."""
    return provider_errors.broken_answer(prepared.provider, "the answer ended before it was complete", usage)


def malformed_answer(prepared: PreparedRequest, usage: Usage | None = None) -> ModelFailedError:
    """Bytes that are not of this protocol."""
    return provider_errors.broken_answer(prepared.provider, "the answer is malformed", usage)
