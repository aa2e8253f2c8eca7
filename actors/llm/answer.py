"""An answer as it takes shape: what both protocols' readers share."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, Struct

from actors.core.content import Content, Reasoning, Text, ToolUse, Usage
from actors.llm import failures, tool_calls
from actors.llm.limits import ModelLimits
from actors.llm.provider import ProviderConfig
from actors.llm.sse import SseEvent
from actors.ports import ModelAnswer, ModelFailed, ModelInfo, ModelRequest, ModelSink

#: Default of a field that is kept as JSON text.
ABSENT = Raw(b"")

#: Of an answer's text, reasoning and tool calls: its message has to fit into what clients take at once.
MAX_CONTENT_BYTES = 1 << 20

#: Counted for every block beside what is in it.
BLOCK_BYTES = 512

#: No answer has that many tokens. Sums of such counts fit everywhere where numbers have 64 bits.
MAX_TOKENS = 1 << 40


def is_present(raw: Raw) -> bool:
    """Whether a field kept as JSON text was there and not null."""
    return bytes(raw) not in (b"", b"null")


def tokens(counted: int | None) -> int:
    """A provider's count as one that can be stored, added and sent, whatever it says."""
    return min(max(counted or 0, 0), MAX_TOKENS)


class Asked(Struct, frozen=True):
    """Who was asked, and what."""

    provider: ProviderConfig
    info: ModelInfo
    limits: ModelLimits
    request: ModelRequest


class Stop(Struct, frozen=True):
    """Why the model stopped, in the machine's terms."""

    end_turn: bool = True
    truncated: bool = False
    refusal: bool = False
    said: str = ""
    """The provider's explanation of a refusal."""


class AnswerReader(Protocol):
    """Builds one answer from a stream or from a whole body. Not thread-safe; the request's own thread.

    Each method raises ModelFailed when the provider reports an error or cannot be understood.
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

    def answer(self) -> ModelAnswer:
        """The answer; raises ModelFailed if it has no proper end."""
        ...


class Piece:
    """One text or reasoning as it arrives; passes it on at once."""

    def __init__(self, sink: ModelSink | None, *, reasoning: bool = False) -> None:
        self._sink = sink
        self._reasoning = reasoning
        self._parts: list[str] = []

    def add(self, text: str | None) -> None:
        if text:
            self._parts.append(text)
            if self._sink is not None:
                self._sink.text(text, reasoning=self._reasoning)

    @property
    def text(self) -> str:
        return "".join(self._parts)


def conclude(asked: Asked, content: tuple[Content, ...], stop: Stop, usage: Usage | None) -> ModelAnswer:
    """Judge a complete answer (C24 to C26): ids made unique, calls of a refused answer dropped, costs added.

    Raises ModelFailed: content_filter for a refusal without text, server_error for more than a message may hold.
    """
    if usage is not None:
        usage = usage + Usage(cost_micros=asked.limits.cost_micros(usage))
    if sum(map(_size, content)) > MAX_CONTENT_BYTES:
        raise failures.broken_off(asked.provider, f"the answer holds more than {MAX_CONTENT_BYTES >> 20} MiB", usage)
    calls = iter(tool_calls.unique((b for b in content if isinstance(b, ToolUse)), asked.request))
    blocks = tuple(next(calls) if isinstance(block, ToolUse) else block for block in content)
    if stop.refusal:
        # It stopped wherever it was: a call may lack its end.
        blocks = tuple(block for block in blocks if not isinstance(block, ToolUse))
        if not any(isinstance(block, Text) and block.text.strip() for block in blocks):
            raise failures.filtered(asked.provider, stop.said, usage)
    if all(isinstance(block, Reasoning) for block in blocks):
        blocks = ()
    return ModelAnswer(blocks, stop.end_turn, usage, stop.truncated, stop.refusal)


def _size(block: Content) -> int:
    match block:
        case Text(text=text):
            return BLOCK_BYTES + len(text.encode())
        case Reasoning(text=text, raw=raw):
            return BLOCK_BYTES + len((raw or text).encode())
        case ToolUse(name=name, input=arguments):
            return BLOCK_BYTES + len(name.encode()) + len(arguments.encode())
        case _:
            return BLOCK_BYTES


def no_end(asked: Asked, usage: Usage | None) -> ModelFailed:
    """A stream that closed before its terminal marker."""
    return failures.broken_off(asked.provider, "the answer ended before it was complete", usage)


def nonsense(asked: Asked, usage: Usage | None = None) -> ModelFailed:
    """Bytes that are not of this protocol."""
    return failures.broken_off(asked.provider, "the answer is malformed", usage)
