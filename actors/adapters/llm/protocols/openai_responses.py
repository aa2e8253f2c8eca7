"""The OpenAI Responses wire protocol: encodes a conversation as a request, and reads the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from actors.adapters.llm import provider_errors
from actors.adapters.llm.protocols.answer_builder import (
    ABSENT,
    WINDOW_STOPS,
    AnswerReader,
    ContentSize,
    PreparedRequest,
    Stop,
    TextBuffer,
    UsageFields,
    build_answer,
    call_arguments,
    call_name,
    is_present,
)
from actors.adapters.llm.protocols.decoding import SseEvent, json_text, own_fields, pieces, text_in, whole_number, word
from actors.adapters.llm.protocols.encoding import (
    data_url,
    effort_name,
    has_visible_content,
    json_elements,
    json_schema_format,
    object_with_array,
    openai_head,
    results_and_parts,
)
from actors.core.content import Content, Reasoning, Text, ToolUse
from actors.core.history import Turn
from actors.ports import ImageView, ModelAnswer, ModelSink, ToolSpec

PATH = "/responses"


class AnswerPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The phase of an answer that a text belongs to, as named by the model.

    It is stored as the `raw` of a Reasoning block before the text, because models that report phases need them back.
    """

    phase: str


_PHASE = msgspec.json.Decoder(AnswerPhase)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": False,
    }


def body_of(prepared: PreparedRequest, turns: Sequence[bytearray]) -> bytes:
    """The body of a request as JSON; the same turns always give the same bytes."""
    provider, request = prepared.provider, prepared.request
    head = openai_head(prepared, "max_output_tokens", _tool) | {"store": False}
    if provider.encrypted_reasoning and prepared.limits.reasons:
        head["include"] = ["reasoning.encrypted_content"]
    if effort := request.generation.reasoning_effort:
        head["reasoning"] = {"effort": effort_name(effort)}
    if request.output is not None:
        head["text"] = {"format": {"type": "json_schema", **json_schema_format(request.output)}}
    if request.system:
        head["instructions"] = request.system
    return object_with_array(head | dict(provider.extra_body), "input", *turns)


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """The encoded items of a turn, joined by commas; b"" if no part of the turn can be sent."""
    if turn.role == "assistant":
        return json_elements(_answered(turn.content, prepared)) if has_visible_content(turn.content) else b""
    return json_elements(_told(turn.content, prepared))


def _answered(content: tuple[Content, ...], prepared: PreparedRequest) -> Iterator[Any]:
    """Yield an answer's items. Reasoning at the end is omitted: providers refuse reasoning that no output follows."""
    last = max(index for index, block in enumerate(content) if has_visible_content((block,)))
    phase: dict[str, str] = {}
    for block in content[: last + 1]:
        match block:
            case Reasoning() if prepared.can_echo(block):
                marked = _phase_of(block.raw)
                if marked:
                    phase = {"phase": marked}
                else:
                    yield msgspec.Raw(block.raw.encode())
            case Text() if block.text.strip():
                yield {"type": "message", "role": "assistant", "content": block.text} | phase
                phase = {}
            case ToolUse():
                yield {
                    "type": "function_call",
                    "call_id": block.id,
                    "name": call_name(block),
                    "arguments": call_arguments(block).decode(),
                    **prepared.own_fields(block),
                }
            case _:
                pass


def _phase_of(raw: str) -> str:
    try:
        return _PHASE.decode(raw).phase
    except msgspec.DecodeError:
        return ""


def _told(content: tuple[Content, ...], prepared: PreparedRequest) -> Iterator[Any]:
    results, parts = results_and_parts(
        content, prepared, lambda call, text: {"type": "function_call_output", "call_id": call, "output": text}
    )
    yield from results
    if parts:
        yield {"type": "message", "role": "user", "content": [_part(part) for part in parts]}


def _part(part: str | ImageView) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}


class _Response(Struct):
    status: str | None = None
    output: list[Raw] | None = None
    incomplete_details: dict[str, Any] | None = None
    error: Raw = ABSENT
    usage: Any = None


class _Event(Struct):
    type: str = ""
    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    item_id: Any = None
    item: Raw = ABSENT
    name: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    part: Any = None
    arguments: Any = None
    response: _Response | None = None
    error: Raw = ABSENT

    @property
    def place(self) -> int | None:
        """The index of the event's item in the answer; None if the server does not number items."""
        return whole_number(self.output_index)


_EVENT = msgspec.json.Decoder(_Event)
_ITEM = msgspec.json.Decoder(dict[str, Any])
_RESPONSE = msgspec.json.Decoder(_Response)

