"""Code that the answer readers of all protocols share: tokens, tool calls, text buffers, size limits, final checks.

Most providers report usage only at the end of an answer, and some report impossible counts. Missing counts are
estimated from the size of the texts in the request and in its answer. The estimate cannot tell which input tokens the
provider had in its cache, so all of them are counted at the full price.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeGuard

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.adapters.llm import provider_errors
from actors.adapters.llm.protocols.decoding import (
    SseEvent,
    join_halves,
    object_text,
    replace_lone_surrogates,
    whole_number,
)
from actors.adapters.llm.provider import ModelLimits, ProviderConfig
from actors.core.content import (
    Content,
    Reasoning,
    Text,
    ToolUse,
    Usage,
    content_tokens,
    distinct_calls,
    tokens_of,
    utf8_size,
)
from actors.ports import MAX_MODEL_RESPONSE_BYTES, ModelAnswer, ModelFailedError, ModelInfo, ModelRequest, ModelSink
from actors.ports.models import fixed_tokens

log = logging.getLogger(__name__)

# Higher token counts are reduced to this limit, so that sums of counts fit into 64 bits. Real counts never reach it.
MAX_TOKENS = 1 << 40


class UsageFields(Struct, frozen=True):
    """The names of the fields in which a protocol reports token counts; a dot leads to a nested field."""

    prompt: str
    output: str
    cache_read: tuple[str, ...]
    """The fields that may count tokens read from the cache; the first one with a count other than 0 is used."""
    cache_write: str
    reasoning: str = ""
    """The field that counts reasoning tokens; some servers do not include these in the output count."""
    prompt_has_cache: bool = True
    """Whether the prompt count includes tokens read from or written to the cache."""

    def usage(self, reported: Mapping[str, Any], request: ModelRequest, limits: ModelLimits, received: int) -> Usage:
        """The usage reported for an answer of `received` bytes, without its cost.

        Missing or impossible counts are estimated. A prompt count above the window is impossible, because the prompt
        was answered.
        """
        read = next(filter(None, (token_count(reported, path) for path in self.cache_read)), 0)
        written = token_count(reported, self.cache_write) or 0
        prompt, output = token_count(reported, self.prompt), token_count(reported, self.output)
        if prompt is None or prompt + (0 if self.prompt_has_cache else read + written) > limits.window:
            _note(reported, self.prompt, request)
            prompt, read, written = prompt_tokens(request), 0, 0
        if output is None or output > limits.window:
            _note(reported, self.output, request)
            output = tokens_of(received)
        output = max(output, token_count(reported, self.reasoning) or 0)
        if self.prompt_has_cache:
            read = min(read, prompt)
            written = min(written, prompt - read)
            prompt -= read + written
        return Usage(prompt, output, read, written)


def _note(reported: Mapping[str, Any], field: str, request: ModelRequest) -> None:
    if reported.get(field) is not None:
        fields = {"request": request.request_id, "field": field}
        log.warning("implausible token count replaced by an estimate", extra=fields)


def merged(known: dict[str, Any] | None, usage: object) -> dict[str, Any] | None:
    """`known`, updated with a newly reported `usage`; a report that is not an object is ignored.

    A 0 never replaces another count, because some servers report zeros at the end of an answer.
    """
    if not isinstance(usage, dict):
        return known
    known = known or {}
    return known | {field: value for field, value in usage.items() if value or not known.get(field)}


def token_count(usage: object, path: str = "") -> int | None:
    """The count at `path`, capped at MAX_TOKENS; None if there is no valid count. Accepts 12, 12.0 and "12"."""
    for name in path.split(".") if path else ():
        usage = usage.get(name) if isinstance(usage, dict) else None
    count = whole_number(usage)
    return None if count is None or count < 0 else min(count, MAX_TOKENS)


def prompt_tokens(request: ModelRequest) -> int:
    """Estimate a request's input tokens; never fewer than the provider last counted for the conversation."""
    said = content_tokens(block for turn in request.turns for block in turn.content)
    return max(request.counted_tokens, fixed_tokens(request.system, request.tools) + said)


_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 64


def accepted_calls(content: tuple[Content, ...], request: ModelRequest) -> tuple[Content, ...]:
    """An answer's content, with its calls changed so that they can be stored and sent to every provider.

    Ids become unique in the conversation, lone surrogates in inputs are replaced, and inputs encoded twice are decoded.
    """
    view = request.view
    recent = {block.id for turn in view.turns[view.settled :] for block in turn.content if isinstance(block, ToolUse)}
    return distinct_calls(tuple(map(_repaired, content)), request.request_id, recent, view.settled_calls)


def _repaired(block: Content) -> Content:
    if not isinstance(block, ToolUse):
        return block
    return replace(block, input=replace_lone_surrogates(object_text(block.input)))


def call_name(call: ToolUse) -> str:
    """The call's name in a form that every provider accepts.

    A call with an invented name gets an error result, but providers would refuse every later request with that name in
    the history.
    """
    return _FOREIGN.sub("_", call.name[:_NAME_CHARS]) or "unnamed"


