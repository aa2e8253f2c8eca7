"""The Anthropic Messages wire protocol: encodes a conversation as a request, and reads the answer."""

from __future__ import annotations

from collections.abc import Sequence
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
from actors.adapters.llm.protocols.decoding import SseEvent, json_text, own_fields, text_in, whole_number, word
from actors.adapters.llm.protocols.encoding import (
    base64_text,
    encoded_tools,
    has_visible_content,
    image_placeholder,
    is_failed,
    json_elements,
    object_with_array,
    result_text,
    separate_images,
    view_of,
)
from actors.core.content import (
    Content,
    Image,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolResult,
    ToolSuccess,
    ToolUse,
    is_tool_result,
)
from actors.core.context import ReasoningEffort
from actors.core.history import Turn
from actors.ports import ImageView, ModelAnswer, ModelSink, ToolSpec

PATH = "/v1/messages"

_OPENINGS = {role: b'{"role":"%s","content":[' % role.encode() for role in ("user", "assistant")}
_END = b"]}"


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def body_of(prepared: PreparedRequest, turns: Sequence[bytearray]) -> bytes:
    """The body as JSON; the same turns always give the same bytes.

    If the bytes changed, the provider's cache would miss, and the provider would reject thinking blocks that are sent
    back. No sampling parameters are sent, because the provider refuses them.
    """
    provider, request = prepared.provider, prepared.request
    head: dict[str, Any] = {"model": prepared.info.name, "max_tokens": prepared.limits.reserved_output, "stream": True}
    if request.system:
        head["system"] = request.system
    if request.tools:
        head["tools"] = encoded_tools(request.tools, _tool)
    config: dict[str, Any] = {}
    if effort := request.generation.reasoning_effort:
        thinks = effort is not ReasoningEffort.NONE
        head["thinking"] = {"type": "adaptive" if thinks else "disabled"}
        config |= {"effort": effort.value} if thinks else {}
    if request.output is not None:
        config["format"] = {"type": "json_schema", "schema": request.output.schema}
    if config:
        head["output_config"] = config
    if provider.prompt_cache:
        head["cache_control"] = {"type": "ephemeral"}
    end = _END if any(turns) else b""
    return object_with_array(head | dict(provider.extra_body), "messages", *turns, end)


def joint(before: str, role: str) -> bytes:
    """The separator between turns with the roles `before` ("" for none) and `role`.

    Successive turns with the same role share one message.
    """
    if before == role:
        return b","
    return (_END + b"," if before else b"") + _OPENINGS[role]


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """The encoded blocks of a turn; b"" if no part of the turn can be sent."""
    if turn.role == "assistant" and not has_visible_content(turn.content):
        return b""  # the API refuses a turn that has only reasoning
    content = sorted(turn.content, key=lambda block: not is_tool_result(block)) if turn.role == "user" else turn.content
    return json_elements(encoded for block in content if (encoded := _block(block, prepared)) is not None)


def _block(block: Content, prepared: PreparedRequest) -> Any:
    match block:
        case Text():
            return {"type": "text", "text": block.text} if block.text.strip() else None
        case Reasoning():
            return Raw(block.raw.encode()) if prepared.can_echo(block) else None
        case ToolUse():
            arguments = Raw(call_arguments(block))
            call = {"type": "tool_use", "id": block.id, "name": call_name(block), "input": arguments}
            return call | prepared.own_fields(block)
        case Image():
            view = view_of(block, prepared)
            return {"type": "text", "text": image_placeholder(block)} if view is None else _image(view)
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            return _result(block, prepared)


def _image(view: ImageView) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": view.media_type, "data": base64_text(view)}}


def _result(block: ToolResult, prepared: PreparedRequest) -> dict[str, Any]:
    visible, views = separate_images(block, prepared)
    text = result_text(visible)
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": block.tool_use_id,
        "content": [{"type": "text", "text": text}, *map(_image, views)] if views else text,
    }
    if is_failed(block):
        result["is_error"] = True
    return result


class _Details(Struct):
    category: str | None = None
    explanation: str | None = None


class _Message(Struct):
    type: str = ""
    content: list[Raw] | str | None = None
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: Any = None

    @property
    def blocks(self) -> list[Raw]:
        """The content blocks; a plain string counts as one."""
        if isinstance(self.content, str):
            return [Raw(msgspec.json.encode({"type": "text", "text": self.content}))]
        return self.content or []


class _Delta(Struct):
    text: Any = None
    partial_json: Any = None
    thinking: Any = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: _Details | None = None

    @property
    def kind(self) -> str:
        """The type of the block to which this delta belongs; "" if it can belong to a block of any type."""
        if self.text:
            return "text"
        if self.thinking or self.signature:
            return "thinking"
        return "tool_use" if self.partial_json else ""


class _Input(Struct):
    input: Raw = ABSENT


class _Event(Struct):
    type: str = ""
    index: Any = None
    message: _Message | None = None
    content_block: Raw = ABSENT
    delta: _Delta | None = None
    usage: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)
_HEAD = msgspec.json.Decoder(dict[str, Any])
_INPUT = msgspec.json.Decoder(_Input)
# The types of blocks whose deltas are all of one kind; see _Delta.kind.
_PLAIN = frozenset({"text", "thinking", "tool_use"})

# The meaning of the known stop reasons; all others ("end_turn", "stop_sequence", and future ones) end the turn.
_STOPS = {
    "tool_use": Stop(end_turn=False),
    "pause_turn": Stop(end_turn=False),
    "max_tokens": Stop(end_turn=False, truncated=True),
    **WINDOW_STOPS,
}


