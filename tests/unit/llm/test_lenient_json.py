"""Lone surrogates in what a provider sends: replaced, whatever the protocol, and never a failed attempt."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.adapters.llm.protocols.lenient_json import replace_lone_surrogates
from actors.core.content import Text, ToolUse
from tests.support.model_requests import Sink, ask, model
from tests.support.scripted_server import ScriptedServer, answer, named, plain, stream

SAID = "a\ud800b\U0001f600c\udc00"
READ = "a\ufffdb\U0001f600c\ufffd"
INPUT = json.dumps({"cmd": SAID, "path": "C:\\\\ud800"})


def _anthropic() -> tuple[dict[str, Any], list[bytes]]:
    called = {"type": "tool_use", "id": "c", "name": "bash", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": SAID}},
        {"type": "content_block_start", "index": 1, "content_block": called},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": INPUT[:18]}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": INPUT[18:]}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    content = [{"type": "text", "text": SAID}, {**called, "input": json.loads(INPUT)}]
    return {"type": "message", "content": content, "stop_reason": "tool_use"}, named(*events)


def _chat() -> tuple[dict[str, Any], list[bytes]]:
    call = {"index": 0, "id": "c", "function": {"name": "bash", "arguments": INPUT}}
    message = {"content": SAID, "tool_calls": [call]}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    return whole, plain({"choices": [{"index": 0, "delta": message, "finish_reason": "tool_calls"}]}, "[DONE]")


def _responses() -> tuple[dict[str, Any], list[bytes]]:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": SAID}]}
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "bash", "arguments": INPUT}
    response = {"status": "completed", "output": [message, call]}
    events: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", "item_id": "m", "delta": SAID},
        {"type": "response.output_item.done", "item": message},
        {"type": "response.output_item.done", "item": call},
        {"type": "response.completed", "response": response},
    ]
    return response, named(*events)


PROTOCOLS = {"anthropic": _anthropic, "openai-chat": _chat, "openai-responses": _responses}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_lone_surrogate_is_replaced_in_text_and_in_tool_input(protocol: str, streamed: bool) -> None:
    whole, events = PROTOCOLS[protocol]()
    script = stream(events) if streamed else answer(200, json.dumps(whole).encode())
    sink = Sink()
    with ScriptedServer(script) as server:
        given = ask(model(protocol, server.url), sink=sink)
    text, call = given.content
    assert isinstance(text, Text)
    assert isinstance(call, ToolUse)
    assert text.text == READ
    assert "".join(sink.said) == (READ if streamed else "")
    assert json.loads(call.input) == {"cmd": READ, "path": "C:\\\\ud800"}


@given(st.text(st.characters(codec=None, categories=None)))
@example("\ud800\ud800\udc00\udc00")
@example("\\ud800")
@example("\\\\\ud83d")
def test_text_decodes_with_a_replacement_for_each_lone_surrogate(text: str) -> None:
    written = json.dumps({"text": text})
    wanted = json.loads(written)["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert msgspec.json.decode(replace_lone_surrogates(written))["text"] == wanted
    assert replace_lone_surrogates(replace_lone_surrogates(written)) == replace_lone_surrogates(written)
