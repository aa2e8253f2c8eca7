"""Encodes those parts of turns that have the same form in several wire protocols."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from actors.adapters.llm.protocols.tool_schemas import for_providers
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
)
from actors.core.profile import ReasoningEffort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from actors.adapters.llm.protocols.answer_builder import PreparedRequest
    from actors.ports import ImageView, ToolSpec
    from actors.ports.schemas.output_schema import NativeOutput

ENCODER = msgspec.json.Encoder()
KEPT_TOOLS = 64
"""The maximum number of tool lists whose encoded form is cached, per protocol; each takes about 10 KB."""


class EncodedTools:
    """Caches the encoded tools of one protocol, since most requests offer the same tools.

    Safe to call from any thread.
    """

    def __init__(self, form: Callable[[ToolSpec], dict[str, Any]]) -> None:
        self._form = form
        self._kept: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], msgspec.Raw]] = {}
        """Encoded tools, by the `id()` of each tool. The tools are kept, too, so that their ids are not reused."""

    def of(self, tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
        """Return the JSON array of these tools. The result must not be modified, because requests share it."""
        key = tuple(map(id, tools))
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT_TOOLS:
                self._kept.clear()
            encoded = ENCODER.encode([self._form(for_providers(tool)) for tool in tools])
            kept = self._kept[key] = tools, msgspec.Raw(encoded)
        return kept[1]


def is_failed(result: ToolResult) -> bool:
    """Return whether the model is told that the call with this result has failed."""
    match result:
        case ToolSuccess():
            return False
        case SubAgentComplete():
            return not result.success
        case ToolError() | ToolCancelled():
            return True


def result_text(result: ToolResult) -> str:
    """Return a result as text for the model; never empty, since some providers refuse empty results."""
    images = result.images if isinstance(result, ToolSuccess) else ()
    parts = [result.output] if result.output.strip() else []
    return "\n".join((*parts, *map(image_placeholder, images))) or "(no output)"


def image_placeholder(image: Image) -> str:
    """Return the text that replaces an image for models that do not accept images."""
    return f"[an image, {image.media_type} {image.width}x{image.height}, that could not be sent to you]"


def view_of(image: Image, prepared: PreparedRequest) -> ImageView | None:
    """Return the scaled-down image that the model gets; None if `image_placeholder` has to replace the image."""
    return prepared.request.view_of(image) if prepared.info.images else None


def separate_images(result: ToolResult, prepared: PreparedRequest) -> tuple[ToolResult, tuple[ImageView, ...]]:
    """Return a tool result without the images that the model can see, and the scaled-down copies of these images."""
    if not isinstance(result, ToolSuccess) or not result.images:
        return result, ()
    views = [(image, view_of(image, prepared)) for image in result.images]
    hidden = tuple(image for image, view in views if view is None)
    return replace(result, images=hidden), tuple(view for _, view in views if view is not None)


def user_parts(content: Iterable[Content], prepared: PreparedRequest) -> list[str | ImageView]:
    """Return the texts and images of a user turn in their order, without blank texts and without tool results."""
    parts: list[str | ImageView] = []
    for block in content:
        if isinstance(block, Image):
            parts.append(view_of(block, prepared) or image_placeholder(block))
        elif isinstance(block, Text) and block.text.strip():
            parts.append(block.text)
    return parts


def base64_text(view: ImageView) -> str:
    """Return the bytes of an image in base64."""
    return base64.b64encode(view.data).decode()


def data_url(view: ImageView) -> str:
    """Return an image as a "data:" URL."""
    return f"data:{view.media_type};base64,{base64_text(view)}"


def images_caption(result: ToolResult) -> str:
    """Return the text that introduces a result's images if these cannot be part of the result."""
    return f"What tool call {result.tool_use_id} shows:"


def has_visible_content(content: Iterable[Content]) -> bool:
    """Return whether an assistant turn contains more than reasoning and blank texts."""
    return any(isinstance(b, ToolUse) or (isinstance(b, Text) and b.text.strip()) for b in content)


def json_elements(parts: Iterable[Any]) -> bytes:
    """Encode `parts` as the elements of a JSON array, without the brackets; b"" if there are none."""
    return b",".join(map(ENCODER.encode, parts))


def object_with_array(head: Mapping[str, Any], key: str, *elements: bytes) -> Sequence[bytes]:
    """Encode the object `head` with one more member `key`, an array of `elements`, which are encoded already.

    The result is a list of pieces, which are not joined, because a body may have megabytes.
    """
    return ENCODER.encode(head)[:-1] + b',"' + key.encode() + b'":[', *elements, b"]}"


def effort_name(effort: ReasoningEffort) -> str:
    """Return the name of a reasoning effort in OpenAI's API and in APIs like it."""
    return "xhigh" if effort is ReasoningEffort.MAX else effort.value


def json_schema_format(output: NativeOutput) -> dict[str, Any]:
    """Return the JSON Schema that a run's final answer must fit, in the form of OpenAI's API and of APIs like it."""
    return {"name": "output", "schema": output.schema, "strict": output.strict}