def call_arguments(call: ToolUse) -> bytes:
    """The call's input as a JSON object.

    Invalid input is wrapped in an object, because providers refuse a history that contains it, even though its call got
    an error result.
    """
    raw = call.input.encode("utf-8", "replace")
    if not raw.strip():
        return b"{}"
    try:
        if isinstance(msgspec.json.decode(raw), dict):
            return raw
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.json.encode({"INVALID_JSON": call.input})


# The default for fields of type Raw (undecoded JSON) that the provider did not send.
ABSENT = Raw(b"")

# Maximum number of content blocks in one answer. Each block adds some bytes to the message that clients get, and the
# size of that message is limited, too.
MAX_BLOCKS = 2_048

# Maximum bytes that one byte of text takes when it is escaped in JSON. It serves to estimate how much of a reasoning
# block's raw JSON is not text: at least the size of the JSON minus this many times the size of the text.
_ESCAPED_BYTES = 6

_MOST_BYTES = f"{MAX_MODEL_RESPONSE_BYTES >> 20} MiB"


def is_present(raw: Raw) -> bool:
    """Whether a field that is kept as undecoded JSON was sent and is not null."""
    return bytes(raw) not in (b"", b"null")


class PreparedRequest(Struct, frozen=True):
    """A request with the model's settings and limits, which are needed to encode it and to read its answer."""

    provider: ProviderConfig
    info: ModelInfo
    limits: ModelLimits
    request: ModelRequest

    def reasoning(self, text: str, raw: str = "") -> Reasoning:
        """A reasoning block marked as this model's; `raw` is its JSON, which later requests send back."""
        return Reasoning(text, self.info.protocol, self.info.name, raw, self.info.provider)

    def call(self, identity: str, name: str, arguments: str, own: str = "") -> ToolUse:
        """A tool call. `own` is a JSON object that later requests send back to this model; "" for none."""
        return ToolUse(identity, name, arguments, own=self.reasoning("", own) if own else None)

    def can_echo(self, block: Content | None) -> TypeGuard[Reasoning]:
        """Whether `block` is reasoning from this provider, model and protocol that can be sent back."""
        return (
            isinstance(block, Reasoning)
            and bool(block.raw)
            and (block.protocol, block.model) == (self.info.protocol, self.info.name)
            and block.provider in ("", self.info.provider)  # version 0.2 did not store the provider
        )

    def own_fields(self, call: ToolUse) -> dict[str, Any]:
        """The fields that a call must have in requests to this model because the provider sent them with the call."""
        return msgspec.json.decode(call.own.raw, type=dict[str, Raw]) if self.can_echo(call.own) else {}

    def priced(self, usage: Usage) -> Usage:
        return replace(usage, cost_micros=self.limits.cost_micros(usage))


class Stop(Struct, frozen=True):
    """The reason why the model stopped, in the same form for all wire protocols."""

    end_turn: bool = True
    truncated: bool = False
    refusal: bool = False
    said: str = ""
    context_full: bool = False


# The meaning of the stop reasons with which providers, or servers in front of them, report a full context window.
WINDOW_STOPS = dict.fromkeys(
    ("model_context_window_exceeded", "model_length"), Stop(end_turn=False, truncated=True, context_full=True)
)


class AnswerReader(ABC):
    """Builds one answer from a stream or a complete body. Not thread-safe; used on the request's thread."""

    USAGE: ClassVar[UsageFields]

    def __init__(self, prepared: PreparedRequest, sink: ModelSink) -> None:
        self._prepared = prepared
        self._sink: ModelSink | None = sink
        self._reported: dict[str, Any] | None = None
        self.size = ContentSize()
        self.complete = False
        """Whether the marker that ends the answer has arrived. A stream that ends before this marker is an error."""
        self.finished = False
        """Whether reading can stop, because the answer has ended and no token counts can follow."""

    @property
    def usage(self) -> Usage | None:
        if not self._reported:
            return None
        request, limits = self._prepared.request, self._prepared.limits
        return self._prepared.priced(self.USAGE.usage(self._reported, request, limits, self.size.bytes))

    @property
    def cut_off_usage(self) -> Usage | None:
        """The usage if the answer is cut off now, estimated where it was not reported; None if nothing has arrived."""
        told = self.usage
        if not self.size.begun or (told is not None and self.complete):
            return told
        usage = told or Usage(input_tokens=prompt_tokens(self._prepared.request))
        received = max(usage.output_tokens, tokens_of(self.size.bytes))
        return self._prepared.priced(replace(usage, output_tokens=received))

    @abstractmethod
    def event(self, event: SseEvent) -> None:
        """Process the next event.

        Raises ModelFailedError for a reported error; msgspec.DecodeError, UnicodeDecodeError or RecursionError if the
        event is not JSON; msgspec.ValidationError if it does not fit the protocol.
        """

    @abstractmethod
    def whole(self, body: bytes) -> None:
        """Process an answer that arrived as one JSON body; the sink gets no text. Raises what `event` raises."""

    @abstractmethod
    def answer(self) -> ModelAnswer:
        """The answer. Raises ModelFailedError if the marker that ends it has not arrived, or reports a failure."""

    def _count(self, usage: object) -> None:
        self._reported = merged(self._reported, usage)

    def _broken(self, text: str = "the answer ended before it was complete") -> ModelFailedError:
        return provider_errors.broken_answer(self._prepared.provider, text, self.usage)