_DONE = b"[DONE]"
_END = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
# The meaning of the known reasons why an answer is incomplete. After any other reason the turn does not end: the next
# request lets the model continue.
_CUTS = {
    "max_output_tokens": Stop(end_turn=False, truncated=True),
    "content_filter": Stop(refusal=True),
    **WINDOW_STOPS,
}


# The middle parts of the names of events about text ("response.….delta").
_TEXTS = frozenset(
    {"output_text", "refusal", "content_part", "reasoning_text", "reasoning_summary_text", "reasoning_summary_part"}
)


class _Growing:
    """An item of an answer, built from deltas as they arrive."""

    def __init__(self, raw: Raw, place: int | None, sink: ModelSink | None, size: ContentSize) -> None:
        self._head = _ITEM.decode(raw)
        self.kind = word(self._head.get("type"))
        self.place = place
        self.refused = False
        self._size = size
        size.begin_block()
        self._text = TextBuffer(sink, size, reasoning=self.kind == "reasoning")
        self._part = (False, 0)
        self._arguments: list[str] = []
        self._raw: bytes = b""

    @property
    def finished(self) -> bool:
        return bool(self._raw)

    def has_id_of(self, item: dict[str, Any]) -> bool:
        """Whether `item` has the same id as this item, or the same call id."""
        return any(word(item.get(field)) and item[field] == self._head.get(field) for field in ("id", "call_id"))

    def add(self, part: tuple[bool, int], delta: object) -> None:
        """Append a delta to a part of the text.

        `part` states whether the part belongs to the summary, and its number.
        """
        self._go_to(part)
        self._text.add(text_in(delta))

    def settle(self, part: tuple[bool, int], final: object) -> None:
        """Replace a part of the text with its final form."""
        self._go_to(part)
        self._text.settle(text_in(final))

    def _go_to(self, part: tuple[bool, int]) -> None:
        if part != self._part:
            self._part = part
            self.next_part()

    def next_part(self) -> None:
        self._text.next_part("\n\n" if self.kind == "reasoning" else "")

    def add_arguments(self, delta: object) -> None:
        fragment = json_text(delta)
        self._arguments.append(fragment)
        self._size.add(fragment)

    def settle_arguments(self, event: _Event) -> None:
        self._arguments = [json_text(event.arguments) or "".join(self._arguments)]
        self._head["name"] = self._head.get("name") or event.name

    def done(self, raw: Raw) -> None:
        """Store the item's final form, and pass on to the sink whatever it adds to the streamed text."""
        self._head |= _ITEM.decode(raw)
        self._raw = bytes(raw)
        final, preview = self._final_text(), self._text.text
        if final.startswith(preview):
            self._text.add(final[len(preview) :])

    def _final_text(self) -> str:
        summary, content = self._head.get("summary"), self._head.get("content")
        if self.kind == "reasoning":
            return "\n\n".join(text for _, text in (*pieces(summary), *pieces(content)) if text)
        return text_in(content) if self.kind == "message" else ""

    def contents(self, prepared: PreparedRequest) -> list[Content]:
        head = self._head
        text = (self._final_text() if self._raw else "") or self._text.text
        match self.kind:
            case "message":
                parts = pieces(head.get("content"))
                self.refused = self.refused or any(kind == "refusal" and part for kind, part in parts)
                phase = word(head.get("phase"))
                marked = [prepared.reasoning("", msgspec.json.encode(AnswerPhase(phase)).decode())] if phase else []
                return [*marked, Text(text)] if text else []
            case "reasoning":
                echoed = bool(head.get("encrypted_content") or text_in(head.get("content")))
                raw = self._raw.decode() if echoed else ""  # the provider cannot resolve an item that has only an id
                return [prepared.reasoning(text, raw)] if text or raw else []
            case "function_call":
                given = json_text(head.get("arguments"))
                arguments = (given if self._raw else "") or "".join(self._arguments) or given or "{}"
                identity = word(head.get("call_id")) or word(head.get("id"))
                return [prepared.call(identity, word(head.get("name")), arguments, own_fields(head))]
            case _:
                return []


