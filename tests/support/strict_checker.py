"""What providers demand of a request body, stricter than any mock: the chain, the order, the ids, the parameters."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints

import jsonschema_rs
from pydantic import TypeAdapter

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
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
DRAFT = "https://json-schema.org/draft/2020-12/schema"

CHECKS: dict[str, Callable[[bytes], dict[str, Any]]] = {}
PARAMETERS = {
    "anthropic": ("anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
    "openai-chat": ("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"),
    "openai-responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming"),
}
"""Where the providers' own libraries say what a body may have."""


@cache
def _parameters(protocol: str) -> tuple[TypeAdapter[Any], frozenset[str]]:
    """What checks a body's types, and its keys; importing the libraries takes seconds, which only these checks need."""
    from pydantic import TypeAdapter

    module, name = PARAMETERS[protocol]
    params = getattr(import_module(module), name)
    return TypeAdapter(params), frozenset(get_type_hints(params))


def check_anthropic(raw: bytes) -> dict[str, Any]:
    """Check the body of a Messages request and return it; AssertionError or ValidationError says what is wrong."""
    body = _typed(raw, "anthropic")
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


def check_chat(raw: bytes) -> dict[str, Any]:
    """Likewise for a Chat Completions request."""
    body = _typed(raw, "openai-chat")
    messages = body["messages"]
    if messages[0]["role"] in {"system", "developer"}:
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
                _check_said(message["content"])
    assert not waiting
    return body


def _check_said(content: str | list[dict[str, Any]]) -> None:
    """What a person says is a text, or parts of which at least one is no text."""
    if isinstance(content, str):
        assert content.strip(), "an empty message"
        return
    assert any(part["type"] != "text" for part in content), "parts that could be a text"
    assert all(part["type"] != "text" or part["text"].strip() for part in content), "a blank part"


def check_responses(raw: bytes) -> dict[str, Any]:
    """Likewise for a Responses request of a client that has the provider keep nothing."""
    body = _typed(raw, "openai-responses")
    assert body["store"] is False
    assert not body.keys() & {"previous_response_id", "conversation", "background"}, "state at the provider"
    items = body["input"]
    seen: set[str] = set()
    waiting: list[str] = []
    answered = False
    for before, item in zip([{}, *items], items, strict=False):
        kind, role = item["type"], item.get("role")
        assert kind in {"message", "reasoning", "function_call", "function_call_output"}, kind
        if before.get("type") == "reasoning":
            assert kind in {"reasoning", "function_call"} or role == "assistant", "reasoning without what came of it"
        match kind:
            case "function_call_output":
                assert waiting, "a result without a call"
                assert item["call_id"] == waiting.pop(0), "results are out of order"
                answered = True
            case "function_call":
                assert not (answered and waiting), "a call among results"
                answered = False
                _check_ids([item["call_id"]], seen)
                _check_names([item["name"]])
                assert isinstance(json.loads(item["arguments"]), dict)
                assert "id" not in item, "the provider's own id of a call"
                waiting.append(item["call_id"])
            case "reasoning":
                assert item.get("encrypted_content") or item.get("content"), "an id that the provider has not kept"
            case _ if role == "assistant":
                assert item["content"].strip(), "an empty message"
            case _:
                assert role == "user", role
                assert not waiting, "text between a call and its result"
                assert item["content"], "an empty message"
                assert all(part["text"].strip() for part in item["content"] if part["type"] == "input_text")
    assert not waiting, "a call without a result"
    assert items[-1]["type"] == "function_call_output" or items[-1].get("role") == "user", (
        "the assistant has the last word"
    )
    return body


CHECKS |= {"anthropic": check_anthropic, "openai-chat": check_chat, "openai-responses": check_responses}


def check_growth(protocol: str, before: bytes, after: bytes) -> None:
    """Check that a later request of a conversation begins with the former one, byte for byte.

    What stands before the history is the same, and so is everything in it: it only got longer.
    """
    start = b',"input":[' if protocol == "openai-responses" else b',"messages":['
    head, _, history = before.partition(start)
    later_head, _, later = after.partition(start)
    assert head == later_head, "what stands before the history changed"
    assert history.endswith(b"]}")
    assert later.startswith(history[:-2]), "the history changed"


def _typed(raw: bytes, protocol: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(raw)
    adapter, keys = _parameters(protocol)
    _drain(adapter.validate_python(body))
    assert not body.keys() & SAMPLING, "a sampling parameter"
    unknown = body.keys() - keys
    assert not unknown, f"unknown keys {unknown}"
    assert body["stream"] is True
    for tool in body.get("tools", ()):
        offered = tool.get("function", tool)
        _check_tool(offered["name"], offered.get("input_schema", offered.get("parameters")))
    return body


def _check_tool(name: str, schema: dict[str, Any]) -> None:
    """A tool that providers do not take fails every request that offers it."""
    _check_names([name])
    assert schema["type"] == "object", f"the input of {name} is no object"
    refused = schema.keys() & {"oneOf", "anyOf", "allOf", "not", "enum"}
    assert not refused, f"the schema of {name} has {refused} at its top"
    odd = [key for key in schema.get("properties", {}) if not _PROPERTY.fullmatch(key)]
    assert not odd, f"{name} has properties of the names {odd}"
    assert jsonschema_rs.meta.is_valid({**schema, "$schema": DRAFT}), f"the schema of {name} is none"


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