class ContentSize:
    """The size of one answer's content.

    It is counted while the answer streams, so that an oversized answer can be stopped, and again when the answer is
    complete.
    """

    def __init__(self) -> None:
        self.begun = False
        self.bytes = 0
        self._blocks = 0
        self.excess = ""
        """The exceeded limit, worded for users; "" if none is exceeded."""

    @classmethod
    def of(cls, content: tuple[Content, ...]) -> ContentSize:
        size = cls()
        for block in content:
            size.begin_block()
            match block:
                case Text(text=text):
                    size.add(text)
                case Reasoning(text=text, raw=raw):
                    size.add_bytes(max(utf8_size(text), utf8_size(raw) - _ESCAPED_BYTES * utf8_size(text)))
                case ToolUse(name=name, input=arguments, own=own):
                    size.add(name)
                    size.add(arguments)
                    size.add(own.raw if own else "")
                case _:
                    pass
        return size

    def begin_block(self) -> None:
        self._blocks += 1
        if self._blocks > MAX_BLOCKS:
            self.excess = self.excess or f"{MAX_BLOCKS:,} parts"

    def add(self, text: str) -> None:
        self.add_bytes(utf8_size(text))

    def add_bytes(self, size: int) -> None:
        self.bytes += size
        if self.bytes > MAX_MODEL_RESPONSE_BYTES:
            self.excess = _MOST_BYTES


class TextBuffer:
    """Collects the chunks of one block of text or reasoning; counts each chunk and passes it to the sink.

    A chunk with which the answer becomes too large is not passed on: clients could not receive it.
    """

    def __init__(self, sink: ModelSink | None, size: ContentSize, *, reasoning: bool = False) -> None:
        self._sink = sink
        self._size = size
        self._reasoning = reasoning
        self._chunks: list[str] = []
        self._part = 0

    def add(self, text: str) -> None:
        """Append a chunk; "" is ignored."""
        if text:
            self._chunks.append(text)
            self._size.add(text)
            if self._sink is not None and not self._size.excess:
                self._sink.text(text, reasoning=self._reasoning)

    def next_part(self, separator: str = "") -> None:
        if len(self._chunks) > self._part:
            self.add(separator)
            self._part = len(self._chunks)

    def settle(self, text: str) -> None:
        """Replace the current part with its final form; the sink gets whatever the chunks did not contain."""
        if not text:
            return
        preview = "".join(self._chunks[self._part :])
        if text.startswith(preview):
            self.add(text[len(preview) :])
        else:
            self._chunks[self._part :] = [text]

    @property
    def text(self) -> str:
        return "".join(self._chunks)


def build_answer(
    prepared: PreparedRequest, content: tuple[Content, ...], stop: Stop, usage: Usage | None
) -> ModelAnswer:
    """Build and check a complete answer.

    Tool calls get ids and inputs that every provider accepts. Tool calls in a refusal are dropped, and so is the
    content of an answer that has only reasoning. Raises ModelFailedError: content_filter for a refusal without text,
    response_too_large for an answer that exceeds the limits of one message.
    """
    content = tuple(map(_joined, content))
    if excess := ContentSize.of(content).excess:
        raise provider_errors.too_large(prepared.provider, excess, usage)
    blocks = accepted_calls(content, prepared.request)
    if stop.refusal:
        # The refusal may have cut off a call in the middle of its input.
        blocks = tuple(block for block in blocks if not isinstance(block, ToolUse))
        if not any(isinstance(block, Text) and block.text.strip() for block in blocks):
            raise provider_errors.filtered(prepared.provider, stop.said, usage)
    if all(isinstance(block, Reasoning) for block in blocks):
        blocks = ()
    full = stop.context_full or (stop.truncated and _fills_window(prepared, blocks, usage))
    return ModelAnswer(blocks, stop.end_turn, usage, stop.truncated, stop.refusal, full)


def _fills_window(prepared: PreparedRequest, blocks: tuple[Content, ...], usage: Usage | None) -> bool:
    """Whether the window is full: the reported or estimated tokens fill it, or there was no room for any output."""
    if usage is None:
        used = prompt_tokens(prepared.request) + tokens_of(ContentSize.of(blocks).bytes)
        return used >= prepared.info.usable_window
    return (not blocks and usage.output_tokens <= 1) or usage.context_tokens >= prepared.info.usable_window


def _joined(block: Content) -> Content:
    match block:
        case Text(text=text):
            return Text(join_halves(text))
        case Reasoning(text=text, raw=raw):
            return replace(block, text=join_halves(text), raw=join_halves(raw))
        case ToolUse(id=identity, name=name, input=arguments, own=own):
            own = own and replace(own, raw=join_halves(own.raw))
            return replace(
                block, id=join_halves(identity), name=join_halves(name), input=join_halves(arguments), own=own
            )
        case _:
            return block
