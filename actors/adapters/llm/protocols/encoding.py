"""Code that the encoders of all protocols share: parts of turns, tool schemas, and turns that are encoded only once."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from actors.adapters.llm.protocols.answer_builder import PreparedRequest
from actors.common.json_schema import NativeOutput
from actors.core.content import (
    Content,
    Image,
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
from actors.core.history import Prefix, ProviderView, Turn
from actors.ports import ImageView, ToolSpec

# Keywords that providers refuse at the top level of a schema but accept inside it.
NOT_AT_THE_TOP = ("oneOf", "anyOf", "allOf", "not", "enum")


def for_providers(tool: ToolSpec) -> ToolSpec:
    """The tool in a form that providers accept: keywords refused at the top of a schema move to the description.

    No check is lost, because the input is validated against the whole schema.
    """
    moved = {key: tool.input_schema[key] for key in NOT_AT_THE_TOP if key in tool.input_schema}
    if not moved:
        return tool
    kept = {key: value for key, value in tool.input_schema.items() if key not in moved}
    words = f"The input must also match this JSON Schema: {json.dumps(moved, ensure_ascii=False)}"
    return replace(tool, description=f"{tool.description}\n\n{words}".lstrip(), input_schema=kept)


ENCODER = msgspec.json.Encoder()


def encoded_tools(tools: Iterable[ToolSpec], form: Callable[[ToolSpec], dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools in a protocol's `form`, with schemas that providers accept."""
    return [form(for_providers(tool)) for tool in tools]


def is_failed(result: ToolResult) -> bool:
    """Whether the model is told that the call with this result failed."""
    match result:
        case ToolSuccess():
            return False
        case SubAgentComplete():
            return not result.success
        case ToolError() | ToolCancelled():
            return True


def result_text(result: ToolResult) -> str:
    """A result as text for the model; never empty, since some providers refuse empty results."""
    images = result.images if isinstance(result, ToolSuccess) else ()
    parts = [result.output] if result.output.strip() else []
    return "\n".join((*parts, *map(image_placeholder, images))) or "(no output)"


def image_placeholder(image: Image) -> str:
    """The text that replaces an image for models that do not accept images."""
    return f"[an image, {image.media_type} {image.width}x{image.height}, that could not be sent to you]"


def view_of(image: Image, prepared: PreparedRequest) -> ImageView | None:
    """The scaled-down image that the model gets; None if `image_placeholder` must replace the image."""
    return prepared.request.view_of(image) if prepared.info.images else None


def separate_images(result: ToolResult, prepared: PreparedRequest) -> tuple[ToolResult, tuple[ImageView, ...]]:
    """A tool result without the images that the model can see, and the scaled-down copies of those images."""
    if not isinstance(result, ToolSuccess) or not result.images:
        return result, ()
    views = [(image, view_of(image, prepared)) for image in result.images]
    hidden = tuple(image for image, view in views if view is None)
    return replace(result, images=hidden), tuple(view for _, view in views if view is not None)


def results_and_parts(
    content: Sequence[Content], prepared: PreparedRequest, result_of: Callable[[str, str], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str | ImageView]]:
    """The tool results in a user turn, made by `result_of(call id, text)`, and the turn's texts and images.

    For OpenAI's protocols. They have no flag for failed calls, so the result of a failed call begins with "Error: ".
    Not every server accepts images in tool results, so they become parts of the user message.
    """
    results: list[dict[str, Any]] = []
    parts: list[str | ImageView] = []
    for block in content:
        if is_tool_result(block):
            visible, views = separate_images(block, prepared)
            text = ("Error: " if is_failed(block) else "") + result_text(visible)
            results.append(result_of(block.tool_use_id, text))
            parts += [f"Images from tool call {block.tool_use_id}:", *views] if views else []
    return results, [*parts, *user_parts(content, prepared)]


def user_parts(content: Iterable[Content], prepared: PreparedRequest) -> list[str | ImageView]:
    """The texts and images of a user turn in order, without blank texts or tool results."""
    parts: list[str | ImageView] = []
    for block in content:
        if isinstance(block, Image):
            parts.append(view_of(block, prepared) or image_placeholder(block))
        elif isinstance(block, Text) and block.text.strip():
            parts.append(block.text)
    return parts


def base64_text(view: ImageView) -> str:
    return base64.b64encode(view.data).decode()


def data_url(view: ImageView) -> str:
    return f"data:{view.media_type};base64,{base64_text(view)}"


def has_visible_content(content: Iterable[Content]) -> bool:
    """Whether an assistant turn contains more than reasoning and blank texts."""
    return any(isinstance(b, ToolUse) or (isinstance(b, Text) and b.text.strip()) for b in content)


def json_elements(parts: Iterable[Any]) -> bytes:
    """Encode `parts` as the elements of a JSON array, without the brackets; b"" if there are none."""
    return b",".join(map(ENCODER.encode, parts))


