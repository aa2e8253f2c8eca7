"""The OpenAI Chat Completions wire protocol: encodes a conversation as a request, and reads the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

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
from actors.adapters.llm.protocols.decoding import (
    Kind,
    SseEvent,
    joined_fragments,
    json_text,
    own_fields,
    pieces,
    whole_number,
    word,
)
from actors.adapters.llm.protocols.encoding import (
    ENCODER,
    data_url,
    effort_name,
    has_visible_content,
    json_elements,
    json_schema_format,
    object_with_array,
    openai_head,
    results_and_parts,
)
from actors.core.content import Content, Text, ToolUse, Usage
from actors.core.history import Turn
from actors.ports import ImageView, ModelAnswer, ModelSink, ToolSpec

PATH = "/chat/completions"

# The fields of a message in which gateways put reasoning from other providers. Gateways always need them back.
DETAILS = ("reasoning_details", "thinking_blocks")


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }


def body_of(prepared: PreparedRequest, turns: Sequence[bytearray]) -> bytes:
    """The body of a request as JSON; the same turns always give the same bytes."""
    provider, request = prepared.provider, prepared.request
    head = openai_head(prepared, provider.max_tokens_field, _tool)
    if provider.stream_usage:
        head["stream_options"] = {"include_usage": True}
    if effort := request.generation.reasoning_effort:
        head["reasoning_effort"] = effort_name(effort)
    if request.output is not None:
        head["response_format"] = {"type": "json_schema", "json_schema": json_schema_format(request.output)}
    system = {"role": provider.system_role, "content": request.system}
    first = ENCODER.encode(system) if request.system else b""
    between = b"," if first and any(turns) else b""
    return object_with_array(head | dict(provider.extra_body), "messages", first, between, *turns)


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """The encoded messages of a turn, joined by commas; b"" if no part of the turn can be sent."""
    return json_elements(_messages(turn, prepared))


def _messages(turn: Turn, prepared: PreparedRequest) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        if has_visible_content(turn.content):
            yield _assistant(turn.content, prepared)
        return
    results, parts = results_and_parts(
        turn.content, prepared, lambda call, text: {"role": "tool", "tool_call_id": call, "content": text}
    )
    yield from results
    if parts:
        yield {"role": "user", "content": _content(parts)}


def _content(parts: list[str | ImageView]) -> Any:
    """A message's content: a string, or a list if there are images, because not every server accepts a list."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts)
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part), "detail": "auto"}}
        for part in parts
    ]


def _assistant(content: tuple[Content, ...], prepared: PreparedRequest) -> dict[str, Any]:
    text = "".join(block.text for block in content if isinstance(block, Text))
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls = [block for block in content if isinstance(block, ToolUse)]
    echo = prepared.provider.echo_reasoning
    # Reasoning models need their reasoning back with their calls; some servers refuse reasoning with plain answers.
    echoes = echo == "always" or (echo == "calls" and bool(calls))
    for block in content:
        if prepared.can_echo(block):
            fields = msgspec.json.decode(block.raw, type=dict[str, msgspec.Raw])
            message |= {field: value for field, value in fields.items() if echoes or field in DETAILS}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call_name(call), "arguments": call_arguments(call).decode()},
                **prepared.own_fields(call),
            }
            for call in calls
        ]
    return message


class _Delta(Struct):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    reasoning_details: list[Any] | None = None
    thinking_blocks: list[Any] | None = None


class _Choice(Struct):
    index: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Raw = ABSENT


_CHUNK = msgspec.json.Decoder(_Chunk)
_DONE = b"[DONE]"

# Maximum reported cost of an answer in dollars; a higher cost is a server error and is ignored.
MAX_COST = 1_000_000

_CUT = Stop(end_turn=False, truncated=True)
_REFUSED = Stop(refusal=True)

# The meaning of the known stop reasons; all others ("stop", and those of unknown servers) end the turn.
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

# The stop reasons with which servers report a failure, although they close the stream properly.
_BROKEN = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})


class _Call:
    def __init__(self, size: ContentSize) -> None:
        self._size = size
        size.begin_block()
        self._id = self._name = ""
        self._arguments: list[str] = []
        self._own: dict[str, Any] = {}

    def add(self, fragment: dict[str, Any], function: dict[str, Any]) -> None:
        """Append a fragment. The call keeps the first id and the first name that are not empty."""
        self._id = self._id or word(fragment.get("id"))
        self._name = self._name or word(function.get("name"))
        self._own |= fragment
        arguments = json_text(function.get("arguments"))
        self._arguments.append(arguments)
        self._size.add(arguments)

    def is_over(self, identity: str, name: str) -> bool:
        """Whether a fragment with this id and name begins another call.

        The index does not show this, because some servers give all calls the same index. Some of these servers give the
        calls no ids either.
        """
        if identity and self._id:
            return identity != self._id
        return bool(name and self._name) and (name != self._name or self._is_complete())

    def _is_complete(self) -> bool:
        try:
            return isinstance(msgspec.json.decode("".join(self._arguments)), dict)
        except (msgspec.DecodeError, RecursionError):
            return False

    def content(self, prepared: PreparedRequest) -> ToolUse:
        return prepared.call(self._id, self._name, "".join(self._arguments) or "{}", own_fields(self._own))


