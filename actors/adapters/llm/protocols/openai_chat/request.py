"""OpenAI Chat Completions: how a conversation is put into its words. The answer is read by `openai_chat_answer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import msgspec

from actors.adapters.llm.protocols import tool_calls
from actors.adapters.llm.protocols.answer_builder import Asked
from actors.adapters.llm.protocols.rendering import (
    ENCODER,
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
from actors.adapters.llm.provider import OPENAI_CHAT
from actors.core.content import Content, Reasoning, Text, ToolUse
from actors.core.history import Turn
from actors.ports import ImageView

PATH = "/chat/completions"


def body_of(asked: Asked, turns: Sequence[tuple[str, bytes]]) -> bytes:
    """The request as JSON; the same turns always give the same bytes. Sampling parameters are never sent."""
    provider, request = asked.provider, asked.request
    head: dict[str, Any] = {"model": asked.info.name, "stream": True}
    if provider.stream_usage:
        head["stream_options"] = {"include_usage": True}
    if asked.info.known and provider.max_tokens_field:
        # A server whose limits are unknown knows best what it can write.
        head[provider.max_tokens_field] = asked.limits.reserved_output
    if provider.cache_key:
        head["prompt_cache_key"] = request.conversation_id
    if request.tools:
        head["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in request.tools
        ]
        if provider.tool_choice:
            head["tool_choice"] = provider.tool_choice
    system = {"role": provider.system_role, "content": request.system}
    texts = [ENCODER.encode(system) if request.system else b"", *(text for _, text in turns)]
    return with_last(head | dict(provider.extra_body), "messages", ((text,) for text in texts if text))


def turn_of(turn: Turn, asked: Asked) -> bytes:
    """A turn's messages; b"" if nothing of it can be sent."""
    return joined(_messages(turn, asked))


def _messages(turn: Turn, asked: Asked) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        if spoken(turn.content):
            yield _assistant(turn.content, asked)
        return
    parts: list[str | ImageView] = []
    for block in turn.content:
        if is_result(block):
            told, views = pictured(block, asked)
            # There is no flag for a failure, so the text says it.
            text = ("Error: " if failed(block) else "") + result_text(told)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
            # Servers differ in whether a tool's message may hold images; what a person says may.
            parts += [follow_up_of(block), *views] if views else []
    parts += said(turn.content, asked)
    if parts:
        yield {"role": "user", "content": _content(parts)}


def _content(parts: list[str | ImageView]) -> Any:
    """One text, unless there are images: not every server takes parts."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts)
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part), "detail": "auto"}}
        for part in parts
    ]


def _assistant(content: tuple[Content, ...], asked: Asked) -> dict[str, Any]:
    text = "".join(block.text for block in content if isinstance(block, Text))
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls = [block for block in content if isinstance(block, ToolUse)]
    echo = asked.provider.echo_reasoning
    if echo == "always" or (echo == "calls" and calls):
        # Thinking models want their reasoning back beside their calls; beside plain answers some refuse it.
        for block in content:
            if _is_own(block, asked.info.name):
                message |= msgspec.json.decode(block.raw, type=dict[str, msgspec.Raw])
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": tool_calls.name_of(call), "arguments": tool_calls.arguments_of(call).decode()},
            }
            for call in calls
        ]
    return message


def _is_own(block: Content, model: str) -> TypeGuard[Reasoning]:
    return isinstance(block, Reasoning) and bool(block.raw) and block.protocol == OPENAI_CHAT and block.model == model