class OpenAiResponsesReader(AnswerReader):
    USAGE = UsageFields(
        prompt="input_tokens",
        output="output_tokens",
        cache_read=("input_tokens_details.cached_tokens",),
        cache_write="input_tokens_details.cache_write_tokens",
        reasoning="output_tokens_details.reasoning_tokens",
    )

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        super().__init__(prepared, sink)
        self._items: list[_Growing] = []
        self._stop: Stop | None = None

    def event(self, event: SseEvent) -> None:
        if event.data.strip() == _DONE:
            return
        decoded = _EVENT.decode(event.data)
        kind = decoded.type or event.name
        what, _, step = kind.removeprefix("response.").rpartition(".")
        match what, step:
            case ("output_item", "added"):
                self._begin(decoded)
            case ("output_item", "done"):
                (self._item(decoded) or self._begin(decoded)).done(decoded.item)
            case ("function_call_arguments", "delta"):
                self._grow(decoded, "function_call").add_arguments(decoded.delta)
            case ("function_call_arguments", "done"):
                self._grow(decoded, "function_call").settle_arguments(decoded)
            case ("reasoning_summary_part", "added"):
                self._grow(decoded, "reasoning").next_part()
            case (_, "delta" | "done") if what in _TEXTS:
                self._add_text(what, decoded)
            case _ if kind == "error" or is_present(decoded.error):
                raise provider_errors.stream_error(self._prepared.provider, event.data, self.usage)
            case _ if kind in _END:
                self._end(_END[kind], decoded.response or _Response())
            case _:
                pass  # ignore beginnings of parts, and events of future versions

    def whole(self, body: bytes) -> None:
        self._sink = None
        response = _RESPONSE.decode(body)
        self._end(response.status or "completed" if response.output is not None else "", response)

    def answer(self) -> ModelAnswer:
        if self._stop is None:
            raise self._broken()
        content = tuple(block for item in self._items for block in item.contents(self._prepared))
        stop = self._stop
        if any(item.refused for item in self._items):
            stop = Stop(refusal=True)
        elif stop.end_turn and not stop.refusal and any(isinstance(block, ToolUse) for block in content):
            stop = Stop(end_turn=False)
        return build_answer(self._prepared, content, stop, self.usage)

    def _add_text(self, what: str, event: _Event) -> None:
        inner = word(event.part.get("type")) if isinstance(event.part, dict) else what
        item = self._grow(event, "reasoning" if inner.startswith(("reasoning", "summary")) else "message")
        item.refused = item.refused or inner == "refusal"
        summary = "summary" in what
        part = summary, whole_number(event.summary_index if summary else event.content_index) or 0
        if event.delta is not None:
            item.add(part, event.delta)
        else:
            item.settle(part, event.text or event.refusal or event.part)

    def _begin(self, event: _Event) -> _Growing:
        item = _Growing(event.item, event.place, self._sink, self.size)
        self._items.append(item)
        return item

    def _grow(self, event: _Event, kind: str) -> _Growing:
        """The item to which a delta belongs. If there is none, create it: some servers do not announce items."""
        last = self._items[-1] if self._items else None
        if last and event.place == last.place is not None and last.kind == kind and not last.finished:
            return last  # quicker than the search
        head = Raw(msgspec.json.encode({"type": kind, "id": event.item_id}))
        return self._item(event, kind) or self._begin(_Event(output_index=event.output_index, item=head))

    def _item(self, event: _Event, kind: str = "") -> _Growing | None:
        """An event's item, found by index or id, or else the last unfinished item of its type; None if not found."""
        head = _ITEM.decode(event.item) if is_present(event.item) else {"type": kind, "id": event.item_id}
        candidates = [item for item in reversed(self._items) if item.kind == word(head.get("type"))]
        named = next((item for item in candidates if item.has_id_of(head)), None)
        if event.place is not None and all(item.place is not None for item in candidates):
            placed = next((item for item in candidates if item.place == event.place), None)
            # Some servers give all items the same index: a finished item with a different id is not the item of this
            # event.
            return named if placed and placed.finished and word(head.get("id")) else placed
        return named or next((item for item in candidates if not item.finished), None)

    def _end(self, status: str, response: _Response) -> None:
        self._count(response.usage)
        self._settle(response.output or (), whole=status == "completed")
        if status == "failed" or is_present(response.error):
            payload = b'{"error":%s}' % (bytes(response.error) or b"null")
            raise provider_errors.stream_error(self._prepared.provider, payload, self.usage)
        if status == "cancelled":
            raise self._broken("the answer was cancelled by the provider")
        if status == "completed":
            self._stop = Stop()
        elif status == "incomplete":
            reason = word((response.incomplete_details or {}).get("reason"))
            self._stop = _CUTS.get(reason, Stop(end_turn=False))
        self.complete = self.finished = self._stop is not None

    def _settle(self, output: Sequence[Raw], *, whole: bool) -> None:
        """Replace the streamed items with the final items in `output`.

        Streamed items that are missing from `output` are kept if `output` is empty, or if it is not the `whole` answer.
        """
        streamed, self._items = self._items, []
        for raw in output:
            head = _ITEM.decode(raw)
            alike = [item for item in streamed if item.kind == word(head.get("type"))]
            item = next((item for item in alike if item.has_id_of(head)), None) or next(iter(alike), None)
            if item is None:
                item = _Growing(raw, None, self._sink, self.size)
            else:
                streamed.remove(item)
            item.done(raw)
            self._items.append(item)
        if not (output and whole):
            self._items += streamed