class _Block:
    """A content block of an answer, built from deltas as they arrive."""

    def __init__(self, raw: Raw, sink: ModelSink | None, size: ContentSize) -> None:
        self._size = size
        size.begin_block()
        self._begin(raw)
        self._text = TextBuffer(sink, size, reasoning=self.kind == "thinking")
        self._text.add(self._given)
        self._input: list[str] = []
        self._signature: str | None = None

    def _begin(self, raw: Raw) -> None:
        self._raw = bytes(raw)
        self._head = _HEAD.decode(self._raw)
        self.kind = word(self._head.get("type"))
        self._given = text_in(self._head.get("thinking" if self.kind == "thinking" else "text"))

    def add(self, delta: _Delta) -> None:
        if delta.text:
            self._text.add(text_in(delta.text))
        if delta.thinking:
            self._text.add(text_in(delta.thinking))
        if delta.partial_json:
            fragment = json_text(delta.partial_json)
            self._input.append(fragment)
            self._size.add(fragment)
        if delta.signature:
            self._signature = delta.signature

    def settle(self, raw: Raw) -> None:
        """Replace what was built from deltas with the block's final form."""
        self._begin(raw)
        self._text.settle(self._given)
        if self._head.get("input"):
            self._input.clear()

    def content(self, prepared: PreparedRequest) -> Content | None:
        match self.kind:
            case "text":
                return Text(self._text.text) if self._text.text else None
            case "thinking":
                return prepared.reasoning(self._text.text, self._thinking())
            case "redacted_thinking":
                return prepared.reasoning("", self._raw.decode())
            case "tool_use":
                head, given = self._head, _INPUT.decode(self._raw).input
                arguments = "".join(self._input) or (bytes(given).decode() if is_present(given) else "{}")
                return prepared.call(word(head.get("id")), word(head.get("name")), arguments, own_fields(head))
            case _:
                return None

    def _thinking(self) -> str:
        """The JSON of this reasoning block for later requests: the provider's own bytes, or JSON built from deltas."""
        if self._signature is None and self._text.text == self._given:
            return self._raw.decode()
        block = self._head | {"thinking": self._text.text}
        if self._signature is not None:
            block["signature"] = self._signature
        return msgspec.json.encode(block).decode()


class AnthropicReader(AnswerReader):
    USAGE = UsageFields(
        prompt="input_tokens",
        output="output_tokens",
        cache_read=("cache_read_input_tokens",),
        cache_write="cache_creation_input_tokens",
        prompt_has_cache=False,
    )

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        super().__init__(prepared, sink)
        self._blocks: list[_Block] = []
        self._places: dict[int | None, _Block] = {}
        """For each index, the block that last began at it; for None, the block that last began at any index."""
        self._stop_reason: str | None = None
        self._details: _Details | None = None

    def event(self, event: SseEvent) -> None:
        decoded = _EVENT.decode(event.data)
        match decoded.type or event.name:
            case "content_block_delta" if decoded.delta and (kind := decoded.delta.kind):
                self._block(decoded.index, kind).add(decoded.delta)
            case "content_block_start":
                self._begin(decoded.index, decoded.content_block)
            case "content_block_stop" if is_present(decoded.content_block):
                self._block(decoded.index, _HEAD.decode(decoded.content_block).get("type")).settle(
                    decoded.content_block
                )
            case "message_start" if decoded.message:
                self._count(decoded.message.usage)
            case "message_delta":
                self._count(decoded.usage)
                if decoded.delta is not None:
                    self._stopped(decoded.delta.stop_reason, decoded.delta.stop_details)
            case "message_stop":
                if decoded.message:
                    self._settle(decoded.message)
                if self._stop_reason is None:
                    raise self._broken()
                self.finished = True
            case "error":
                raise provider_errors.stream_error(self._prepared.provider, event.data, self.usage)
            case _:
                pass  # ignore pings, ends of blocks, and events of future versions

    def whole(self, body: bytes) -> None:
        self._sink = None
        message = _MESSAGE.decode(body)
        if message.type == "error":
            raise provider_errors.stream_error(self._prepared.provider, body)
        self._settle(message)
        self.finished = self.complete

    def answer(self) -> ModelAnswer:
        if not self.complete:
            raise self._broken()
        blocks = (block.content(self._prepared) for block in self._blocks)
        stop = _STOPS.get(self._stop_reason or "", Stop())
        if self._stop_reason == "refusal":
            details = self._details or _Details()
            stop = Stop(refusal=True, said=details.explanation or details.category or "")
        return build_answer(self._prepared, tuple(block for block in blocks if block is not None), stop, self.usage)

    def _begin(self, place: object, raw: Raw) -> _Block:
        block = _Block(raw, self._sink, self.size)
        self._blocks.append(block)
        self._places[whole_number(place)] = self._places[None] = block
        return block

    def _block(self, place: object, kind: object) -> _Block:
        """The block to which a delta of this kind belongs. Begins one if the server did not announce it."""
        block = self._places.get(whole_number(place))
        if block is None or (block.kind in _PLAIN and block.kind != kind):
            return self._begin(place, Raw(msgspec.json.encode({"type": kind})))
        return block

    def _settle(self, message: _Message) -> None:
        """Use the blocks of a complete message in place of the streamed blocks."""
        size = self.size if self._sink is None else ContentSize()  # the streamed blocks were already counted
        if message.blocks:
            self._blocks = [_Block(raw, None, size) for raw in message.blocks]
        self._count(message.usage)
        self._stopped(message.stop_reason, message.stop_details)

    def _stopped(self, reason: str | None, details: _Details | None) -> None:
        self._stop_reason = reason or self._stop_reason
        self._details = details or self._details
        self.complete = self._stop_reason is not None  # the content is complete by now: only token counts can follow
