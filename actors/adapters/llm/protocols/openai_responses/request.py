"""Encodes a conversation as a stateless request of OpenAI Responses. The module `response` reads the answer.

Every request contains the whole history as items. Messages, calls and results are rebuilt from their content. Encrypted
reasoning, which only the provider can read, is sent back byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.protocols.rendering import (
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
from actors.core.content import Content, Reasoning, Text, ToolUse, is_tool_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.adapters.llm.protocols.answer_builder import PreparedRequest
    from actors.core.history import Turn
    from actors.ports import ImageView

PATH = "/responses"


class AnswerPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The phase of an answer to which one of its texts belongs, by the name that the model has given it.

    It is stored as the `raw` of a Reasoning block before the text, because the history has no other field for it.
    Models that report phases need them again in later requests.
    """

    phase: str


_PHASE = msgspec.json.Decoder(AnswerPhase)
_TOOLS = EncodedTools(
    lambda tool: {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": False,
    }
)


def body_of(prepared: PreparedRequest, turns: Sequence[bytes]) -> Sequence[bytes]:
    """Return the body of a request as JSON, in pieces; the same turns always give the same bytes."""
    provider, request = prepared.provider, prepared.request
    head: dict[str, Any] = {"model": prepared.info.name, "stream": True, "store": False}
    if provider.encrypted_reasoning and prepared.limits.reasons:
        head["include"] = ["reasoning.encrypted_content"]
    if prepared.info.known or request.max_output:
        # If neither the model's limits are known nor the request has a limit, the server's default is used.
        head["max_output_tokens"] = prepared.limits.reserved_output
    if provider.cache_key:
        head["prompt_cache_key"] = request.cache_key or request.conversation_id
    if request.generation.temperature is not None:
        head["temperature"] = request.generation.temperature
    if effort := request.generation.reasoning_effort:
        head["reasoning"] = {"effort": effort_name(effort)}
    if request.output is not None:
        head["text"] = {"format": {"type": "json_schema", **json_schema_format(request.output)}}
    if request.system:
        head["instructions"] = request.system
    if request.tools:
        head["tools"] = _TOOLS.of(request.tools)
        if provider.tool_choice:
            head["tool_choice"] = provider.tool_choice
    return object_with_array(head | dict(provider.extra_body), "input", *turns)


def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
    """Return the encoded items of a turn, joined by commas; b"" if no part of the turn can be sent."""
    if turn.role == "assistant":
        return json_elements(_answered(turn.content, prepared)) if has_visible_content(turn.content) else b""
    return json_elements(_told(turn.content, prepared))


def _answered(content: tuple[Content, ...], prepared: PreparedRequest) -> Iterator[Any]:
    """Yield the items of a model's answer.

    Providers refuse reasoning without the output to which it has led, so reasoning at the end of the answer is omitted.
    """
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
                    "name": tool_calls.name_of(block),
                    "arguments": tool_calls.arguments_of(block).decode(),
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
    parts: list[str | ImageView] = []
    for block in content:
        if is_tool_result(block):
            visible, views = separate_images(block, prepared)
            # The protocol has no flag for a failed call.
            text = ("Error: " if is_failed(block) else "") + result_text(visible)
            yield {"type": "function_call_output", "call_id": block.tool_use_id, "output": text}
            # Not every server accepts images in a call's output, but all accept them in a user message.
            parts += [images_caption(block), *views] if views else []
    parts += user_parts(content, prepared)
    if parts:
        yield {"type": "message", "role": "user", "content": [_part(part) for part in parts]}


def _part(part: str | ImageView) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
