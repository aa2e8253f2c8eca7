"""Answers of OpenAI Chat Completions and of servers that speak it, streamed and whole, over a real connection."""

import json
from typing import Any

import pytest

from actors.adapters.llm import provider_client as exchange
from actors.adapters.llm.provider import Timeouts
from actors.core.content import Reasoning, Text, ToolUse, Usage
from actors.core.errors import ErrorKind
from actors.ports import ModelAnswer, ModelFailedError
from tests.support.model_requests import RequestThread, Sink, ask, failure, model
from tests.support.scripted_server import Script, ScriptedServer, answer, plain, stream

Chunk = dict[str, Any]
DONE = "[DONE]"
USAGE: Chunk = {
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": 60},
    },
}


def delta(**fields: Any) -> Chunk:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": None}],
    }


def finish(reason: str) -> Chunk:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def call(
    index: int | None, *, identity: str | None = None, name: str | None = None, arguments: str | None = None
) -> Chunk:
    fragment: Chunk = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        fragment["index"] = index
    if identity is not None:
        fragment["id"] = identity
    return delta(tool_calls=[fragment])


def heard(*chunks: Chunk | str, sink: Sink | None = None) -> ModelAnswer:
    with ScriptedServer(stream(plain(*chunks))) as server:
        return ask(model("openai-chat", server.url, "gpt-4o"), sink=sink)


def failed(script: Script, sink: Sink | None = None) -> ModelFailedError:
    with ScriptedServer(script) as server:
        return failure(model("openai-chat", server.url, "gpt-4o"), sink=sink)


def test_text_is_passed_on_as_it_comes_and_answered_as_a_whole() -> None:
    sink = Sink()
    given = heard(
        delta(role="assistant", content=None),
        delta(content="Hel"),
        delta(content="lo"),
        finish("stop"),
        USAGE,
        DONE,
        sink=sink,
    )
    assert given == ModelAnswer((Text("Hello"),), end_turn=True, usage=Usage(40, 7, 60, cost_micros=245))
    assert (sink.begun, "".join(sink.said)) == (1, "Hello")


def test_usage_leaves_the_cache_out_of_the_input() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 30},
    }
    given = heard(delta(content="x"), finish("stop"), {"choices": [], "usage": usage}, DONE)
    assert given.usage is not None
    assert given.usage.context_tokens == 107
    assert (given.usage.input_tokens, given.usage.cache_read_tokens, given.usage.cache_write_tokens) == (0, 90, 10)


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"prompt_tokens": "100", "completion_tokens": 7.0}, (100, 7, 0)),
        ({"prompt_tokens": 100, "completion_tokens": "?", "prompt_tokens_details": []}, (100, 1, 0)),
        ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}, (40, 1, 60)),
        ({"prompt_tokens": 100, "cached_tokens": 60}, (40, 1, 60)),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": "600"}}, (0, 1, 100)),
    ],
)
def test_counts_never_cost_an_answer(usage: Chunk, wanted: tuple[int, int, int]) -> None:
    given = heard(delta(content="x"), finish("stop"), {"choices": [], "usage": usage}, DONE)
    assert given.usage is not None
    assert (given.usage.input_tokens, given.usage.output_tokens, given.usage.cache_read_tokens) == wanted


@pytest.mark.parametrize(
    ("cost", "micros"), [(0.0123, 12_300), (0, 0), ("0.1", 245), (-1, 245), (None, 245), (float("1e300"), 245)]
)
def test_a_cost_that_the_server_tells_counts_where_it_is_in_dollars(cost: Any, micros: int) -> None:
    usage = {"choices": [], "usage": {**USAGE["usage"], "cost": cost}}
    with ScriptedServer(stream(plain(delta(content="x"), finish("stop"), usage, DONE))) as server:
        told = ask(model("openai-chat", server.url, "gpt-4o", cost_in_usage=True)).usage
        silent = ask(model("openai-chat", server.url, "gpt-4o")).usage
    assert told is not None
    assert silent is not None
    assert (told.cost_micros, silent.cost_micros) == (micros, 245)


@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_an_end_that_is_none_is_retryable(reason: str) -> None:
    told = failed(stream(plain(delta(content="x"), finish(reason), USAGE, DONE)))
    assert told.failure.kind is ErrorKind.SERVER_ERROR
    assert reason in told.failure.message
    assert told.usage == Usage(40, 7, 60, cost_micros=245)


