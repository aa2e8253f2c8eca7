"""Reads an answer of OpenAI Responses, from all servers that implement this protocol.

An answer is a sequence of items. Each is assembled from its deltas, so that its text can be shown while it streams. If
the provider sends the final form of an item, it replaces the assembled form, because only the final form can be sent
back in later requests.
"""

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
from actors.adapters.llm.protocols.openai_responses.request import AnswerPhase
from actors.core.content import Content, Text, ToolUse, Usage

if TYPE_CHECKING:
    from actors.adapters.llm.transport.sse import SseEvent
    from actors.ports import ModelAnswer, ModelSink


class _Part(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    type: str = ""
    id: str | None = None
    phase: str | None = None
    content: list[_Part] | str | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str | None = None
    output: list[Raw] | None = None
    incomplete_details: _Incomplete | None = None
    error: Raw = ABSENT
    usage: Any = None


class _Event(Struct):
    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    item: Raw = ABSENT
    delta: Any = None
    response: _Response | None = None
    error: Raw = ABSENT


_EVENT = msgspec.json.Decoder(_Event)
_ITEM = msgspec.json.Decoder(_Item)
_RESPONSE = msgspec.json.Decoder(_Response)

_DONE = b"[DONE]"
_END = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
#: The meaning of the known reasons why an answer is incomplete. An answer with another reason does not end the turn:
#: the next request lets the model continue.
_CUTS = {
    "max_output_tokens": Stop(end_turn=False, truncated=True),
    "content_filter": Stop(refusal=True),
    **WINDOW_STOPS,
}


class _Growing:
    """An item of an answer, built from deltas as they arrive."""

    def __init__(self, raw: Raw, index: int | None, sink: ModelSink | None, size: ContentSize) -> None:
        self.head = _ITEM.decode(raw)
        self.index = index
        self.refused = False
        self._sink = sink
        self._size = size
        size.begin_block()
        self._text = TextBuffer(sink, size, reasoning=self.head.type == "reasoning")
        self._arguments: list[str] = []
        self._raw: bytes = b""

    @property
    def finished(self) -> bool:
        return bool(self._raw)

    def text(self, delta: object) -> None:
        self._text.add(delta if isinstance(delta, str) else None)

    def next_part(self) -> None:
        """Begin another part of a summary of reasoning."""
        if self._text.text:
            self._text.add("\n\n")

    def arguments(self, delta: object) -> None:
        if isinstance(delta, str):
            self._arguments.append(delta)
            self._size.add(delta)

    def done(self, raw: Raw) -> None:
        """Store the final form of the item, and pass its text to the sink if none was streamed."""
        self.head, self._raw = _ITEM.decode(raw), bytes(raw)
        if not self._text.text:
            self._text.add(_text_of(self.head))

    def contents(self, prepared: PreparedRequest) -> list[Content]:
        head = self.head
        text = (_text_of(head) if self._raw else "") or self._text.text
        match head.type:
            case "message":
                self.refused = self.refused or any(part.refusal for part in _parts(head.content))
                marker = msgspec.json.encode(AnswerPhase(head.phase)).decode() if head.phase else ""
                marked = [prepared.reasoning("", marker)] if marker else []
                return [*marked, Text(text)] if text else []
            case "reasoning":
                echoed = bool(head.encrypted_content or any(part.text for part in _parts(head.content)))
                raw = self._raw.decode() if echoed else ""  # the provider cannot resolve an item that has only an id
                return [prepared.reasoning(text, raw)] if text or raw else []
            case "function_call":
                given = (head.arguments if self._raw else None) or "".join(self._arguments) or head.arguments
                return [ToolUse(head.call_id or head.id or "", head.name or "", given or "{}")]
            case _:
                return []


def _parts(content: list[_Part] | str | None) -> list[_Part]:
    return [_Part("output_text", content)] if isinstance(content, str) else content or []


def _text_of(item: _Item) -> str:
    if item.type == "reasoning":
        return "\n\n".join(part.text for part in (*_parts(item.summary), *_parts(item.content)) if part.text)
    if item.type == "message":
        return "".join(part.text or part.refusal or "" for part in _parts(item.content))
    return ""


class OpenAiResponsesReader:
    """Reads one answer of OpenAI Responses; implements answer_builder.AnswerReader."""

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        self._prepared = prepared
        self._sink: ModelSink | None = sink
        self._items: list[_Growing] = []
        self._stop: Stop | None = None
        self.usage: Usage | None = None
        self.size = ContentSize()

    @property
    def complete(self) -> bool:
        """Whether the event that ends the answer has arrived."""
        return self._stop is not None

    @property
    def finished(self) -> bool:
        """Whether the event that ends the answer has arrived; nothing follows this event."""
        return self.complete

    def event(self, event: SseEvent) -> None:
        """Process the next event of the stream. Raises ModelFailedError."""
        if event.data.strip() == _DONE:
            return
        try:
            decoded = _EVENT.decode(event.data)
            self._take(decoded.type or event.name, decoded, event.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed_answer(self._prepared, self.usage) from None

    def whole(self, body: bytes) -> None:
        """Process an answer that came as one JSON body instead of a stream. Raises ModelFailedError."""
        self._sink = None
        try:
            response = _RESPONSE.decode(body)
            self._ended(response.status or "completed" if response.output is not None else "", response)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise malformed_answer(self._prepared) from None

    def answer(self) -> ModelAnswer:
        """Return the answer. Raises ModelFailedError if the event that ends it has not arrived."""
        if self._stop is None:
            raise incomplete_answer(self._prepared, self.usage)
        content = tuple(block for item in self._items for block in item.contents(self._prepared))
        stop = self._stop
        if any(item.refused for item in self._items):
            stop = Stop(refusal=True)
        elif stop.end_turn and not stop.refusal and any(isinstance(block, ToolUse) for block in content):
            stop = Stop(end_turn=False)
        return build_answer(self._prepared, content, stop, self.usage)

    def _take(self, kind: str, event: _Event, data: bytes) -> None:
        match kind:
            case "response.output_item.added":
                self._begin(event)
            case "response.output_item.done":
                (self._item(event) or self._begin(event)).done(event.item)
            case "response.output_text.delta":
                self._grow(event, "message").text(event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._grow(event, "reasoning").text(event.delta)
            case "response.refusal.delta":
                item = self._grow(event, "message")
                item.refused = True
                item.text(event.delta)
            case "response.reasoning_summary_part.added":
                self._grow(event, "reasoning").next_part()
            case "response.function_call_arguments.delta":
                self._grow(event, "function_call").arguments(event.delta)
            case _ if kind == "error" or is_present(event.error):
                raise provider_errors.stream_error(self._prepared.provider, data, self.usage)
            case _ if kind in _END:
                self._ended(_END[kind], event.response or _Response())
            case _:
                pass  # ignore ends of parts, and events of future versions

    def _begin(self, event: _Event) -> _Growing:
        item = _Growing(event.item, event.output_index, self._sink, self.size)
        self._items.append(item)
        return item

    def _grow(self, event: _Event, kind: str) -> _Growing:
        """Return the item to which a delta belongs. If there is none, create it: some servers do not announce items."""
        item = self._item(event, kind)
        return item or self._begin(_Event(item=Raw(msgspec.json.encode({"type": kind, "id": event.item_id}))))

    def _item(self, event: _Event, kind: str = "") -> _Growing | None:
        """Return the item to which an event belongs; None if there is none.

        The item is found by its index or by its id; otherwise it is the last unfinished item of the same type.
        """
        head = _ITEM.decode(event.item) if is_present(event.item) else _Item(kind, event.item_id)
        candidates = [item for item in reversed(self._items) if item.head.type == head.type]
        if event.output_index is not None and all(item.index is not None for item in candidates):
            return next((item for item in candidates if item.index == event.output_index), None)
        named = (item for item in candidates if head.id and item.head.id == head.id)
        return next(named, None) or next((item for item in candidates if not item.finished), None)

    def _ended(self, status: str, response: _Response) -> None:
        self.usage = self._counted(response.usage) or self.usage
        if not self._items:
            for raw in response.output or ():
                item = _Growing(raw, None, self._sink, self.size)
                item.done(raw)
                self._items.append(item)
        if status == "failed" or is_present(response.error):
            payload = b'{"error":%s}' % (bytes(response.error) or b"null")
            raise provider_errors.stream_error(self._prepared.provider, payload, self.usage)
        if status == "cancelled":
            raise provider_errors.broken_answer(
                self._prepared.provider, "the answer was cancelled by the provider", self.usage
            )
        if status == "completed":
            self._stop = Stop()
        elif status == "incomplete":
            reason = response.incomplete_details and response.incomplete_details.reason
            self._stop = _CUTS.get(reason or "", Stop(end_turn=False))

    def _counted(self, usage: object) -> Usage | None:
        """Convert the reported usage: `input_tokens` includes cache reads and writes, which Usage counts separately.

        Returns None if the usage is not an object.
        """
        if not isinstance(usage, dict):
            return None
        total = token_count(usage, "input_tokens") or 0
        read = min(token_count(usage, "input_tokens_details", "cached_tokens") or 0, total)
        written = min(token_count(usage, "input_tokens_details", "cache_write_tokens") or 0, total - read)
        output = token_count(usage, "output_tokens") or 0
        return self._prepared.priced(Usage(total - read - written, output, read, written))
