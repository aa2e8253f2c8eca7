"""Anthropic Messages: how a conversation is put into its words. The answer is read by `anthropic_answer`."""

from __future__ import annotations

from typing import Any

import msgspec

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
)
from actors.core.history import Turn
from actors.llm import tool_calls
from actors.llm.answer import Asked
from actors.llm.anthropic_answer import AnthropicReader
from actors.llm.exchange import Exchange
from actors.llm.http import Transport
from actors.llm.limits import ModelLimits
from actors.llm.provider import ANTHROPIC, ProviderConfig
from actors.llm.rendering import failed, is_result, merged, result_text, shown, spoken
from actors.ports import CancelToken, ModelAnswer, ModelInfo, ModelRequest, ModelSink


class AnthropicModel:
    """A model behind `POST /v1/messages`. Any thread."""

    def __init__(self, provider: ProviderConfig, transport: Transport, info: ModelInfo, limits: ModelLimits) -> None:
        self.info = info
        self._provider = provider
        self._limits = limits
        self._exchange = Exchange(provider, transport)

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """See ports.Model."""
        asked = Asked(self._provider, self.info, self._limits, request)
        reader = AnthropicReader(asked, sink)
        return self._exchange.ask("/v1/messages", body_of(asked), reader, sink, cancel)


def body_of(asked: Asked) -> bytes:
    """The request as JSON. The same turns always give the same bytes, so the provider's cache and its check of
    returned thinking hold; sampling parameters are never sent."""
    provider, request = asked.provider, asked.request
    body: dict[str, Any] = {
        "model": asked.info.name,
        "max_tokens": asked.limits.reserved_output,
        "stream": True,
    }
    if request.system:
        body["system"] = request.system
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in request.tools
        ]
    if provider.prompt_cache:
        body["cache_control"] = {"type": "ephemeral"}
    messages = ((turn.role, _blocks(turn, asked.info.name)) for turn in request.turns)
    body["messages"] = [{"role": role, "content": blocks} for role, blocks in merged(messages)]
    return msgspec.json.encode(body)


def _blocks(turn: Turn, model: str) -> list[Any]:
    content = sorted(turn.content, key=lambda block: not is_result(block)) if turn.role == "user" else turn.content
    blocks = [encoded for block in content if (encoded := _block(block, model)) is not None]
    if turn.role == "assistant" and not spoken(content):
        return []  # reasoning alone is refused
    return blocks


def _block(block: Content, model: str) -> Any:
    match block:
        case Text():
            return {"type": "text", "text": block.text} if block.text.strip() else None
        case Reasoning():
            own = block.raw and block.protocol == ANTHROPIC and block.model == model
            return msgspec.Raw(block.raw.encode()) if own else None
        case ToolUse():
            arguments = msgspec.Raw(tool_calls.arguments_of(block))
            return {"type": "tool_use", "id": block.id, "name": tool_calls.name_of(block), "input": arguments}
        case Image():
            return {"type": "text", "text": shown(block)}
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            return _result(block)


def _result(block: ToolResult) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": block.tool_use_id,
        "content": result_text(block),
    }
    if failed(block):
        result["is_error"] = True
    return result