class _Message:
    def __init__(self, sink: ModelSink | None, size: ContentSize) -> None:
        self._size = size
        self._texts = {"text": TextBuffer(sink, size), "reasoning": TextBuffer(sink, size, reasoning=True)}
        self._reasoning_key = ""
        self._details: dict[str, list[Any]] = {}
        self._slots: dict[int, _Call] = {}
        self.calls: list[_Call] = []
        self.refused = False

    def __bool__(self) -> bool:
        return bool(self.calls) or any(buffer.text for buffer in self._texts.values())

    def add(self, delta: _Delta) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            self._reasoning_key = "reasoning_content" if delta.reasoning_content else "reasoning"
            self._say(thought, "reasoning")
        if delta.content:
            self._say(delta.content, "text")
        if delta.refusal:
            self._say(delta.refusal, "refusal")
        for fragment in delta.tool_calls or ():
            self._add_call(fragment)
        if delta.function_call and not delta.tool_calls:  # the older field, which holds a single call
            self._add_call({"function": delta.function_call})
        if delta.reasoning_details or delta.thinking_blocks:
            for field in DETAILS:
                self._details.setdefault(field, []).extend(getattr(delta, field) or ())

    def settle(self, final: _Message) -> None:
        """Replace what was built from deltas with the message's final form."""
        for kind, buffer in final._texts.items():
            self._texts[kind].settle(buffer.text)
        self.calls = final.calls or self.calls
        self.refused = self.refused or final.refused

    def _say(self, value: object, kind: Kind) -> None:
        for inner, text in [(kind, value)] if isinstance(value, str) else pieces(value, kind):
            self.refused = self.refused or (inner == "refusal" and bool(text))
            self._texts["reasoning" if inner == "reasoning" else "text"].add(text)

    def _add_call(self, fragment: dict[str, Any]) -> None:
        """Append a fragment to the call with its index (if it has none, to the last call), or begin a new call."""
        given = fragment.get("function")
        function = given if isinstance(given, dict) else {}
        index = whole_number(fragment.get("index"))
        last = self.calls[-1] if self.calls else None
        call = last if index is None else self._slots.get(index)
        if call is None or call.is_over(word(fragment.get("id")), word(function.get("name"))):
            call = _Call(self._size)
            self.calls.append(call)
            if index is not None:
                self._slots[index] = call
        call.add(fragment, function)

    def content(self, prepared: PreparedRequest) -> tuple[Content, ...]:
        text, reasoning = self._texts["text"].text, self._texts["reasoning"].text
        own: dict[str, Any] = {field: joined_fragments(found) for field, found in self._details.items() if found}
        if reasoning and self._reasoning_key:
            own = {self._reasoning_key: reasoning, **own}
        raw = msgspec.json.encode(own).decode() if own else ""
        thoughts = [prepared.reasoning(reasoning, raw)] if reasoning or raw else []
        return (*thoughts, *([Text(text)] if text else ()), *(call.content(prepared) for call in self.calls))


class OpenAiChatReader(AnswerReader):
    USAGE = UsageFields(
        prompt="prompt_tokens",
        output="completion_tokens",
        cache_read=("prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
        cache_write="prompt_tokens_details.cache_write_tokens",
        reasoning="completion_tokens_details.reasoning_tokens",
    )

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        super().__init__(prepared, sink)
        self._message = _Message(sink, self.size)
        self._previewed = False
        """Whether deltas have arrived, so that a message in the stream is their final form."""
        self._finish_reason = ""

    def event(self, event: SseEvent) -> None:
        if event.data.strip() == _DONE:
            self.complete = self.finished = True
            return
        for choice in self._choices(event.data):
            if not whole_number(choice.index):
                self._add(choice)

    def _add(self, choice: _Choice) -> None:
        if choice.delta is not None:
            self._message.add(choice.delta)
            self._previewed = self._previewed or bool(self._message)
        if choice.message is not None and self._previewed:
            final = _Message(None, ContentSize())
            final.add(choice.message)
            self._message.settle(final)
        elif choice.message is not None:  # some servers write "message" for "delta"
            self._message.add(choice.message)
        if choice.finish_reason:
            self._end(choice.finish_reason)

    def whole(self, body: bytes) -> None:
        self._message = _Message(None, self.size)
        for choice in self._choices(body)[:1]:
            self._message.add(choice.message or choice.delta or _Delta())
            self._end(choice.finish_reason)

    def _end(self, reason: object) -> None:
        self._finish_reason = word(reason).lower() or self._finish_reason
        self.complete = self.complete or bool(self._finish_reason)

    def answer(self) -> ModelAnswer:
        content, reason = self._message.content(self._prepared), self._finish_reason
        if not reason and not (self.finished and content):
            raise self._broken()
        if reason in _BROKEN:
            raise self._broken(f"the answer ended with finish_reason {reason!r}")
        stop = _STOPS.get(reason, Stop())
        if self._message.calls and not stop.truncated and not stop.refusal:
            # Some servers report "stop" instead of "tool_calls" as the reason for an answer that ends with tool calls.
            stop = Stop(end_turn=False)
        if self._message.refused:
            stop = Stop(refusal=True)
        return build_answer(self._prepared, content, stop, self.usage)

    @property
    def usage(self) -> Usage | None:
        usage, reported = super().usage, self._reported or {}
        if usage is None or not self._prepared.provider.cost_in_usage:
            return usage
        return replace(usage, cost_micros=_micros(reported.get("cost"), usage.cost_micros))

    def _choices(self, data: bytes) -> list[_Choice]:
        chunk = _CHUNK.decode(data)
        if is_present(chunk.error):
            raise provider_errors.stream_error(self._prepared.provider, data, self.usage)
        if chunk.usage is not None:
            self._count(chunk.usage)
        return chunk.choices or []


def _micros(dollars: object, otherwise: int) -> int:
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars < MAX_COST:
        return otherwise
    return round(dollars * 1_000_000)
