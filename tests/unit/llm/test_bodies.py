"""Request bodies: judged by the official SDKs' types and by our own strict checker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from actors.llm import anthropic, openai
from actors.llm.answer import Asked
from actors.llm.limits import limits_of, smallest_limits
from actors.ports import ModelRequest
from tests.unit.llm.asking import BASH, ask, assistant, model, provider, request, tool, user
from tests.unit.llm.scripted_server import ScriptedServer, answer, named, plain, stream
from tests.unit.llm.strict_checker import check_anthropic, check_openai

SHOT = Image("hash", "image/png", 640, 480)
MINE = "claude-sonnet-4-5"


def asked(protocol: str, asked_for: ModelRequest, name: str = MINE, **settings: Any) -> Asked:
    config = provider(protocol, "http://127.0.0.1:9", **settings)
    return Asked(
        config,
        model(protocol, "http://127.0.0.1:9", name, **settings).info,
        limits_of(name) or smallest_limits(),
        asked_for,
    )


def anthropic_body(*turns: Turn, name: str = MINE, **settings: Any) -> dict[str, Any]:
    return check_anthropic(anthropic.body_of(asked("anthropic", request(*turns), name, **settings)))


def openai_body(*turns: Turn, name: str = "gpt-4o", **settings: Any) -> dict[str, Any]:
    return check_openai(openai.body_of(asked("openai-chat", request(*turns), name, **settings)))


ROUND = (
    user("Please look.", SHOT),
    assistant(
        "I look.",
        ToolUse("t1", "bash", '{"cmd":  "ls"}'),
        ToolUse("t2", "bash", '{"cmd": bro'),
        ToolUse("t3", "bash", ""),
    ),
    user(
        ToolSuccess("t1", "a\nb\n", images=(SHOT,)),
        ToolError("t2", "not JSON"),
        ToolCancelled("t3", "Cancelled by user"),
        "And now?",
    ),
)


def test_an_anthropic_body() -> None:
    body = anthropic_body(*ROUND)
    assert body == {
        "model": MINE,
        "max_tokens": 32_000,
        "stream": True,
        "system": "Be brief.",
        "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "bash", "description": "Runs bash.", "input_schema": BASH.input_schema}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Please look."},
                    {"type": "text", "text": "[image image/png 640x480]"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"cmd": "ls"}},
                    {"type": "tool_use", "id": "t2", "name": "bash", "input": {"INVALID_JSON": '{"cmd": bro'}},
                    {"type": "tool_use", "id": "t3", "name": "bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "a\nb\n\n[image image/png 640x480]"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "not JSON", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "t3", "content": "Cancelled by user", "is_error": True},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    }


def test_an_openai_body() -> None:
    body = openai_body(*ROUND)
    assert body == {
        "model": "gpt-4o",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16_384,
        "tools": [
            {
                "type": "function",
                "function": {"name": "bash", "description": "Runs bash.", "parameters": BASH.input_schema},
            }
        ],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Please look.\n\n[image image/png 640x480]"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":  "ls"}'}},
                    {
                        "id": "t2",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"INVALID_JSON":"{\\"cmd\\": bro"}'},
                    },
                    {"id": "t3", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "a\nb\n\n[image image/png 640x480]"},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: not JSON"},
            {"role": "tool", "tool_call_id": "t3", "content": "Error: Cancelled by user"},
            {"role": "user", "content": "And now?"},
        ],
    }


def test_a_request_without_tools_and_system_has_neither() -> None:
    bare = request(user("Summarise."), tools=(), system="")
    assert not {"tools", "tool_choice", "system"} & check_anthropic(anthropic.body_of(asked("anthropic", bare))).keys()
    openai_form = check_openai(openai.body_of(asked("openai-chat", bare, "gpt-4o")))
    assert "tools" not in openai_form
    assert [message["role"] for message in openai_form["messages"]] == ["user"]


def test_results_come_first_however_they_are_given() -> None:
    turns = (user("a"), assistant(ToolUse("t", "bash", "{}")), user("text", ToolSuccess("t", "")))
    anthropic_form = anthropic_body(*turns)["messages"][-1]["content"]
    assert anthropic_form[0] == {"type": "tool_result", "tool_use_id": "t", "content": "(no output)"}
    assert openai_body(*turns)["messages"][-2:] == [
        {"role": "tool", "tool_call_id": "t", "content": "(no output)"},
        {"role": "user", "content": "text"},
    ]


def test_sub_agent_results_say_whether_they_succeeded() -> None:
    calls = assistant(ToolUse("a", "spawn_sub_agent", "{}"), ToolUse("b", "spawn_sub_agent", "{}"))
    results = user(SubAgentComplete("a", "done"), SubAgentComplete("b", "none", success=False))
    first, second = anthropic_body(user("go"), calls, results)["messages"][-1]["content"]
    assert "is_error" not in first
    assert second["is_error"] is True


RAW_THINKING = '{ "type":"thinking",   "thinking": "Hm \\u00e9", "signature": "c2ln" }'
RAW_REASONING = '{"reasoning_content": "Hm \\u00e9"}'


def _thought(protocol: str, name: str, raw: str) -> tuple[Turn, ...]:
    thinking = Reasoning("Hm", protocol, name, raw)
    return user("a"), assistant(thinking, "b", ToolUse("t", "bash", "{}")), user(ToolSuccess("t", "x"))


def test_reasoning_is_echoed_byte_for_byte_to_the_model_that_wrote_it() -> None:
    turns = _thought("anthropic", MINE, RAW_THINKING)
    raw = anthropic.body_of(asked("anthropic", request(*turns)))
    check_anthropic(raw)
    assert RAW_THINKING.encode() in raw
    turns = _thought("openai-chat", "deepseek-v4-pro", RAW_REASONING)
    raw = openai.body_of(asked("openai-chat", request(*turns), "deepseek-v4-pro"))
    check_openai(raw)
    assert b'"reasoning_content":"Hm \\u00e9"' in raw


@pytest.mark.parametrize(
    ("protocol", "name"),
    [("anthropic", "claude-opus-5"), ("openai-chat", MINE), ("demo", "demo"), ("", "")],
)
def test_reasoning_of_another_model_is_left_out(protocol: str, name: str) -> None:
    turns = _thought(protocol, name, RAW_THINKING)
    assert "thinking" not in json.dumps(anthropic_body(*turns))
    assert "Hm" not in json.dumps(openai_body(*_thought(protocol, name, RAW_REASONING)))


def test_reasoning_without_its_raw_form_is_left_out() -> None:
    assert "Hm" not in json.dumps(anthropic_body(*_thought("anthropic", MINE, "")))


def test_openai_reasoning_goes_with_calls_only() -> None:
    turns = user("a"), assistant(Reasoning("Hm", "openai-chat", "gpt-4o", RAW_REASONING), "b"), user("c")
    assert "Hm" not in json.dumps(openai_body(*turns))


def test_an_assistant_turn_of_reasoning_alone_is_left_out() -> None:
    turns = user("a"), assistant(Reasoning("Hm", "anthropic", MINE, RAW_THINKING), "  "), user("b")
    assert [m["role"] for m in anthropic_body(*turns)["messages"]] == ["user"]
    assert [m["role"] for m in openai_body(*turns)["messages"]] == ["system", "user", "user"]


def test_settings_of_a_provider_change_the_body() -> None:
    assert "cache_control" not in anthropic_body(user("a"), prompt_cache=False)
    body = openai_body(user("a"), max_tokens_field="max_completion_tokens")
    assert body["max_completion_tokens"] == 16_384
    assert "max_tokens" not in body
    assert "max_tokens" not in openai_body(user("a"), name="my-finetune")
    assert anthropic_body(user("a"), name="my-finetune")["max_tokens"] == 2_048


# --- all conversations ----------------------------------------------------------------------------------------

TEXTS = st.text(max_size=12)
NAMES = st.one_of(st.just("bash"), st.sampled_from(["", "functions.bash", "a b\0", "n" * 65]), st.text(max_size=70))
INPUTS = st.sampled_from(
    ['{"cmd": "ls"}', "{}", "", "[1]", "{", '"x"', '{"a": "\\ud83d\\ude00"}', "nul\x00l", "{" * 3000]
)
REASONING = st.builds(
    Reasoning, TEXTS, st.sampled_from(["anthropic", "openai-chat", "demo"]), st.sampled_from([MINE, "gpt-4o", "other"]),
    st.sampled_from(["", RAW_THINKING, RAW_REASONING]),
)  # fmt: skip


def _result(identity: str) -> st.SearchStrategy[ToolResult]:
    return st.one_of(
        st.builds(ToolSuccess, st.just(identity), TEXTS, images=st.sampled_from([(), (SHOT,)])),
        st.builds(ToolError, st.just(identity), TEXTS),
        st.builds(ToolCancelled, st.just(identity), TEXTS),
        st.builds(SubAgentComplete, st.just(identity), TEXTS, st.booleans()),
    )


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Turn, ...]:
    """Turns as the core gives them: alternating, complete rounds, the user last and with something to say."""
    said: list[Content] = [Text("Hello"), *draw(st.lists(st.one_of(st.builds(Text, TEXTS), st.just(SHOT)), max_size=2))]
    turns = [Turn("user", tuple(said))]
    for number in range(draw(st.integers(0, 4))):
        thoughts: list[Content] = [
            block for block in draw(st.lists(REASONING, max_size=2))
            if block.raw == {"anthropic": RAW_THINKING, "openai-chat": RAW_REASONING}.get(block.protocol)
        ]  # fmt: skip
        called = draw(st.lists(st.tuples(NAMES, INPUTS), max_size=3))
        calls = [ToolUse(f"t{number}-{i}", name, text) for i, (name, text) in enumerate(called)]
        turns.append(Turn("assistant", (*thoughts, *map(Text, draw(st.lists(TEXTS, max_size=2))), *calls)))
        results = [draw(_result(call.id)) for call in calls]
        rest = draw(st.lists(st.builds(Text, TEXTS), max_size=2)) if calls else [Text("Go on"), SHOT]
        turns.append(Turn("user", (*results, *rest)))
    return tuple(turns)


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_every_conversation_makes_a_valid_body(turns: tuple[Turn, ...]) -> None:
    anthropic_body(*turns)
    openai_body(*turns)


@settings(max_examples=100, deadline=None)
@given(conversations())
def test_a_longer_conversation_begins_with_the_same_messages(turns: tuple[Turn, ...]) -> None:
    """Providers cache and check the prefix: it must stay byte for byte."""
    builders: tuple[tuple[Callable[[Asked], bytes], str, str], ...] = (
        (anthropic.body_of, "anthropic", MINE),
        (openai.body_of, "openai-chat", "gpt-4o"),
    )
    for build, protocol, name in builders:
        before = build(asked(protocol, request(*turns), name))
        after = build(asked(protocol, request(*turns, assistant("Yes."), user("Go on.")), name))
        assert before.endswith(b"]}")
        assert after.startswith(before[:-2])


# --- on the wire ------------------------------------------------------------------------------------------------


def test_an_anthropic_request_on_the_wire() -> None:
    events = named(
        {"type": "message_start", "message": {}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )
    with ScriptedServer(stream(events)) as server:
        ask(model("anthropic", server.url + "/"), *ROUND)
    (received,) = server.received
    check_anthropic(received.body)
    assert received.path == "/v1/messages"
    assert received.headers["x-api-key"] == "sk-test-0123456789abcdef"
    assert received.headers["anthropic-version"] == "2026-10-21"
    assert received.headers["content-type"] == "application/json"


def test_an_openai_request_on_the_wire() -> None:
    chunks = plain({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}, "[DONE]")
    with ScriptedServer(stream(chunks)) as server:
        ask(model("openai-chat", server.url + "/v1", "gpt-4o"), *ROUND)
    (received,) = server.received
    check_openai(received.body)
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer sk-test-0123456789abcdef"


def test_a_retry_is_the_same_request() -> None:
    with ScriptedServer(answer(529, b"{}")) as server:
        asked_twice = model("anthropic", server.url)
        for attempt in (1, 2):
            with pytest.raises(Exception, match="529"):
                ask(asked_twice, *ROUND, attempt=attempt)
    assert server.received[0].body == server.received[1].body


# --- the checker itself -------------------------------------------------------------------------------------------


def _broken(body: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    decoded = json.loads(body)
    change(decoded)
    return json.dumps(decoded).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(temperature=1),
        lambda body: body.update(colour="red"),
        lambda body: body.pop("max_tokens"),
        lambda body: body["messages"].pop(),
        lambda body: body["messages"].pop(1),
        lambda body: body["messages"][2]["content"].reverse(),
        lambda body: body["messages"][2]["content"].pop(0),
        lambda body: body["messages"][1]["content"][2].update(id="t1"),
        lambda body: body["messages"][1]["content"][1].pop("input"),
        lambda body: body["messages"][0]["content"][0].update(type="txt"),
        lambda body: body["messages"][0]["content"][0].update(text=" "),
        lambda body: body["messages"][0].update(content=[]),
        lambda body: body["messages"].append({"role": "assistant", "content": [{"type": "text", "text": "Sure:"}]}),
    ],
)
def test_the_anthropic_checker_finds(change: Callable[[dict[str, Any]], object]) -> None:
    body = anthropic.body_of(asked("anthropic", request(*ROUND)))
    with pytest.raises((AssertionError, ValueError)):
        check_anthropic(_broken(body, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(temperature=1),
        lambda body: body.update(colour="red"),
        lambda body: body["messages"].pop(3),
        lambda body: body["messages"].insert(3, {"role": "user", "content": "x"}),
        lambda body: body["messages"].insert(3, body["messages"].pop(4)),
        lambda body: body["messages"][2]["tool_calls"][1].update(id="t1"),
        lambda body: body["messages"][2]["tool_calls"][1]["function"].update(arguments="{"),
        lambda body: body["messages"][1].update(role="usr"),
        lambda body: body["messages"].append({"role": "assistant", "content": "Sure:"}),
    ],
)
def test_the_openai_checker_finds(change: Callable[[dict[str, Any]], object]) -> None:
    body = openai.body_of(asked("openai-chat", request(*ROUND), "gpt-4o"))
    with pytest.raises((AssertionError, ValueError)):
        check_openai(_broken(body, change))


def test_tools_of_any_schema_pass() -> None:
    nested = tool("nested", a="string")
    nested.input_schema["properties"]["b"] = {
        "type": "array",
        "items": {"type": "object", "additionalProperties": False},
    }
    check_anthropic(anthropic.body_of(asked("anthropic", request(tools=(BASH, nested)))))
    check_openai(openai.body_of(asked("openai-chat", request(tools=(BASH, nested)), "gpt-4o")))
