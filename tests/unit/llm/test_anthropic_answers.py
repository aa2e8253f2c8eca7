"""Answers of Anthropic Messages, streamed and whole, over a real connection."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.llm import provider_client as exchange
from actors.adapters.llm.protocols.answer_builder import prompt_tokens
from actors.adapters.llm.protocols.decoding import SseParser
from actors.core.content import Reasoning, Text, ToolUse, Usage
from actors.core.errors import ErrorKind
from actors.ports import ModelAnswer, ModelFailedError
from tests.support.model_requests import Sink, ask, failure, model, request
from tests.support.scripted_server import Script, ScriptedServer, ServedConnection, answer, named, stream

Event = dict[str, Any]


def start(**usage: int) -> Event:
    return {
        "type": "message_start",
        "message": {"id": "m", "content": [], "usage": {"input_tokens": 10, "output_tokens": 1, **usage}},
    }


def block(index: int, kind: str, *deltas: Event, **fields: Any) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(*parts: str, index: int = 0) -> list[Event]:
    return block(index, "text", *({"type": "text_delta", "text": part} for part in parts), text="")


def tool_use(identity: str, *parts: str, index: int = 0, name: str = "bash", **fields: Any) -> list[Event]:
    deltas = ({"type": "input_json_delta", "partial_json": part} for part in parts)
    return block(index, "tool_use", *deltas, id=identity, name=name, input={}, **fields)


def stop(reason: str, **usage: int) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5, **usage}}, {"type": "message_stop"}]


def heard(*events: Event, sink: Sink | None = None) -> ModelAnswer:
    with ScriptedServer(stream(named(*events))) as server:
        return ask(model("anthropic", server.url), sink=sink)


def failed(script: Script, sink: Sink | None = None) -> ModelFailedError:
    with ScriptedServer(script) as server:
        return failure(model("anthropic", server.url), sink=sink)


def test_text_is_passed_on_as_it_comes_and_answered_as_a_whole() -> None:
    sink = Sink()
    ping = {"type": "ping"}
    given = heard(ping, start(), ping, *text("Hel", "lo ✓"), *stop("end_turn"), sink=sink)
    assert given == ModelAnswer((Text("Hello ✓"),), end_turn=True, usage=Usage(10, 5, cost_micros=105))
    assert (sink.begun, "".join(sink.said), sink.thought) == (1, "Hello ✓", [])


def test_deltas_that_arrive_together_stay_in_their_blocks_and_in_order_also_beside_odd_ones() -> None:
    said = (0, "a"), (0, ""), (0, "b"), (1, "x"), (0, "c"), (0, [{"text": "d"}]), (1, "y"), (1, "z")
    deltas = [
        {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": part}}
        for index, part in said
    ]
    begin = [text(index=index)[0] for index in (0, 1)]
    assert heard(start(), *begin, *deltas, *stop("end_turn")).content == (Text("abcd"), Text("xyz"))


def test_usage_is_cumulative_and_absent_values_keep_the_last_one() -> None:
    given = heard(
        start(cache_read_input_tokens=375, cache_creation_input_tokens=20),
        *text("x"),
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}},
        *stop("end_turn", cache_read_input_tokens=400),
    )
    assert given.usage is not None
    assert given.usage.context_tokens == 10 + 5 + 400 + 20
    assert (given.usage.cache_read_tokens, given.usage.cache_write_tokens) == (400, 20)


def test_tool_calls_keep_their_order_and_raw_input() -> None:
    given = heard(
        start(), *text("I run:"), *tool_use("toolu_1", '{"cmd": ', '"ls"}', index=1),
        *tool_use("toolu_2", "", index=2), *tool_use("toolu_3", '{"cmd": "l', index=3), *stop("tool_use"),
    )  # fmt: skip
    assert given.content == (
        Text("I run:"),
        ToolUse("toolu_1", "bash", '{"cmd": "ls"}'),
        ToolUse("toolu_2", "bash", "{}"),
        ToolUse("toolu_3", "bash", '{"cmd": "l'),
    )
    assert not given.end_turn


def test_an_input_that_comes_whole_is_taken() -> None:
    call = {"type": "tool_use", "id": "t", "name": "bash", "input": {"cmd": "ls"}}
    given = heard(start(), {"type": "content_block_start", "index": 0, "content_block": call}, *stop("tool_use"))
    assert given.content == (ToolUse("t", "bash", '{"cmd": "ls"}'),)


def test_thinking_is_kept_to_be_echoed() -> None:
    sink = Sink()
    thinking = block(
        0, "thinking", {"type": "thinking_delta", "thinking": "Hm, "}, {"type": "thinking_delta", "thinking": "yes."},
        {"type": "signature_delta", "signature": "c2ln"}, thinking="", signature="",
    )  # fmt: skip
    given = heard(start(), *thinking, *text("Yes.", index=1), *stop("end_turn"), sink=sink)
    reasoning = given.content[0]
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.protocol, reasoning.model) == ("Hm, yes.", "anthropic", "claude-sonnet-4-5")
    assert json.loads(reasoning.raw) == {"type": "thinking", "thinking": "Hm, yes.", "signature": "c2ln"}
    assert ("".join(sink.thought), sink.said) == ("Hm, yes.", ["Yes."])


@pytest.mark.parametrize(
    "raw",
    [
        '{ "type" : "redacted_thinking",  "data":"b3BhcXVl", "z": 1.0 }',
        '{"signature":"s\\u00e9","thinking":"", "type":"thinking"}',
    ],
)
def test_a_block_that_comes_whole_is_kept_byte_for_byte(raw: str) -> None:
    data = f'event: content_block_start\ndata: {{"type":"content_block_start","index":0,"content_block":{raw}}}\n\n'
    events = [*named(start()), data.encode(), *named(*text("ok", index=1), *stop("end_turn"))]
    with ScriptedServer(stream(events)) as server:
        given = ask(model("anthropic", server.url))
    assert isinstance(given.content[0], Reasoning)
    assert given.content[0].raw == raw


def test_a_signature_without_text_is_kept() -> None:
    """Newer models hide their thinking and still need it back."""
    thinking = block(0, "thinking", {"type": "signature_delta", "signature": "c2ln"}, thinking="")
    given = heard(start(), *thinking, *text("ok", index=1), *stop("end_turn"))
    assert isinstance(given.content[0], Reasoning)
    assert json.loads(given.content[0].raw) == {"type": "thinking", "thinking": "", "signature": "c2ln"}


def test_reasoning_alone_is_an_empty_answer() -> None:
    thinking = block(0, "thinking", {"type": "thinking_delta", "thinking": "Hm."}, thinking="")
    assert heard(start(), *thinking, *stop("end_turn")).content == ()


@pytest.mark.parametrize(
    ("reason", "end_turn", "truncated"),
    [
        ("end_turn", True, False),
        ("stop_sequence", True, False),
        ("tool_use", False, False),
        ("pause_turn", False, False),
        ("max_tokens", False, True),
        ("a_reason_of_tomorrow", True, False),
    ],
)
def test_stop_reasons(reason: str, end_turn: bool, truncated: bool) -> None:
    given = heard(start(), *text("x"), *stop(reason))
    assert (given.end_turn, given.truncated, given.refusal) == (end_turn, truncated, False)


def test_a_full_context_window_is_no_cut_to_go_on_after() -> None:
    given = heard(start(), *text("x"), *stop("model_context_window_exceeded"))
    assert (given.truncated, given.context_full) == (True, True)


@pytest.mark.parametrize(("counted", "full"), [(180_000, True), (10, False)])
def test_an_answer_cut_at_its_limit_found_a_full_window_if_its_tokens_fill_it(counted: int, full: bool) -> None:
    given = heard(start(input_tokens=counted), *text("x"), *stop("max_tokens"))
    assert (given.truncated, given.context_full) == (True, full)


def test_an_answer_that_max_tokens_cut_keeps_the_half_call() -> None:
    given = heard(start(), *text("x"), *tool_use("t1", '{"cmd": "rm -r', index=1)[:-1], *stop("max_tokens"))
    assert given.truncated
    assert given.content[1] == ToolUse("t1", "bash", '{"cmd": "rm -r')


def test_a_refusal_keeps_its_text_and_drops_its_calls() -> None:
    given = heard(start(), *text("I won't."), *tool_use("t1", "{}", index=1), *stop("refusal"))
    assert (given.content, given.refusal, given.end_turn) == ((Text("I won't."),), True, True)


def test_a_refusal_without_text_is_the_content_filter() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "It could do harm"}
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_details": details},
        "usage": {"output_tokens": 0},
    }
    told = failed(stream(named(start(), delta, {"type": "message_stop"})))
    assert told.failure.kind is ErrorKind.CONTENT_FILTER
    assert "It could do harm" in told.failure.message
    assert told.usage is not None


def test_an_empty_answer_is_left_to_the_machine() -> None:
    assert heard(start(), *stop("end_turn")).content == ()
    assert heard(start(), *stop("end_turn")).end_turn
    assert not heard(start(), *stop("pause_turn")).end_turn


def test_unknown_events_deltas_and_blocks_are_ignored() -> None:
    given = heard(
        start(), {"type": "new_event", "index": 0, "delta": {"text": "no"}},
        *block(0, "server_tool_use", {"type": "new_delta"}, id="x", name="web", input={}),
        *block(1, "text", {"type": "citations_delta", "citation": {}}, {"type": "text_delta", "text": "yes"}, text=""),
        *stop("end_turn"),
    )  # fmt: skip
    assert given.content == (Text("yes"),)


@pytest.mark.parametrize("reason", ["end_turn", "tool_use", "max_tokens"])
def test_an_answer_is_complete_once_its_stop_reason_has_come(reason: str) -> None:
    events = [start(), *text("ok"), *stop(reason)]
    assert heard(*events[:-1]) == heard(*events)


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_stream_without_its_stop_reason_is_retryable(cut: int) -> None:
    events = [start(), *text("Half an answer"), *stop("end_turn")[:-1]]
    told = failed(stream(named(*events[:-cut])))
    assert told.failure.kind is ErrorKind.SERVER_ERROR
    assert "ended before it was complete" in told.failure.message


def test_message_stop_without_a_stop_reason_is_no_end() -> None:
    assert failed(stream(named(start(), *text("x"), {"type": "message_stop"}))).failure.retryable


def test_an_empty_stream_is_retryable_and_never_began() -> None:
    sink = Sink()
    assert failed(stream([]), sink).failure.kind is ErrorKind.SERVER_ERROR
    assert sink.begun == 0


def test_counts_never_cost_an_answer() -> None:
    odd = {"input_tokens": "100", "output_tokens": "many", "cache_read_input_tokens": 60.0}
    guessed = Usage(prompt_tokens(request()), 1)
    for usage, wanted in ((odd, Usage(100, 1, 60)), ({"output_tokens": 7.5}, guessed), (7, None), (None, None)):
        message = {"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": usage}
        with ScriptedServer(answer(200, json.dumps(message).encode())) as server:
            told = ask(model("anthropic", server.url)).usage
        assert (told and replace(told, cost_micros=0)) == wanted


def test_a_connection_cut_in_the_middle_is_retryable_and_tells_what_it_cost() -> None:
    sink = Sink()
    told = failed(stream(named(start(), *text("Half")), then=lambda connection: connection.reset()), sink)
    assert told.failure.kind is ErrorKind.NETWORK
    assert sink.said == ["Half"]
    assert told.usage == Usage(10, 1, cost_micros=45)


def test_an_error_inside_the_stream() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    told = failed(stream(named(start(), *text("Half"), error)))
    assert told.failure.kind is ErrorKind.SERVER_ERROR
    assert "Overloaded" in told.failure.message
    assert told.usage == Usage(10, 1, cost_micros=45)


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SseParser", lambda: SseParser(1000))

    def flood(connection: ServedConnection) -> None:
        while True:
            connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n")

    assert "1000 bytes" in failed(stream([], then=flood)).failure.message


def test_a_plain_json_answer_completes_without_streaming() -> None:
    sink = Sink()
    body = {
        "type": "message",
        "content": [
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "t", "name": "bash", "input": {"cmd": "ls"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    with ScriptedServer(answer(200, json.dumps(body).encode())) as server:
        given = ask(model("anthropic", server.url), sink=sink)
    assert given.content == (Text("Hello"), ToolUse("t", "bash", '{"cmd": "ls"}'))
    assert given.usage == Usage(3, 4, cost_micros=69)
    assert (sink.begun, sink.said) == (0, [])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"content":[{"type":"text","text":"x"}]}'])
def test_a_plain_answer_that_is_none_is_retryable(body: bytes) -> None:
    assert failed(answer(200, body)).failure.kind is ErrorKind.SERVER_ERROR


def test_refusals_by_status_carry_their_retry_after() -> None:
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    told = failed(answer(429, body, retry_after="7"))
    assert (told.failure.kind, told.retry_after_ms) == (ErrorKind.RATE_LIMIT, 7000)
    assert failed(answer(401, b"{}")).failure.message.startswith("Authentication failed")


def test_a_refusal_whose_text_breaks_off_still_counts_by_its_status() -> None:
    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 401 No\r\ncontent-length: 999\r\n\r\n{")

    assert failed(play).failure.kind is ErrorKind.AUTH


def test_no_exception_of_a_failure_leads_to_the_request() -> None:
    """A chained exception would hold the request, and with it the key."""
    with ScriptedServer(lambda connection: connection.reset()) as server:
        told = failure(model("anthropic", server.url))
    assert told.__cause__ is None
    assert told.__context__ is None


def test_an_internal_fault_is_unknown_and_reported_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sink):
        def text(self, text: str, *, reasoning: bool = False) -> None:
            raise RuntimeError("hunter22")

    with ScriptedServer(stream(named(start(), *text("x"), *stop("end_turn")))) as server:
        told = failure(model("anthropic", server.url), sink=Broken())
    assert told.failure.kind is ErrorKind.UNKNOWN
    assert "hunter22" not in told.failure.message + caplog.text
    assert "RuntimeError" in caplog.text
