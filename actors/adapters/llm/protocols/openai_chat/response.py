"""Reads an answer of OpenAI Chat Completions, from all servers that implement this protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

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


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    """A delta in a stream, or the message of a complete answer."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    """A chunk of a stream, or a complete answer."""

    choices: list[_Choice] | None = None
    usage: Any = None
    error: Raw = ABSENT


_CHUNK = msgspec.json.Decoder(_Chunk)
_DONE = b"[DONE]"
_CACHE_READ = (("prompt_tokens_details", "cached_tokens"), ("prompt_cache_hit_tokens",), ("cached_tokens",))

#: An upper limit in dollars for the reported cost of an answer; a higher cost is an error of the server and is ignored.
MAX_COST = 1_000_000

_CUT = Stop(end_turn=False, truncated=True)
_REFUSED = Stop(refusal=True)

#: The meaning of the known stop reasons; all others ("stop", and those of other servers) end the turn.
_STOPS = {
    "tool_calls": Stop(end_turn=False),
    "function_call": Stop(end_turn=False),
    "length": _CUT,
    "max_tokens": _CUT,
    **WINDOW_STOPS,
    "content_filter": _REFUSED,
    "safety": _REFUSED,
    "recitation": _REFUSED,
    "sensitive": _REFUSED,
}

#: The stop reasons by which a server reports that it failed, although it closed the stream properly.
_BROKEN = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})


class _Call:
    def __init__(self, size: ContentSize) -> None:
        self.id = ""
        self.name = ""
        self._size = size
        size.begin_block()
        self._arguments: list[str] = []

    def add(self, delta: _CallDelta) -> None:
        """Append a delta. The call keeps the first id and the first name that are not empty."""
        self.id = self.id or delta.id or ""
        if delta.function is not None:
            self.name = self.name or delta.function.name or ""
            arguments = delta.function.arguments or ""
            self._arguments.append(arguments)
            self._size.add(arguments)

    def content(self) -> ToolUse:
        return ToolUse(self.id, self.name, "".join(self._arguments) or "{}")


class OpenAiChatReader:
    """Reads one answer of OpenAI Chat Completions; implements answer_builder.AnswerReader."""

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        self._prepared = prepared
        self._start(sink)
        self._finish_reason: str | None = None
        self._refused = False
        self.usage: Usage | None = None
        self.finished = False

    def _start(self, sink: ModelSink | None) -> None:
        self.size = ContentSize()
        self._text = TextBuffer(sink, self.size)
        self._reasoning = TextBuffer(sink, self.size, reasoning=True)
        self._reasoning_key = "reasoning_content"
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}

    @property
    def complete(self) -> bool:
        """Whether the marker of the answer's end has arrived: a finish reason, or "[DONE]"."""
        return self._finish_reason is not None or self.finished

    def event(self, event: SseEvent) -> None:
        """Process the next event of the stream. Raises ModelFailedError."""
        if event.data.strip() == _DONE:
            self.finished = True
            return
        for choice in self._decode(event.data):
            if choice.index == 0:
                self._take(choice.delta or choice.message)
                self._finish_reason = choice.finish_reason or self._finish_reason

    def whole(self, body: bytes) -> None:
        """Process an answer that came as one JSON body instead of a stream. Raises ModelFailedError."""
        self._start(None)
        for choice in self._decode(body)[:1]:
            self._take(choice.message or choice.delta)
            self._finish_reason = choice.finish_reason

    def answer(self) -> ModelAnswer:
        """Return the answer. Raises ModelFailedError if the marker of its end is missing or reports a failure."""
        content = self._content()
        if self._finish_reason is None and not (self.finished and content):
            raise incomplete_answer(self._prepared, self.usage)
        reason = (self._finish_reason or "").lower()
        if reason in _BROKEN:
            raise provider_errors.broken_answer(
                self._prepared.provider, f"the answer ended with {reason!r}", self.usage
            )
        stop = _STOPS.get(reason, Stop())
        if self._calls and not stop.truncated and not stop.refusal:
            # Some servers report "stop" instead of "tool_calls" as the reason for an answer that ends with tool calls.
            stop = Stop(end_turn=False)
        if self._refused:
            stop = Stop(refusal=True)
        return build_answer(self._prepared, content, stop, self.usage)

    def _decode(self, data: bytes) -> list[_Choice]:
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed_answer(self._prepared, self.usage) from None
        if is_present(chunk.error):
            raise provider_errors.stream_error(self._prepared.provider, data, self.usage)
        if chunk.usage is not None:
            self.usage = self._counted(chunk.usage)
        return chunk.choices or []

    def _take(self, delta: _Delta | None) -> None:
        if delta is None:
            return
        if delta.reasoning and not delta.reasoning_content:
            self._reasoning_key = "reasoning"
        self._reasoning.add(delta.reasoning_content or delta.reasoning)
        self._text.add(delta.content)
        if delta.refusal:
            self._refused = True
            self._text.add(delta.refusal)
        for call in delta.tool_calls or ():
            self._slot(call).add(call)

    def _slot(self, delta: _CallDelta) -> _Call:
        """Return the tool call to which `delta`, a fragment of a call, belongs; begin a new call if there is none.

        A fragment belongs to the call with its index; but a new id begins a new call even under the same index, and a
        fragment without index continues the last call.
        """
        last = self._calls[-1] if self._calls else None
        known = last if delta.index is None else self._slots.get(delta.index)
        if known is not None and not (delta.id and known.id and delta.id != known.id):
            return known
        call = _Call(self.size)
        self._calls.append(call)
        if delta.index is not None:
            self._slots[delta.index] = call
        return call

    def _content(self) -> tuple[Content, ...]:
        blocks: list[Content] = []
        if self._reasoning.text:
            raw = msgspec.json.encode({self._reasoning_key: self._reasoning.text}).decode()
            blocks.append(self._prepared.reasoning(self._reasoning.text, raw))
        if self._text.text:
            blocks.append(Text(self._text.text))
        return (*blocks, *(call.content() for call in self._calls))

    def _counted(self, usage: object) -> Usage | None:
        """Convert the reported usage: `prompt_tokens` includes cache reads and writes, which Usage counts separately.

        A usage that is not an object is ignored.
        """
        if not isinstance(usage, dict):
            return self.usage
        prompt = token_count(usage, "prompt_tokens") or 0
        read = next(filter(None, (token_count(usage, *path) for path in _CACHE_READ)), 0)
        read = min(read, prompt)
        written = min(token_count(usage, "prompt_tokens_details", "cache_write_tokens") or 0, prompt - read)
        # Some servers leave the reasoning out of `completion_tokens`.
        reasoning = token_count(usage, "completion_tokens_details", "reasoning_tokens") or 0
        output = max(token_count(usage, "completion_tokens") or 0, reasoning)
        total = self._prepared.priced(Usage(prompt - read - written, output, read, written))
        if total is not None and self._prepared.provider.cost_in_usage:
            return replace(total, cost_micros=_micros(usage.get("cost"), total.cost_micros))
        return total


def _micros(dollars: object, otherwise: int) -> int:
    """Return the reported cost in micro-dollars; `otherwise` if no valid cost was reported."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars < MAX_COST:
        return otherwise
    return round(dollars * 1_000_000)
