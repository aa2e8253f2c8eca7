"""Encodes a conversation as a request of OpenAI Chat Completions. The module `response` reads the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.protocols.rendering import (
    ENCODER,
    EncodedTools,
    data_url,
    effort_name,
    has_visible_content,
    images_caption,
    is_failed,
    json_elements,
    json_schema_format,
    object_with_array,
    result_text,
    separate_images,
    user_parts,
)
from actors.core.content import Content, Text, ToolUse, is_tool_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.adapters.llm.protocols.answer_builder import PreparedRequest
    from actors.core.history import Turn
    from actors.ports import ImageView

PATH = "/chat/completions"

#: The fields of a message with which gateways mark the reasoning of other providers; they always need them back.
DETAILS = ("reasoning_details", "thinking_blocks")

_TOOLS = EncodedTools(
    lambda tool: {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }
)


def body_of(prepared: PreparedRequest, turns: Sequence[bytes]) -> Sequence[bytes]:
    """Return the body of a request as JSON, in pieces; the same turns always give the same bytes."""
    provider, request = prepared.provider, prepared.request
    head: dict[str, Any] = {"model": prepared.info.name, "stream": True}
    if provider.stream_usage:
        head["stream_options"] = {"include_usage": True}
    if (prepared.info.known or request.max_output) and provider.max_tokens_field:
        # If neither the model's limits are known nor the request has a limit, the server's default is used.
        head[provider.max_tokens_field] = prepared.limits.reserved_output
    if provider.cache_key:
        head["prompt_cache_key"] = request.cache_key or request.conversation_id
    if request.generation.temperature is not None:
        head["temperature"] = request.generation.temperature
    if effort := request.generation.reasoning_effort:
        head["reasoning_effort"] = effort_name(effort)
    if request.output is not None:
        head["response_format"] = {"type": "json_schema", "json_schema": json_schema_format(request.output)}
    if request.tools:
        head["tools"] = _TOOLS.of(request.tools)
        if provider.tool_choice:
            head["tool_choice"] = provider.tool_choice
    system = {"role": provider.system_role, "content": request.system}
    first = ENCODER.encode(system) if request.system else b""
    between = b"," if first and any(turns) else b""
    return object_with_array(head | dict(provider.extra_body), "messages", first, between, *turns)


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """Return the encoded messages of a turn, joined by commas; b"" if no part of the turn can be sent."""
    return json_elements(_messages(turn, prepared))


def _messages(turn: Turn, prepared: PreparedRequest) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        if has_visible_content(turn.content):
            yield _assistant(turn.content, prepared)
        return
    parts: list[str | ImageView] = []
    for block in turn.content:
        if is_tool_result(block):
            visible, views = separate_images(block, prepared)
            # The protocol has no flag for a failed call.
            text = ("Error: " if is_failed(block) else "") + result_text(visible)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
            # Not every server accepts images in a tool message, but all accept them in a user message.
            parts += [images_caption(block), *views] if views else []
    parts += user_parts(turn.content, prepared)
    if parts:
        yield {"role": "user", "content": _content(parts)}


def _content(parts: list[str | ImageView]) -> Any:
    """Return the content of a message: a plain text, or a list of parts if there are images.

    Not every server accepts a list of parts.
    """
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
    # Reasoning models need their reasoning with their calls; some servers refuse reasoning with plain answers.
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
                "function": {"name": tool_calls.name_of(call), "arguments": tool_calls.arguments_of(call).decode()},
                **prepared.own_fields(call),
            }
            for call in calls
        ]
    return message