@pytest.mark.parametrize("reason", ["max_tokens", "model_length", "SAFETY"])
def test_other_words_for_the_same_ends(reason: str) -> None:
    given = heard(delta(content="x"), finish(reason), DONE)
    assert (given.truncated, given.refusal) == ((False, True) if reason == "SAFETY" else (True, False))


@pytest.mark.parametrize("reason", ["model_length", "model_context_window_exceeded"])
def test_a_full_context_window_is_no_cut_to_go_on_after(reason: str) -> None:
    given = heard(delta(content="x"), finish(reason), DONE)
    assert (given.truncated, given.context_full) == (True, True)


@pytest.mark.parametrize(
    ("content", "usage", "full"),
    [
        ("x", {"prompt_tokens": 120_000, "completion_tokens": 5}, True),
        ("x", {"prompt_tokens": 100, "completion_tokens": 5}, False),
        ("", {"prompt_tokens": 100, "completion_tokens": 0}, True),
        ("", {"prompt_tokens": 9, "completion_tokens": 0, "completion_tokens_details": {"reasoning_tokens": 9}}, False),
        ("x", None, False),
        ("x" * 900_000, None, True),
    ],
)
def test_an_answer_cut_at_its_length_found_a_full_window_if_there_was_no_room(
    content: str, usage: dict[str, Any] | None, full: bool
) -> None:
    given = heard(delta(content=content), finish("length"), {"choices": [], "usage": usage}, DONE)
    assert (given.truncated, given.context_full) == (True, full)


def test_the_last_usage_counts() -> None:
    early = {**delta(content="x"), "usage": {"prompt_tokens": 100, "completion_tokens": 1}}
    given = heard(early, finish("stop"), USAGE, DONE)
    assert given.usage is not None
    assert given.usage.output_tokens == 7
    assert heard(delta(content="x"), finish("stop"), DONE).usage is None


def test_tool_calls_are_put_together_by_index() -> None:
    given = heard(
        delta(content="I run:"), call(0, identity="call_a", name="bash", arguments=""),
        call(1, identity="call_b", name="read", arguments="{"), call(0, arguments='{"cmd": "l'),
        call(1, arguments="}"), call(0, arguments='s"}'), finish("tool_calls"), DONE,
    )  # fmt: skip
    assert given.content == (
        Text("I run:"),
        ToolUse("call_a", "bash", '{"cmd": "ls"}'),
        ToolUse("call_b", "read", "{}"),
    )
    assert not given.end_turn


def test_invalid_arguments_are_kept_raw() -> None:
    given = heard(call(0, identity="a", name="bash", arguments='{"cmd": broken'), finish("tool_calls"), DONE)
    assert given.content == (ToolUse("a", "bash", '{"cmd": broken'),)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_under_the_name_it_had(key: str) -> None:
    sink = Sink()
    given = heard(
        delta(**{key: "Hm, "}), delta(**{key: "yes."}), delta(content="Yes."), finish("stop"), DONE, sink=sink
    )
    reasoning = given.content[0]
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.protocol, reasoning.model) == ("Hm, yes.", "openai-chat", "gpt-4o")
    assert json.loads(reasoning.raw) == {key: "Hm, yes."}
    assert "".join(sink.thought) == "Hm, yes."


@pytest.mark.parametrize(
    ("reason", "end_turn", "truncated", "refusal"),
    [
        ("stop", True, False, False),
        ("length", False, True, False),
        ("tool_calls", False, False, False),
        ("content_filter", True, False, True),
        ("eos_of_tomorrow", True, False, False),
    ],
)
def test_finish_reasons(reason: str, end_turn: bool, truncated: bool, refusal: bool) -> None:
    given = heard(delta(content="x"), finish(reason), DONE)
    assert (given.end_turn, given.truncated, given.refusal) == (end_turn, truncated, refusal)


def test_calls_that_end_with_stop_are_calls() -> None:
    given = heard(call(0, identity="a", name="bash", arguments="{}"), finish("stop"), DONE)
    assert not given.end_turn
    assert len(given.content) == 1


def test_calls_that_were_cut_are_truncated() -> None:
    given = heard(call(0, identity="a", name="bash", arguments='{"cm'), finish("length"), DONE)
    assert given.truncated


