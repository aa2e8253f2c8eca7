"""OpenAI Responses, without any state at the provider: how a conversation is put into its words.

Every request holds the whole history as items. Messages, calls and results are built anew from what they say; what
only the provider can read, encrypted reasoning, is given back byte for byte. The answer is read by
`openai_responses_answer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.protocols.answer_builder import Asked
from actors.adapters.llm.protocols.rendering import (
    data_url,
    failed,
    follow_up_of,
    is_result,
    joined,
    pictured,
    result_text,
    said,
    spoken,
    with_last,
)
from actors.adapters.llm.provider import OPENAI_RESPONSES
from actors.core.content import Content, Reasoning, Text, ToolUse
from actors.core.history import Turn
from actors.ports import ImageView

PATH = "/responses"


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `raw` of a Reasoning that stands before a text: which part of an answer the model said it is.

    Models that say so want to read it again; there is nothing else in a history that could hold it.
    """

    phase: str


_PHASE = msgspec.json.Decoder(Phase)


def body_of(asked: Asked, turns: Sequence[tuple[str, bytes]]) -> bytes:
    """The request as JSON; the same turns always give the same bytes. Sampling parameters are never sent."""
    provider, request = asked.provider, asked.request
    head: dict[str, Any] = {"model": asked.info.name, "stream": True, "store": False}
    if provider.encrypted_reasoning and asked.limits.reasons:
        head["include"] = ["reasoning.encrypted_content"]
    if asked.info.known:
        # A server whose limits are unknown knows best what it can write.
        head["max_output_tokens"] = asked.limits.reserved_output
    if provider.cache_key:
        head["prompt_cache_key"] = request.conversation_id
    if request.system:
        head["instructions"] = request.system
    if request.tools:
        head["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in request.tools
        ]
        if provider.tool_choice:
            head["tool_choice"] = provider.tool_choice
    return with_last(head | dict(provider.extra_body), "input", ((items,) for _, items in turns if items))


def turn_of(turn: Turn, asked: Asked) -> bytes:
    """A turn's items; b"" if nothing of it can be sent."""
    if turn.role == "assistant":
        return joined(_answered(turn.content, asked.info.name)) if spoken(turn.content) else b""
    return joined(_told(turn.content, asked))


def _answered(content: tuple[Content, ...], model: str) -> Iterator[Any]:
    """An answer's items. Reasoning is refused without what came of it, so what trails is left out."""
    last = max(index for index, block in enumerate(content) if spoken((block,)))
    phase: dict[str, str] = {}
    for block in content[: last + 1]:
        match block:
            case Reasoning() if block.raw and block.protocol == OPENAI_RESPONSES and block.model == model:
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
                }
            case _:
                pass


def _phase_of(raw: str) -> str:
    try:
        return _PHASE.decode(raw).phase
    except msgspec.DecodeError:
        return ""


def _told(content: tuple[Content, ...], asked: Asked) -> Iterator[Any]:
    parts: list[str | ImageView] = []
    for block in content:
        if is_result(block):
            told, views = pictured(block, asked)
            # There is no flag for a failure, so the text says it.
            text = ("Error: " if failed(block) else "") + result_text(told)
            yield {"type": "function_call_output", "call_id": block.tool_use_id, "output": text}
            # Servers differ in whether an output may hold images; what a person says may.
            parts += [follow_up_of(block), *views] if views else []
    parts += said(content, asked)
    if parts:
        yield {"type": "message", "role": "user", "content": [_part(part) for part in parts]}


def _part(part: str | ImageView) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
