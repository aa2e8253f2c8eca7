"""Reads an answer of Anthropic Messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from actors.adapters.llm import provider_errors
from actors.adapters.llm.protocols.answer_builder import (
    ABSENT,
    WINDOW_STOPS,
    ContentSize,
    PreparedRequest,
    Stop,
    TextBuffer,
    build_answer,
    incomplete_answer,
    is_present,
    malformed_answer,
    token_count,
)
from actors.core.content import Content, Text, ToolUse, Usage

if TYPE_CHECKING:
    from actors.adapters.llm.transport.sse import SseEvent
    from actors.ports import ModelAnswer, ModelSink

_INPUT = "input_tokens"
_OUTPUT = "output_tokens"
_CACHE_READ = "cache_read_input_tokens"
_CACHE_WRITE = "cache_creation_input_tokens"


class _Details(Struct):
    category: str | None = None
    explanation: str | None = None


class _Message(Struct):
    """The message in a `message_start` event, or a complete answer."""

    type: str = ""
    content: list[Raw] = []
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: Any = None


class _Delta(Struct):
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: Raw = ABSENT
    delta: _Delta | None = None
    usage: Any = None


class _BlockHead(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)
_BLOCK = msgspec.json.Decoder(_BlockHead)

#: The meaning of the known stop reasons; all others ("end_turn", "stop_sequence", and future ones) end the turn.
_STOPS = {
    "tool_use": Stop(end_turn=False),
    "pause_turn": Stop(end_turn=False),
    "max_tokens": Stop(end_turn=False, truncated=True),
    **WINDOW_STOPS,
}


class _Block:
    """A content block of an answer, built from deltas as they arrive."""

    def __init__(self, raw: Raw, sink: ModelSink | None, size: ContentSize) -> None:
        self._raw = bytes(raw)
        self._head = _BLOCK.decode(self._raw)
        self._size = size
        size.begin_block()
        self._text = TextBuffer(sink, size, reasoning=self._head.type == "thinking")
        self._input: list[str] = []
        self._signature: str | None = None
        self._text.add(self._head.thinking if self._head.type == "thinking" else self._head.text)

    def add(self, delta: _Delta) -> None:
        if delta.text:
            self._text.add(delta.text)
        if delta.thinking:
            self._text.add(delta.thinking)
        if delta.partial_json:
            self._input.append(delta.partial_json)
            self._size.add(delta.partial_json)
        if delta.signature:
            self._signature = delta.signature

    def content(self, prepared: PreparedRequest) -> Content | None:
        head = self._head
        match head.type:
            case "text":
                return Text(self._text.text) if self._text.text else None
            case "thinking":
                return prepared.reasoning(self._text.text, self._thinking())
            case "redacted_thinking":
                return prepared.reasoning("", self._raw.decode())
            case "tool_use":
                given = bytes(head.input).decode() if is_present(head.input) else "{}"
                return ToolUse(head.id or "", head.name or "", "".join(self._input) or given)
            case _:
                return None

    def _thinking(self) -> str:
        """Return this reasoning block as JSON, in the form in which later requests send it back.

        If the provider sent the whole block at once, these are the provider's bytes; otherwise the block is built from
        its deltas.
        """
        if self._signature is None and self._text.text == (self._head.thinking or ""):
            return self._raw.decode()
        block: dict[str, Any] = msgspec.json.decode(self._raw)
        block["thinking"] = self._text.text
        if self._signature is not None:
            block["signature"] = self._signature
        return msgspec.json.encode(block).decode()


class AnthropicReader:
    """Reads one answer of Anthropic Messages; implements answer_builder.AnswerReader."""

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        self._prepared = prepared
        self._sink = sink
        self._blocks: dict[int, _Block] = {}
        self._stop_reason: str | None = None
        self._details: _Details | None = None
        self._counts: dict[str, int] | None = None
        self.finished = False
        self.size = ContentSize()

    @property
    def complete(self) -> bool:
        """Whether the stop reason has arrived: the content is complete then, and only token counts can follow."""
        return self._stop_reason is not None

    def event(self, event: SseEvent) -> None:
        """Process the next event of the stream. Raises ModelFailedError."""
        try:
            decoded = _EVENT.decode(event.data)
            if decoded.type == "content_block_delta" and decoded.delta and decoded.index in self._blocks:
                self._blocks[decoded.index].add(decoded.delta)  # quicker than `_take`, which does the same
            else:
                self._take(decoded.type or event.name, decoded, event.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed_answer(self._prepared, self.usage) from None

    def _take(self, kind: str, event: _Event, data: bytes) -> None:
        match kind:
            case "message_start" if event.message:
                self._count(event.message.usage)
            case "content_block_start":
                self._blocks[event.index] = _Block(event.content_block, self._sink, self.size)
            case "content_block_delta" if event.delta and event.index in self._blocks:
                self._blocks[event.index].add(event.delta)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._stopped(event.delta.stop_reason, event.delta.stop_details)
            case "message_stop":
                if self._stop_reason is None:
                    raise incomplete_answer(self._prepared, self.usage)
                self.finished = True
            case "error":
                raise provider_errors.stream_error(self._prepared.provider, data, self.usage)
            case _:
                pass  # ignore pings, ends of blocks, and events of future versions

    def whole(self, body: bytes) -> None:
        """Process an answer that came as one JSON body instead of a stream. Raises ModelFailedError."""
        try:
            message = _MESSAGE.decode(body)
            if message.type == "error":
                raise provider_errors.stream_error(self._prepared.provider, body)
            self._blocks = {index: _Block(raw, None, self.size) for index, raw in enumerate(message.content)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed_answer(self._prepared) from None
        self._count(message.usage)
        self._stopped(message.stop_reason, message.stop_details)
        self.finished = self.complete

    def answer(self) -> ModelAnswer:
        """Return the answer. Raises ModelFailedError if the marker of its end has not arrived."""
        if not self.complete:
            raise incomplete_answer(self._prepared, self.usage)
        blocks = (self._blocks[index].content(self._prepared) for index in sorted(self._blocks))
        stop = _STOPS.get(self._stop_reason or "", Stop())
        if self._stop_reason == "refusal":
            details = self._details or _Details()
            stop = Stop(refusal=True, said=details.explanation or details.category or "")
        return build_answer(self._prepared, tuple(block for block in blocks if block is not None), stop, self.usage)

    def _stopped(self, reason: str | None, details: _Details | None) -> None:
        self._stop_reason = reason or self._stop_reason
        self._details = details or self._details

    def _count(self, usage: object) -> None:
        """Update the token counts from one of several reports: each replaces the counts that it contains."""
        if not isinstance(usage, dict):
            return
        found = {field: token_count(usage, field) for field in (_INPUT, _OUTPUT, _CACHE_READ, _CACHE_WRITE)}
        self._counts = (self._counts or {}) | {field: count for field, count in found.items() if count is not None}

    @property
    def usage(self) -> Usage | None:
        """The token usage reported so far; None if none was reported."""
        if self._counts is None:
            return None
        counts = (self._counts.get(field, 0) for field in (_INPUT, _OUTPUT, _CACHE_READ, _CACHE_WRITE))
        return self._prepared.priced(Usage(*counts))
