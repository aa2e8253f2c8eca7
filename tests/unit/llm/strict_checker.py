"""What providers demand of a request body, stricter than any mock: the chain, the order, the ids, the parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import pydantic
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

SAMPLING = {
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "logit_bias",
    "n",
    "logprobs",
}
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_ANTHROPIC: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(MessageCreateParamsStreaming)
_OPENAI: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(CompletionCreateParamsStreaming)


def check_anthropic(raw: bytes) -> dict[str, Any]:
    """Check the body of a Messages request and return it; AssertionError or ValidationError says what is wrong."""
    body: dict[str, Any] = json.loads(raw)
    _drain(_ANTHROPIC.validate_python(body))
    _check_keys(body, MessageCreateParamsStreaming)
    assert body["max_tokens"] > 0
    messages = body["messages"]
    _check_roles(messages)
    seen: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        blocks = message["content"]
        assert blocks, "an empty message"
        kinds = [block["type"] for block in blocks]
        for block in blocks:
            assert block["type"] != "text" or block["text"].strip(), "a blank text block"
        if message["role"] == "assistant":
            assert kinds[-1] not in {"thinking", "redacted_thinking"}, "thinking comes last"
            waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
            _check_ids(waiting, seen)
            _check_names(block["name"] for block in blocks if block["type"] == "tool_use")
        else:
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            assert results == waiting, "calls and results differ"
            assert kinds[: len(results)] == ["tool_result"] * len(results), "results don't come first"
            waiting = []
    return body


def check_openai(raw: bytes) -> dict[str, Any]:
    """Likewise for a Chat Completions request."""
    body: dict[str, Any] = json.loads(raw)
    _drain(_OPENAI.validate_python(body))
    _check_keys(body, CompletionCreateParamsStreaming)
    messages = body["messages"]
    if messages[0]["role"] == "system":
        messages = messages[1:]
    assert messages[-1]["role"] in {"user", "tool"}, "the assistant has the last word"
    seen: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        match message["role"]:
            case "tool":
                assert waiting, "a result without a call"
                assert message["tool_call_id"] == waiting.pop(0), "results are out of order"
            case "assistant":
                assert not waiting, "a call without a result"
                waiting = [call["id"] for call in message.get("tool_calls", ())]
                _check_ids(waiting, seen)
                assert message["content"] or waiting, "an empty message"
                for call in message.get("tool_calls", ()):
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
                    _check_names([call["function"]["name"]])
            case role:
                assert role == "user"
                assert not waiting, "text between a call and its result"
                assert message["content"].strip(), "an empty message"
    assert not waiting
    return body


def _check_keys(body: Mapping[str, Any], params: Any) -> None:
    assert not body.keys() & SAMPLING, "a sampling parameter"
    unknown = body.keys() - get_type_hints(params).keys()
    assert not unknown, f"unknown keys {unknown}"
    assert body["stream"] is True


def _check_roles(messages: list[Any]) -> None:
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[i % 2] for i in range(len(roles))], "roles don't alternate"
    assert roles[-1] == "user", "the assistant has the last word"


def _check_ids(ids: list[str], seen: set[str]) -> None:
    for identity in ids:
        assert _ID.fullmatch(identity), identity
        assert identity not in seen, f"{identity} is used twice"
        seen.add(identity)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        assert _NAME.fullmatch(name), f"the name of a tool is {name!r}"


def _drain(value: Any) -> None:
    """pydantic checks iterables only as they are read."""
    if isinstance(value, Mapping):
        for item in value.values():
            _drain(item)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            _drain(item)
