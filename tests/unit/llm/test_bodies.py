"""Request bodies: judged by the official SDKs' types and by our own strict checker."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import HttpModel
from actors.common.json_schema import NativeOutput
from actors.core import content
from actors.core.context import Generation, ReasoningEffort
from actors.core.history import ProviderView, Turn
from actors.ports import ModelRequest
from tests.support.model_requests import BASH, KEY, ask, assistant, body_of, model, provider, request, tool, user
from tests.support.scripted_server import ScriptedServer, answer, named, plain, stream
from tests.support.strict_checker import CHECKS, check_anthropic, check_chat, check_growth, check_responses

SHOT = content.Image("hash", "image/png", 640, 480)
MINE = "claude-sonnet-4-5"
NAMES = {"anthropic": MINE, "openai-chat": "gpt-4o", "openai-responses": "gpt-5.2"}
PROTOCOLS = pytest.mark.parametrize("protocol", NAMES)


def sent(protocol: str, asked: ModelRequest, name: str = "", **settings: Any) -> bytes:
    return body_of(provider(protocol, "http://127.0.0.1:9", **settings), asked, name or NAMES[protocol])


def anthropic_body(*turns: Turn, name: str = MINE, **settings: Any) -> dict[str, Any]:
    return check_anthropic(sent("anthropic", request(*turns), name, **settings))


def chat_body(*turns: Turn, name: str = "gpt-4o", **settings: Any) -> dict[str, Any]:
    return check_chat(sent("openai-chat", request(*turns), name, **settings))


def responses_body(*turns: Turn, name: str = "gpt-5.2", **settings: Any) -> dict[str, Any]:
    return check_responses(sent("openai-responses", request(*turns), name, **settings))


ROUND = (
    user("Please look.", SHOT),
    assistant(
        "I look.",
        content.ToolUse("t1", "bash", '{"cmd":  "ls"}'),
        content.ToolUse("t2", "bash", '{"cmd": bro'),
        content.ToolUse("t3", "bash", ""),
    ),
    user(
        content.ToolSuccess("t1", "a\nb\n", images=(SHOT,)),
        content.ToolError("t2", "not JSON"),
        content.ToolCancelled("t3", "Cancelled by user"),
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
                    {"type": "text", "text": "[an image, image/png 640x480, that could not be sent to you]"},
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
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": "a\nb\n\n[an image, image/png 640x480, that could not be sent to you]",
                    },
                    {"type": "tool_result", "tool_use_id": "t2", "content": "not JSON", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "t3", "content": "Cancelled by user", "is_error": True},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    }


def test_a_chat_body() -> None:
    body = chat_body(*ROUND)
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
            {"role": "user", "content": "Please look.\n\n[an image, image/png 640x480, that could not be sent to you]"},
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
            {
                "role": "tool",
                "tool_call_id": "t1",
                "content": "a\nb\n\n[an image, image/png 640x480, that could not be sent to you]",
            },
            {"role": "tool", "tool_call_id": "t2", "content": "Error: not JSON"},
            {"role": "tool", "tool_call_id": "t3", "content": "Error: Cancelled by user"},
            {"role": "user", "content": "And now?"},
        ],
    }


def test_a_responses_body() -> None:
    body = responses_body(*ROUND)
    assert body == {
        "model": "gpt-5.2",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 32_000,
        "instructions": "Be brief.",
        "tools": [
            {
                "type": "function",
                "name": "bash",
                "description": "Runs bash.",
                "parameters": BASH.input_schema,
                "strict": False,
            }
        ],
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Please look."},
                    {"type": "input_text", "text": "[an image, image/png 640x480, that could not be sent to you]"},
                ],
            },
            {"type": "message", "role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": '{"cmd":  "ls"}'},
            {
                "type": "function_call",
                "call_id": "t2",
                "name": "bash",
                "arguments": '{"INVALID_JSON":"{\\"cmd\\": bro"}',
            },
            {"type": "function_call", "call_id": "t3", "name": "bash", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "t1",
                "output": "a\nb\n\n[an image, image/png 640x480, that could not be sent to you]",
            },
            {"type": "function_call_output", "call_id": "t2", "output": "Error: not JSON"},
            {"type": "function_call_output", "call_id": "t3", "output": "Error: Cancelled by user"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ],
    }


def test_a_request_without_tools_and_system_has_neither() -> None:
    bare = request(user("Summarise."), tools=(), system="")
    assert not {"tools", "tool_choice", "system"} & check_anthropic(sent("anthropic", bare)).keys()
    openai_form = check_chat(sent("openai-chat", bare, "gpt-4o"))
    assert "tools" not in openai_form
    assert [message["role"] for message in openai_form["messages"]] == ["user"]
    responses_form = check_responses(sent("openai-responses", bare))
    assert not {"tools", "tool_choice", "instructions"} & responses_form.keys()
    assert [item["role"] for item in responses_form["input"]] == ["user"]


def test_results_come_first_however_they_are_given() -> None:
    turns = (user("a"), assistant(content.ToolUse("t", "bash", "{}")), user("text", content.ToolSuccess("t", "")))
    anthropic_form = anthropic_body(*turns)["messages"][-1]["content"]
    assert anthropic_form[0] == {"type": "tool_result", "tool_use_id": "t", "content": "(no output)"}
    assert chat_body(*turns)["messages"][-2:] == [
        {"role": "tool", "tool_call_id": "t", "content": "(no output)"},
        {"role": "user", "content": "text"},
    ]
    assert responses_body(*turns)["input"][-2:] == [
        {"type": "function_call_output", "call_id": "t", "output": "(no output)"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "text"}]},
    ]


def test_sub_agent_results_say_whether_they_succeeded() -> None:
    calls = assistant(content.ToolUse("a", "spawn_sub_agent", "{}"), content.ToolUse("b", "spawn_sub_agent", "{}"))
    results = user(content.SubAgentComplete("a", "done"), content.SubAgentComplete("b", "none", success=False))
    first, second = anthropic_body(user("go"), calls, results)["messages"][-1]["content"]
    assert "is_error" not in first
    assert second["is_error"] is True


RAW_THINKING = '{ "type":"thinking",   "thinking": "Hm \\u00e9", "signature": "c2ln" }'
RAW_REASONING = '{"reasoning_content": "Hm \\u00e9"}'


RAW_ITEM = '{ "type":"reasoning", "id":"rs_1",  "summary":[], "encrypted_content":"c2ln\\u00e9" }'


def _thought(protocol: str, name: str, raw: str) -> tuple[Turn, ...]:
    thinking = content.Reasoning("Hm", protocol, name, raw)
    return user("a"), assistant(thinking, "b", content.ToolUse("t", "bash", "{}")), user(content.ToolSuccess("t", "x"))


def test_reasoning_is_echoed_byte_for_byte_to_the_model_that_wrote_it() -> None:
    turns = _thought("anthropic", MINE, RAW_THINKING)
    raw = sent("anthropic", request(*turns))
    check_anthropic(raw)
    assert RAW_THINKING.encode() in raw
    turns = _thought("openai-chat", "deepseek-v4-pro", RAW_REASONING)
    raw = sent("openai-chat", request(*turns), "deepseek-v4-pro")
    check_chat(raw)
    assert b'"reasoning_content":"Hm \\u00e9"' in raw
    turns = _thought("openai-responses", "gpt-6.1-sol", RAW_ITEM)
    raw = sent("openai-responses", request(*turns), "gpt-6.1-sol")
    check_responses(raw)
    assert RAW_ITEM.encode() in raw


@pytest.mark.parametrize(
    ("protocol", "name"), [("anthropic", "claude-opus-5"), ("openai-chat", MINE), ("demo", "demo"), ("", "")]
)
def test_reasoning_of_another_model_is_left_out(protocol: str, name: str) -> None:
    turns = _thought(protocol, name, RAW_THINKING)
    assert "thinking" not in json.dumps(anthropic_body(*turns))
    assert "Hm" not in json.dumps(chat_body(*_thought(protocol, name, RAW_REASONING)))
    assert "rs_1" not in json.dumps(responses_body(*_thought(protocol, name, RAW_ITEM)))


def test_reasoning_without_its_raw_form_is_left_out() -> None:
    assert "Hm" not in json.dumps(anthropic_body(*_thought("anthropic", MINE, "")))


@pytest.mark.parametrize(("echo", "with_calls", "without"), [("calls", 1, 0), ("always", 1, 1), ("never", 0, 0)])
def test_which_answers_get_their_reasoning_back_is_a_setting(echo: str, with_calls: int, without: int) -> None:
    thought = content.Reasoning("Hm", "openai-chat", "gpt-4o", RAW_REASONING)
    plain_answer = user("a"), assistant(thought, "b"), user("c")
    called = user("a"), assistant(thought, content.ToolUse("t", "bash", "{}")), user(content.ToolSuccess("t", "x"))
    assert json.dumps(chat_body(*plain_answer, echo_reasoning=echo)).count("Hm") == without
    assert json.dumps(chat_body(*called, echo_reasoning=echo)).count("Hm") == with_calls


def test_responses_reasoning_that_nothing_came_of_is_left_out() -> None:
    thought = content.Reasoning("", "openai-responses", "gpt-5.2", RAW_ITEM)
    items = responses_body(user("a"), assistant(thought, "b", thought), user("c"))["input"]
    assert [item["type"] for item in items] == ["message", "reasoning", "message", "message"]


def test_a_text_keeps_the_phase_that_the_model_gave_it() -> None:
    def phase(name: str) -> content.Reasoning:
        return content.Reasoning("", "openai-responses", "gpt-5.2", json.dumps({"phase": name}))

    said = assistant(phase("commentary"), "I look.", phase("final_answer"), "Done.")
    items = responses_body(user("a"), said, user("b"))["input"]
    assert [(item["content"], item["phase"]) for item in items[1:3]] == [
        ("I look.", "commentary"),
        ("Done.", "final_answer"),
    ]
    assert "phase" not in json.dumps(responses_body(user("a"), said, user("b"), name="gpt-5"))


def test_an_assistant_turn_of_reasoning_alone_is_left_out() -> None:
    turns = user("a"), assistant(content.Reasoning("Hm", "anthropic", MINE, RAW_THINKING), "  "), user("b")
    assert [m["role"] for m in anthropic_body(*turns)["messages"]] == ["user"]
    assert [m["role"] for m in chat_body(*turns)["messages"]] == ["system", "user", "user"]
    assert [item["role"] for item in responses_body(*turns)["input"]] == ["user", "user"]


def test_settings_of_a_provider_change_the_body() -> None:
    assert "cache_control" not in anthropic_body(user("a"), prompt_cache=False)
    body = chat_body(user("a"), max_tokens_field="max_completion_tokens")
    assert body["max_completion_tokens"] == 16_384
    assert "max_tokens" not in body
    assert "max_tokens" not in chat_body(user("a"), name="my-finetune")
    assert anthropic_body(user("a"), name="my-finetune")["max_tokens"] == 2_048
    assert "max_tokens" not in chat_body(user("a"), max_tokens_field="")
    assert "stream_options" not in chat_body(user("a"), stream_usage=False)
    assert chat_body(user("a"), system_role="developer")["messages"][0]["role"] == "developer"
    for build in (chat_body, responses_body):
        assert "tool_choice" not in build(user("a"))
        assert build(user("a"), tool_choice="auto")["tool_choice"] == "auto"
        assert build(user("a"), cache_key=True)["prompt_cache_key"] == "c1"
    assert "include" not in responses_body(user("a"), encrypted_reasoning=False)
    assert "include" not in responses_body(user("a"), name="gpt-4o")
    assert "max_output_tokens" not in responses_body(user("a"), name="my-finetune")


@PROTOCOLS
def test_extra_fields_are_merged_over_what_is_there_and_change_no_history(protocol: str) -> None:
    plain_body = json.loads(sent(protocol, request(*ROUND)))
    extra = {"service_tier": "auto", "max_tokens": 7, "max_output_tokens": 7}
    merged = sent(protocol, request(*ROUND), extra_body=extra)
    assert json.loads(merged) == plain_body | extra
    check_growth(protocol, merged, sent(protocol, request(*ROUND, assistant("Yes."), user("Go on.")), extra_body=extra))


# --- all conversations ----------------------------------------------------------------------------------------

RAW = {"anthropic": RAW_THINKING, "openai-chat": RAW_REASONING, "openai-responses": RAW_ITEM}
TEXTS = st.text(max_size=12)
TOOL_NAMES = st.one_of(
    st.just("bash"), st.sampled_from(["", "functions.bash", "a b\0", "n" * 65]), st.text(max_size=70)
)
INPUTS = st.sampled_from(
    ['{"cmd": "ls"}', "{}", "", "[1]", "{", '"x"', '{"a": "\\ud83d\\ude00"}', "nul\x00l", "{" * 3000]
)
REASONING = st.builds(
    content.Reasoning, TEXTS, st.sampled_from([*NAMES, "demo"]), st.sampled_from([*NAMES.values(), "other"]),
    st.sampled_from(["", RAW_THINKING, RAW_REASONING, RAW_ITEM]),
)  # fmt: skip


def _result(identity: str) -> st.SearchStrategy[content.ToolResult]:
    return st.one_of(
        st.builds(content.ToolSuccess, st.just(identity), TEXTS, images=st.sampled_from([(), (SHOT,)])),
        st.builds(content.ToolError, st.just(identity), TEXTS),
        st.builds(content.ToolCancelled, st.just(identity), TEXTS),
        st.builds(content.SubAgentComplete, st.just(identity), TEXTS, st.booleans()),
    )


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Turn, ...]:
    """Turns as the core gives them: alternating, complete rounds, the user last and with something to say."""
    said: list[content.Content] = [
        content.Text("Hello"),
        *draw(st.lists(st.one_of(st.builds(content.Text, TEXTS), st.just(SHOT)), max_size=2)),
    ]
    turns = [Turn("user", tuple(said))]
    for number in range(draw(st.integers(0, 4))):
        thoughts: list[content.Content] = [
            block for block in draw(st.lists(REASONING, max_size=2))
            if block.raw == RAW.get(block.protocol)
        ]  # fmt: skip
        called = draw(st.lists(st.tuples(TOOL_NAMES, INPUTS), max_size=3))
        calls = [content.ToolUse(f"t{number}-{i}", name, text) for i, (name, text) in enumerate(called)]
        turns.append(Turn("assistant", (*thoughts, *map(content.Text, draw(st.lists(TEXTS, max_size=2))), *calls)))
        results = [draw(_result(call.id)) for call in calls]
        rest = draw(st.lists(st.builds(content.Text, TEXTS), max_size=2)) if calls else [content.Text("Go on"), SHOT]
        turns.append(Turn("user", (*results, *rest)))
    return tuple(turns)


# To draw a conversation takes longer than to render it: each is rendered for every protocol.


@settings(max_examples=50, deadline=None)
@given(conversations())
def test_every_conversation_makes_a_valid_body_with_which_a_longer_one_begins(turns: tuple[Turn, ...]) -> None:
    """Providers cache and check the prefix: it must stay byte for byte."""
    for protocol, check in CHECKS.items():
        note(protocol)
        before = sent(protocol, request(*turns))
        check(before)
        check_growth(protocol, before, sent(protocol, request(*turns, assistant("Yes."), user("Go on."))))


@settings(max_examples=30, deadline=None)
@given(
    histories=st.lists(conversations(), min_size=1, max_size=3),
    asked=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 9), st.integers(0, 9)), max_size=9
    ),
)
def test_what_is_kept_of_former_requests_changes_no_body(
    histories: list[tuple[Turn, ...]], asked: list[tuple[str, int, int, int]]
) -> None:
    """Whatever a model was asked before: other conversations, other views of one, longer ones, shorter ones."""
    for protocol, name in NAMES.items():
        note(protocol)
        used = model(protocol, "http://127.0.0.1:9", name)
        assert isinstance(used, HttpModel)
        for conversation, history, length, settled in asked:
            turns = histories[history % len(histories)]
            view = ProviderView(turns[:length], min(settled, length, len(turns)), turns)
            wanted = replace(request(), conversation_id=conversation, view=view)
            assert used.body_of(wanted) == sent(protocol, replace(wanted, view=ProviderView(view.turns)))


def test_models_do_not_share_what_is_kept_of_a_conversation() -> None:
    served = {
        "anthropic": (MINE, "claude-opus-5"),
        "openai-chat": ("gpt-4o",),
        "openai-responses": ("gpt-5.2", "gpt-5"),
    }
    catalog = Catalog([
        provider(protocol, "http://127.0.0.1:9", models=names, name=protocol) for protocol, names in served.items()
    ])  # fmt: skip
    thoughts = [content.Reasoning("", protocol, names[0], RAW[protocol]) for protocol, names in served.items()]
    turns = user("a"), assistant(*thoughts, content.ToolUse("t", "bash", "{}")), user(content.ToolSuccess("t", "x"))
    asked = replace(request(), view=ProviderView(turns, 2, object()))
    for protocol, names in [*served.items()] * 2:
        for name in names:
            used = catalog.get(name)
            assert isinstance(used, HttpModel)
            assert used.body_of(asked) == sent(protocol, asked, name)


# --- on the wire ------------------------------------------------------------------------------------------------


WIRE: dict[str, tuple[list[bytes], str, dict[str, str]]] = {
    "anthropic": (
        named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}),
        "/v1/messages",
        {"x-api-key": KEY, "anthropic-version": "2026-10-21", "content-type": "application/json"},
    ),
    "openai-chat": (
        plain({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}, "[DONE]"),
        "/chat/completions",
        {"authorization": f"Bearer {KEY}"},
    ),
    "openai-responses": (
        named({"type": "response.completed", "response": {"output": []}}),
        "/responses",
        {"authorization": f"Bearer {KEY}"},
    ),
}


@PROTOCOLS
def test_a_request_on_the_wire(protocol: str) -> None:
    events, path, headers = WIRE[protocol]
    with ScriptedServer(stream(events)) as server:
        ask(model(protocol, server.url + "/", NAMES[protocol]), *ROUND)
    (received,) = server.received
    CHECKS[protocol](received.body)
    assert received.path == path
    assert {name: received.headers[name] for name in headers} == headers


def test_a_retry_is_the_same_request() -> None:
    with ScriptedServer(answer(529, b"{}")) as server:
        asked_twice = model("anthropic", server.url)
        for attempt in (1, 2):
            with pytest.raises(Exception, match="529"):
                ask(asked_twice, *ROUND, attempt=attempt)
    assert server.received[0].body == server.received[1].body


# --- the checker itself -------------------------------------------------------------------------------------------


CHANGES: dict[str, list[Callable[[dict[str, Any]], object]]] = {
    "anthropic": [
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
    "openai-chat": [
        lambda body: body["messages"].pop(3),
        lambda body: body["messages"].insert(3, {"role": "user", "content": "x"}),
        lambda body: body["messages"].insert(3, body["messages"].pop(4)),
        lambda body: body["messages"][2]["tool_calls"][1].update(id="t1"),
        lambda body: body["messages"][2]["tool_calls"][1]["function"].update(arguments="{"),
        lambda body: body["messages"][1].update(role="usr"),
        lambda body: body["messages"].append({"role": "assistant", "content": "Sure:"}),
    ],
    "openai-responses": [
        lambda body: body.update(store=True),
        lambda body: body.update(previous_response_id="resp_1"),
        lambda body: body["input"].pop(3),
        lambda body: body["input"].pop(6),
        lambda body: body["input"].insert(6, {"type": "message", "role": "user", "content": "x"}),
        lambda body: body["input"].insert(6, body["input"].pop(5)),
        lambda body: body["input"][3].update(call_id="t1"),
        lambda body: body["input"][3].update(arguments="{"),
        lambda body: body["input"][3].update(id="fc_1"),
        lambda body: body["input"][0].update(role="usr"),
        lambda body: body["input"].append({"type": "message", "role": "assistant", "content": "Sure:"}),
        lambda body: body["input"].append({"type": "reasoning", "id": "rs_1", "summary": []}),
        lambda body: body["input"].insert(0, {**json.loads(RAW_ITEM)}),
    ],
}
OF_ALL: list[Callable[[dict[str, Any]], object]] = [
    lambda body: body.update(temperature=1),
    lambda body: body.update(colour="red"),
]


@pytest.mark.parametrize(
    ("protocol", "change"), [(name, change) for name, own in CHANGES.items() for change in (*OF_ALL, *own)]
)
def test_the_checker_finds(protocol: str, change: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads(sent(protocol, request(*ROUND)))
    change(body)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[protocol](json.dumps(body).encode())


@PROTOCOLS
@pytest.mark.parametrize(
    "later",
    [
        request(user("Hello!"), assistant("Yes."), user("Go on.")),
        request(user("Hello"), assistant("Yes."), user("Go on."), system="Be long."),
        request(user("Hello"), assistant("Yes."), user("Go on."), tools=(BASH, tool("read"))),
    ],
)
def test_the_growth_check_finds(protocol: str, later: ModelRequest) -> None:
    with pytest.raises(AssertionError):
        check_growth(protocol, sent(protocol, request(user("Hello"))), sent(protocol, later))


def test_tools_of_any_schema_pass() -> None:
    nested = tool("nested", a="string")
    nested.input_schema["properties"]["b"] = {
        "type": "array",
        "items": {"type": "object", "additionalProperties": False},
    }
    check_anthropic(sent("anthropic", request(tools=(BASH, nested))))
    check_chat(sent("openai-chat", request(tools=(BASH, nested)), "gpt-4o"))
    check_responses(sent("openai-responses", request(tools=(BASH, nested))))


@PROTOCOLS
def test_what_providers_refuse_at_the_top_of_a_schema_is_said_in_the_description(protocol: str) -> None:
    """Else one tool of an MCP server or a client would fail every request that offers it."""
    either = tool("either", a="string")
    either.input_schema.update(anyOf=[{"required": ["a"]}, {"required": ["b"]}], **{"not": {"required": ["c"]}})
    either.input_schema["properties"]["b"] = {"oneOf": [{"type": "string"}, {"type": "null"}]}
    body = CHECKS[protocol](sent(protocol, request(tools=(BASH, either))))
    plain, found = (each.get("function", each) for each in body["tools"])
    assert plain["description"] == BASH.description
    assert '"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]}' in found["description"]
    assert "oneOf" in str(found.get("input_schema", found.get("parameters"))), "what is inside stays"


@pytest.mark.parametrize(("asked", "sent_limit"), [(0, 32_000), (500, 500), (10**9, 32_000)])
@PROTOCOLS
def test_a_request_may_want_a_shorter_answer(protocol: str, asked: int, sent_limit: int) -> None:
    name = {"anthropic": "claude-opus-5-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.2"}[protocol]
    body = json.loads(sent(protocol, replace(request(), max_output=asked), name))
    limits = {body[field] for field in ("max_tokens", "max_output_tokens") if field in body}
    assert limits == {sent_limit}


EFFORTS = {
    "none": ({"thinking": {"type": "disabled"}}, "none"),
    "low": ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
    "max": ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "xhigh"),
}


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_of_reasoning_is_asked_for_as_the_protocol_has_it(effort: str) -> None:
    asked = replace(request(), generation=Generation(ReasoningEffort(effort)))
    expected, word = EFFORTS[effort]
    body = check_anthropic(sent("anthropic", asked, "claude-opus-5-5"))
    assert {field: body[field] for field in ("thinking", "output_config") if field in body} == expected
    assert check_chat(sent("openai-chat", asked, "gpt-5.2"))["reasoning_effort"] == word
    assert check_responses(sent("openai-responses", asked, "gpt-6-sol"))["reasoning"] == {"effort": word}


def test_a_temperature_is_sent_where_it_is_set() -> None:
    asked = replace(request(), generation=Generation(temperature=0.0))
    assert json.loads(sent("openai-chat", asked, "gpt-4o"))["temperature"] == 0
    assert json.loads(sent("openai-responses", asked, "gpt-4.1"))["temperature"] == 0
    assert "temperature" not in json.loads(sent("openai-chat", request(), "gpt-4o"))


def test_an_answer_can_be_limited_where_the_limits_of_the_model_are_not_known() -> None:
    asked = replace(request(), max_output=5_000)
    assert json.loads(sent("openai-chat", asked, "my-own"))["max_tokens"] == 5_000
    assert "max_tokens" not in json.loads(sent("openai-chat", request(), "my-own"))


def test_an_output_schema_is_sent_as_the_protocol_has_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    asked = replace(request(), output=NativeOutput(schema, strict=True), generation=Generation(ReasoningEffort.LOW))
    form = {"type": "json_schema", "schema": schema}
    body = check_anthropic(sent("anthropic", asked, "claude-opus-5-5"))
    assert body["output_config"] == {"effort": "low", "format": form}
    named = {"name": "output", "schema": schema, "strict": True}
    assert check_chat(sent("openai-chat", asked, "gpt-5.2"))["response_format"] == {
        "type": "json_schema", "json_schema": named,
    }  # fmt: skip
    assert check_responses(sent("openai-responses", asked, "gpt-6-sol"))["text"] == {
        "format": {"type": "json_schema", **named}
    }
