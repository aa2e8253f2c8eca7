"""Encodes a conversation as a request of Anthropic Messages. The module `response` reads the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.protocols.rendering import (
    EncodedTools,
    base64_text,
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
from actors.core.profile import ReasoningEffort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.adapters.llm.protocols.answer_builder import PreparedRequest
    from actors.core.history import Turn
    from actors.ports import ImageView

PATH = "/v1/messages"

_OPENINGS = {role: b'{"role":"%s","content":[' % role.encode() for role in ("user", "assistant")}
_END = b"]}"
_TOOLS = EncodedTools(
    lambda tool: {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
)


def body_of(prepared: PreparedRequest, turns: Sequence[bytes]) -> Sequence[bytes]:
    """Return the body of a request as JSON, in pieces.

    The same turns always give the same bytes. Otherwise the provider's prompt cache would miss, and the provider would
    reject the thinking blocks that are sent back. Sampling parameters are never sent, because the API refuses them.
    """
    provider, request = prepared.provider, prepared.request
    head: dict[str, Any] = {
        "model": prepared.info.name,
        "max_tokens": prepared.limits.reserved_output,
        "stream": True,
    }
    if request.system:
        head["system"] = request.system
    if request.tools:
        head["tools"] = _TOOLS.of(request.tools)
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
    """Return the JSON text before the blocks of a turn with the role `role`.

    `before` is the role of the previous turn, "" if there is none. Adjacent turns with the same role share a message.
    """
    if before == role:
        return b","
    return (_END + b"," if before else b"") + _OPENINGS[role]


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """Return the encoded blocks of a turn; b"" if no part of the turn can be sent."""
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
            arguments = Raw(tool_calls.arguments_of(block))
            call = {"type": "tool_use", "id": block.id, "name": tool_calls.name_of(block), "input": arguments}
            return call | prepared.own_fields(block)
        case Image():
            view = view_of(block, prepared)
            return {"type": "text", "text": image_placeholder(block)} if view is None else _image(view)
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            return _result(block, prepared)


def _image(view: ImageView) -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": view.media_type, "data": base64_text(view)},
    }


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
