"""OpenAI Chat Completions: how a conversation is put into its words. The answer is read by `openai_answer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.core.content import Content, Image, Reasoning, Text, ToolUse
from actors.core.history import Turn
from actors.llm import tool_calls
from actors.llm.answer import Asked
from actors.llm.exchange import Exchange
from actors.llm.http import Transport
from actors.llm.limits import ModelLimits
from actors.llm.openai_answer import OpenAiReader
from actors.llm.provider import OPENAI_CHAT, ProviderConfig
from actors.llm.rendering import failed, is_result, result_text, shown, spoken
from actors.ports import CancelToken, ModelAnswer, ModelInfo, ModelRequest, ModelSink


class OpenAiModel:
    """A model behind `POST /chat/completions`. Any thread."""

    def __init__(self, provider: ProviderConfig, transport: Transport, info: ModelInfo, limits: ModelLimits) -> None:
        self.info = info
        self._provider = provider
        self._limits = limits
        self._exchange = Exchange(provider, transport)

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """See ports.Model."""
        asked = Asked(self._provider, self.info, self._limits, request)
        reader = OpenAiReader(asked, sink)
        return self._exchange.ask("/chat/completions", body_of(asked), reader, sink, cancel)


def body_of(asked: Asked) -> bytes:
    """The request as JSON; the same turns always give the same bytes. Sampling parameters are never sent."""
    request = asked.request
    body: dict[str, Any] = {
        "model": asked.info.name,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.info.known:
        # A server whose limits are unknown knows best what it can write.
        body[asked.provider.max_tokens_field] = asked.limits.reserved_output
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in request.tools
        ]
    system = [{"role": "system", "content": request.system}] if request.system else []
    body["messages"] = system + [message for turn in request.turns for message in _messages(turn, asked.info.name)]
    return msgspec.json.encode(body)


def _messages(turn: Turn, model: str) -> Iterator[dict[str, Any]]:
    if turn.role == "assistant":
        if spoken(turn.content):
            yield _assistant(turn.content, model)
        return
    for block in turn.content:
        if is_result(block):
            # There is no flag for a failure, so the text says it.
            text = ("Error: " if failed(block) else "") + result_text(block)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
    texts = [_text(block) for block in turn.content if isinstance(block, Text | Image)]
    said = "\n\n".join(text for text in texts if text.strip())
    if said:
        yield {"role": "user", "content": said}


def _text(block: Text | Image) -> str:
    return shown(block) if isinstance(block, Image) else block.text


def _assistant(content: tuple[Content, ...], model: str) -> dict[str, Any]:
    text = "".join(block.text for block in content if isinstance(block, Text))
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls = [block for block in content if isinstance(block, ToolUse)]
    if not calls:
        return message
    for block in content:
        # Thinking models want their reasoning back beside their calls; beside plain answers some refuse it.
        if isinstance(block, Reasoning) and block.raw and block.protocol == OPENAI_CHAT and block.model == model:
            message |= msgspec.json.decode(block.raw, type=dict[str, msgspec.Raw])
    message["tool_calls"] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": tool_calls.name_of(call), "arguments": tool_calls.arguments_of(call).decode()},
        }
        for call in calls
    ]
    return message