def object_with_array(head: Mapping[str, Any], key: str, *elements: bytes | bytearray) -> bytes:
    """Encode the object `head` with one more member `key`, an array of the already encoded `elements`."""
    return b"".join((ENCODER.encode(head)[:-1], b',"', key.encode(), b'":[', *elements, b"]}"))


def openai_head(
    prepared: PreparedRequest, limit_field: str, tool: Callable[[ToolSpec], dict[str, Any]]
) -> dict[str, Any]:
    """The fields that request bodies of OpenAI's protocols share; `limit_field` limits the answer ("" for no limit)."""
    provider, request = prepared.provider, prepared.request
    head: dict[str, Any] = {"model": prepared.info.name, "stream": True}
    if (prepared.info.known or request.max_output) and limit_field:
        # If the model's limits are unknown and the request sets no limit, the server's default is used.
        head[limit_field] = prepared.limits.reserved_output
    if provider.cache_key:
        head["prompt_cache_key"] = request.cache_key or request.conversation_id
    if request.generation.temperature is not None:
        head["temperature"] = request.generation.temperature
    if request.tools:
        head["tools"] = encoded_tools(request.tools, tool)
        if provider.tool_choice:
            head["tool_choice"] = provider.tool_choice
    return head


def effort_name(effort: ReasoningEffort) -> str:
    return "xhigh" if effort is ReasoningEffort.MAX else effort.value


def json_schema_format(output: NativeOutput) -> dict[str, Any]:
    """The JSON Schema that a run's final answer must fit, in the form used by OpenAI's API and similar APIs."""
    return {"name": "output", "schema": output.schema, "strict": output.strict}


# A function that returns the separator before an encoded turn, given the role of the previous turn ("" for none) and
# that of this turn.
Joint = Callable[[str, str], bytes]
# A function that encodes a turn; it returns b"" if no part of the turn can be sent.
Encode = Callable[["Turn"], bytes]


def comma(before: str, _role: str) -> bytes:
    """The separator before a turn that is an element of a JSON array; b"" before the first one."""
    return b"," if before else b""


class EncodedTurns:
    def __init__(self, joint: Joint, role: str = "") -> None:
        self._joint = joint
        self.data = bytearray()
        self.role = role
        """The role of the turn that was added last; before the first `add`, the role of the turn before all of these;
        "" for none."""

    def add(self, turns: Iterable[Turn], encode: Encode) -> None:
        """Encode further turns and append them. Raises what `encode` raises."""
        for turn in turns:
            if encoded := encode(turn):
                self.data += self._joint(self.role, turn.role) + encoded
                self.role = turn.role


class EncodedPrefix:
    """The encoded beginning of a conversation: those turns of its last request that no longer change."""

    def __init__(self, form: Hashable, joint: Joint) -> None:
        self.form = form
        self.encoded = EncodedTurns(joint)
        self.turns = Prefix()

    @property
    def held(self) -> int:
        """The size of the encoded turns in bytes, without the original turns, which other objects hold anyway."""
        return sys.getsizeof(self.encoded.data)

    def grow(self, view: ProviderView, encode: Encode) -> None:
        """Append those turns in `view` that no longer change; `view` must begin with this prefix.

        Raises what `encode` raises.
        """
        self.encoded.add(view.turns[self.turns.settled : view.settled], encode)
        self.turns = view.prefix


class PrefixCache:
    """Keeps one encoded prefix per conversation, so that a request encodes only its new turns. Thread-safe.

    If the prefixes exceed `max_bytes` in total, the least recently used ones are dropped.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max = max_bytes
        # Guards _entries and _held. A prefix is taken out of the cache before it grows, so encoding needs no lock.
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, EncodedPrefix] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """The memory used by all kept prefixes, in bytes."""
        return self._held

    def pop(self, conversation_id: str, form: Hashable, joint: Joint, view: ProviderView) -> EncodedPrefix:
        """Remove and return the conversation's stored prefix; if there is none that fits, return an empty prefix.

        A stored prefix fits if `view` begins with it and it was encoded for the same `form`. The form is everything
        that the encoding depends on apart from the turns.
        """
        with self._lock:
            kept = self._remove(conversation_id)
        if kept is None or kept.form != form or not view.begins_with(kept.turns):
            return EncodedPrefix(form, joint)
        return kept

    def put(self, conversation_id: str, prefix: EncodedPrefix) -> None:
        """Keep a prefix for the conversation's next request."""
        with self._lock:
            self._remove(conversation_id)
            self._entries[conversation_id] = prefix
            self._held += prefix.held
            while self._held > self._max:
                self._remove(next(iter(self._entries)))

    def forget(self, conversation_id: str) -> None:
        with self._lock:
            self._remove(conversation_id)

    def _remove(self, conversation_id: str) -> EncodedPrefix | None:
        kept = self._entries.pop(conversation_id, None)
        self._held -= kept.held if kept is not None else 0
        return kept