def test_a_refusal() -> None:
    given = heard(delta(refusal="I "), delta(refusal="won't."), finish("stop"), DONE)
    assert (given.content, given.refusal) == ((Text("I won't."),), True)


def test_a_content_filter_without_text() -> None:
    assert failed(stream(plain(finish("content_filter"), DONE))).failure.kind is ErrorKind.CONTENT_FILTER


def test_other_choices_are_ignored() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert heard(delta(content="yes"), other, finish("stop"), DONE).content == (Text("yes"),)


# --- when a stream is complete (C47) ---------------------------------------------------------------------------


def test_a_finish_reason_and_a_close_are_an_end() -> None:
    assert heard(delta(content="x"), finish("stop")).content == (Text("x"),)


def test_a_finish_reason_and_a_broken_connection_are_an_end() -> None:
    with ScriptedServer(stream(plain(delta(content="x"), finish("stop")), then=lambda c: c.reset())) as server:
        assert ask(model("openai-chat", server.url, "gpt-4o")).content == (Text("x"),)


def test_after_a_finish_reason_the_wait_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "TAIL_SECONDS", 0.1)
    with ScriptedServer(stream(plain(delta(content="x"), finish("stop")), then=lambda c: c.wait_for_close())) as server:
        asking = RequestThread(model("openai-chat", server.url, "gpt-4o", timeouts=Timeouts()))
        asking.join(60)
        assert isinstance(asking.outcome, ModelAnswer), asking.outcome


def test_done_ends_the_reading_although_the_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "TAIL_SECONDS", 300)
    script = stream(plain(delta(content="x"), finish("stop"), DONE), then=lambda c: c.wait_for_close())
    with ScriptedServer(script) as server:
        asking = RequestThread(model("openai-chat", server.url, "gpt-4o", timeouts=Timeouts()))
        asking.join(60)
        assert isinstance(asking.outcome, ModelAnswer), asking.outcome


def test_done_without_a_finish_reason_completes_if_there_is_content() -> None:
    assert heard(delta(content="x"), DONE) == ModelAnswer((Text("x"),), end_turn=True)
    told = failed(stream(plain(delta(role="assistant"), DONE)))
    assert told.failure.kind is ErrorKind.SERVER_ERROR


@pytest.mark.parametrize("pieces", [[], plain(delta(content="x")), plain(delta(content="x"), USAGE)])
def test_a_close_with_neither_is_retryable(pieces: list[bytes]) -> None:
    told = failed(stream(pieces))
    assert told.failure.kind is ErrorKind.SERVER_ERROR
    assert "ended before it was complete" in told.failure.message


def test_an_event_that_no_blank_line_ended_does_not_count() -> None:
    assert failed(stream([*plain(delta(content="x")), b"data: [DONE]\n"])).failure.retryable


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "boom", "type": "server_error", "code": None}, ErrorKind.SERVER_ERROR),
        ({"message": "boom", "code": 429}, ErrorKind.RATE_LIMIT),
        ({"message": "boom", "code": "context_length_exceeded"}, ErrorKind.CONTEXT_EXHAUSTED),
        ("boom", ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_inside_the_stream(error: Any, kind: ErrorKind) -> None:
    told = failed(stream(plain(delta(content="x"), {"error": error})))
    assert told.failure.kind is kind
    assert "boom" in told.failure.message


def test_an_error_that_is_null_is_none() -> None:
    assert heard({**delta(content="x"), "error": None}, finish("stop"), DONE).content == (Text("x"),)


def test_a_plain_json_answer_completes_without_streaming() -> None:
    sink = Sink()
    message = {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"ls"}'}}],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE["usage"]}
    with ScriptedServer(answer(200, json.dumps(body).encode())) as server:
        given = ask(model("openai-chat", server.url, "gpt-4o"), sink=sink)
    assert given.content[1:] == (Text("Hello"), ToolUse("a", "bash", '{"cmd":"ls"}'))
    assert given.usage == Usage(40, 7, 60, cost_micros=245)
    assert (sink.begun, sink.said, sink.thought) == (0, [], [])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":"x"}}]}'])
def test_a_plain_answer_that_is_none_is_retryable(body: bytes) -> None:
    assert failed(answer(200, body)).failure.kind is ErrorKind.SERVER_ERROR
