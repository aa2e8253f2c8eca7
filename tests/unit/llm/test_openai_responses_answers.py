"""Answers of OpenAI Responses and of servers that speak it, streamed and whole, over a real connection."""

import json
from typing import Any

import pytest

from actors.adapters.llm.provider import Timeouts
from actors.core.content import Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.errors import ErrorKind
from actors.ports import ModelAnswer, ModelFailedError
from tests.support.model_requests import (
    RequestThread,
    Sink,
    ask,
    assistant,
    body_of,
    failure,
    model,
    provider,
    request,
    user,
)
from tests.support.scripted_server import Script, ScriptedServer, answer, named, plain, stream
from tests.support.strict_checker import check_responses

Event = dict[str, Any]
NAME = "gpt-5.2"
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 107,
}


def added(item: Event, index: int | None = 0) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(item: Event, index: int | None = 0) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, text: str, index: int | None = 0, identity: str | None = None) -> Event:
    event: Event = {"type": f"response.{kind}.delta", "delta": text}
    if index is not None:
        event["output_index"] = index
    if identity is not None:
        event["item_id"] = identity
    return event


def message(*texts: str, **fields: Any) -> Event:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": parts, "status": "completed", **fields}


def call(name: str, arguments: str, identity: str = "call_1", **fields: Any) -> Event:
    return {"type": "function_call", "id": "fc_1", "call_id": identity, "name": name, "arguments": arguments, **fields}


def ended(status: str = "completed", **fields: Any) -> Event:
    response = {"id": "resp_1", "status": status, "output": [], "error": None, "usage": USAGE, **fields}
    return {"type": f"response.{status}", "response": response}


def spoken(*texts: str) -> list[Event]:
    return [added(message()), *(delta("output_text", text) for text in texts), done(message("".join(texts)))]


def heard(*events: Event, sink: Sink | None = None, name: str = NAME) -> ModelAnswer:
    with ScriptedServer(stream(named(*events))) as server:
        return ask(model("openai-responses", server.url, name), sink=sink)


def failed(script: Script, sink: Sink | None = None) -> ModelFailedError:
    with ScriptedServer(script) as server:
        return failure(model("openai-responses", server.url, NAME), sink=sink)


def test_text_is_passed_on_as_it_comes_and_answered_as_a_whole() -> None:
    sink = Sink()
    given = heard(
        {"type": "response.created", "response": {"status": "in_progress", "output": [], "usage": None}},
        *spoken("Hel", "lo"),
        ended(),
        sink=sink,
    )
    usage = Usage(10, 7, 60, 30, cost_micros=round(10 * 1.75 + 7 * 14 + 60 * 0.175 + 30 * 1.75))
    assert given == ModelAnswer((Text("Hello"),), end_turn=True, usage=usage)
    assert (sink.begun, "".join(sink.said)) == (1, "Hello")


def test_reasoning_is_shown_and_kept_byte_for_byte() -> None:
    sink = Sink()
    raw = (
        '{ "type":"reasoning",  "id":"rs_1","summary":[{"type":"summary_text","text":"Hm"},'
        '{"type":"summary_text","text":"Ah"}],"encrypted_content":"c2ln\\u00e9" }'
    )
    events = named(
        added({"type": "reasoning", "id": "rs_1", "summary": []}),
        {"type": "response.reasoning_summary_part.added", "output_index": 0},
        delta("reasoning_summary_text", "H"),
        delta("reasoning_summary_text", "m"),
        {"type": "response.reasoning_summary_part.added", "output_index": 0},
        delta("reasoning_summary_text", "Ah"),
    )
    events.append(f'data: {{"type":"response.output_item.done","output_index":0,"item":{raw}}}\n\n'.encode())
    events += named(added(message(), 1), delta("output_text", "Yes", 1), done(message("Yes"), 1), ended())
    with ScriptedServer(stream(events)) as server:
        given = ask(model("openai-responses", server.url, NAME), sink=sink)
    assert given.content == (Reasoning("Hm\n\nAh", "openai-responses", NAME, raw, "fake"), Text("Yes"))
    assert "".join(sink.thought) == "Hm\n\nAh"
    history = request(user("a"), assistant(*given.content), user("b"))
    again = body_of(provider("openai-responses", "http://127.0.0.1:9"), history, NAME)
    check_responses(again)
    assert raw.encode() in again


def test_open_reasoning_is_kept_and_a_mere_id_is_not() -> None:
    text = [{"type": "reasoning_text", "text": "Hm"}]
    open_item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": text, "encrypted_content": ""}
    given = heard(added(open_item), delta("reasoning_text", "Hm"), done(open_item), *spoken("a"), ended())
    assert isinstance(given.content[0], Reasoning)
    assert json.loads(given.content[0].raw) == open_item
    summary = [{"type": "summary_text", "text": "Hm"}]
    bare = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": None}
    given = heard(done(bare), *spoken("a"), ended())
    assert given.content[0] == Reasoning("Hm", "openai-responses", NAME, "", "fake")
    assert heard(done({**bare, "summary": []}), *spoken("a"), ended()).content == (Text("a"),)


def test_the_phase_of_a_text_is_kept() -> None:
    given = heard(done(message("I look.", phase="commentary")), done(message("Done.", phase=None), 1), ended())
    marker = Reasoning("", "openai-responses", NAME, '{"phase":"commentary"}', "fake")
    assert given.content == (marker, Text("I look."), Text("Done."))


def test_calls_are_put_together_and_end_no_turn() -> None:
    given = heard(
        *spoken("I run:"),
        added(call("bash", ""), 1),
        added(call("read", "", "call_2"), 2),
        delta("function_call_arguments", '{"cmd": ', 1),
        delta("function_call_arguments", "{}", 2),
        delta("function_call_arguments", '"ls"}', 1),
        done(call("bash", '{"cmd": "ls"}'), 1),
        ended(),
    )
    assert given.content == (
        Text("I run:"),
        ToolUse("call_1", "bash", '{"cmd": "ls"}'),
        ToolUse("call_2", "read", "{}"),
    )
    assert not given.end_turn


def test_without_places_items_are_distinguished_by_id_or_by_what_is_unfinished() -> None:
    """llama.cpp counts nothing; others change the ids from event to event."""

    def of(identity: str, *ids: str) -> list[Event]:
        item = call("bash", "", f"call_{identity}", id=ids[0])
        return [
            added(item, None),
            delta("function_call_arguments", "{", None, ids[1]),
            delta("function_call_arguments", "}", None, ids[1]),
            done({**item, "arguments": "{}", "id": ids[2]}, None),
        ]

    wanted = (ToolUse("call_1", "bash", "{}"), ToolUse("call_2", "bash", "{}"))
    assert heard(*of("1", "a", "a", "a"), *of("2", "b", "b", "b"), ended()).content == wanted
    assert heard(*of("1", "a", "b", "c"), *of("2", "d", "e", "f"), ended()).content == wanted


def test_missing_and_repeated_ids_are_made_unique() -> None:
    given = heard(done(call("bash", "{}", "")), done(call("bash", "{}"), 1), done(call("bash", "{}"), 2), ended())
    assert [block.id for block in given.content if isinstance(block, ToolUse)] == ["fc_1", "call_1", "c1-r7-2"]


@pytest.mark.parametrize("arguments", ["{", '{"cmd": "l', "[1]", "not JSON"])
def test_arguments_that_are_no_object_are_kept_for_the_machine_to_answer(arguments: str) -> None:
    assert heard(done(call("bash", arguments)), ended()).content == (ToolUse("call_1", "bash", arguments),)


# --- ends ---------------------------------------------------------------------------------------------------------


def test_max_output_tokens_truncates() -> None:
    given = heard(
        *spoken("Half"),
        added(call("bash", ""), 1),
        delta("function_call_arguments", '{"cmd', 1),
        ended("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    )
    assert given.content == (Text("Half"), ToolUse("call_1", "bash", '{"cmd'))
    assert (given.truncated, given.end_turn) == (True, False)


@pytest.mark.parametrize(
    ("reason", "counted", "full"),
    [
        ("max_output_tokens", 390_000, True),
        ("max_output_tokens", 10, False),
        ("model_context_window_exceeded", 10, True),
    ],
)
def test_an_answer_that_is_cut_found_a_full_window_if_there_was_no_room(reason: str, counted: int, full: bool) -> None:
    usage = {"input_tokens": counted, "output_tokens": 5}
    given = heard(*spoken("Half"), ended("incomplete", incomplete_details={"reason": reason}, usage=usage))
    assert (given.truncated, given.context_full) == (True, full)


@pytest.mark.parametrize("reason", ["max_messages", "new_reason", None])
def test_an_answer_that_is_incomplete_for_another_reason_goes_on(reason: str | None) -> None:
    given = heard(*spoken("Half"), ended("incomplete", incomplete_details=reason and {"reason": reason}))
    assert (given.truncated, given.end_turn, given.refusal) == (False, False, False)


def test_a_refusal_with_text_is_an_answer_without_calls() -> None:
    refused = {"type": "message", "content": [{"type": "refusal", "refusal": "I can't."}]}
    sink = Sink()
    given = heard(added(message()), delta("refusal", "I can't."), done(refused), done(call("bash", "{}"), 1), ended(),
                  sink=sink)  # fmt: skip
    assert (given.content, given.refusal) == ((Text("I can't."),), True)
    assert sink.said == ["I can't."]
    assert heard(done(refused), ended()).refusal


def test_a_content_filter_without_text_is_an_error() -> None:
    told = failed(stream(named(ended("incomplete", incomplete_details={"reason": "content_filter"}))))
    assert told.failure.kind is ErrorKind.CONTENT_FILTER
    assert told.usage is not None


def test_an_empty_answer_is_an_answer() -> None:
    assert heard(ended()).content == ()
    assert heard(done(message("")), ended()).content == ()


@pytest.mark.parametrize("data", [b"[DONE]", b": bye"])
def test_nothing_is_waited_for_after_the_end(data: bytes) -> None:
    script = stream([*named(*spoken("x"), ended()), b"data: " + data + b"\n\n"], then=lambda c: c.wait_for_close())
    with ScriptedServer(script) as server:
        asking = RequestThread(model("openai-responses", server.url, NAME, timeouts=Timeouts()))
        asking.join(60)
        assert isinstance(asking.outcome, ModelAnswer), asking.outcome


@pytest.mark.parametrize("events", [[], spoken("x"), [*spoken("x"), {"type": "response.in_progress"}]])
@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n", b'data: {"type":"response.completed"}\n'])
def test_a_stream_without_its_terminal_event_is_retryable(events: list[Event], tail: bytes) -> None:
    told = failed(stream([*named(*events), tail] if tail else named(*events)))
    assert told.failure.kind is ErrorKind.SERVER_ERROR
    assert "ended before it was complete" in told.failure.message


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "boom"}, ErrorKind.SERVER_ERROR),
        ({"code": "rate_limit_exceeded", "message": "boom. Please try again in 2s."}, ErrorKind.RATE_LIMIT),
        ({"code": "invalid_prompt", "message": "boom"}, ErrorKind.CONTENT_FILTER),
        ({"code": "insufficient_quota", "message": "boom"}, ErrorKind.INVALID_REQUEST),
        ({"code": "context_length_exceeded", "message": "boom"}, ErrorKind.CONTEXT_EXHAUSTED),
        ({"code": "image_parse_error", "message": "boom"}, ErrorKind.INVALID_REQUEST),
    ],
)
def test_every_form_of_an_error_inside_the_stream(error: Event, kind: ErrorKind) -> None:
    forms: list[bytes] = [
        *named(ended("failed", error=error)),
        *named({"type": "error", "sequence_number": 3, "param": None, **error}),
        *named({"type": "error", "error": error}),
        *plain({"error": error}),
    ]
    for form in forms:
        told = failed(stream([*named(*spoken("Half")), form]))
        assert told.failure.kind is kind, form
        assert "boom" in told.failure.message
        assert told.retry_after_ms == (2000 if kind is ErrorKind.RATE_LIMIT else None)


def test_a_failure_that_says_nothing_is_retryable() -> None:
    for end in (ended("failed"), {"type": "response.failed"}, ended("cancelled")):
        assert failed(stream(named(end))).failure.kind is ErrorKind.SERVER_ERROR
    assert failed(stream(named(ended("failed")))).usage is not None


def test_what_a_later_version_adds_is_ignored() -> None:
    new = {"type": "response.hologram.delta", "delta": {"x": 1}, "output_index": 0}
    thing = {"type": "hologram", "id": "h", "content": None}
    assert heard(new, added(thing), new, done(thing), *spoken("x")[:0], done(message("x"), 1), ended()).content == (
        Text("x"),
    )


# --- whole answers ------------------------------------------------------------------------------------------------


def whole(**fields: Any) -> Script:
    return answer(200, json.dumps(ended(**fields)["response"]).encode())


def test_a_plain_json_answer_completes_without_streaming() -> None:
    sink = Sink()
    with ScriptedServer(whole(output=[message("Hello"), call("bash", "{}")])) as server:
        given = ask(model("openai-responses", server.url, NAME), sink=sink)
    assert given.content == (Text("Hello"), ToolUse("call_1", "bash", "{}"))
    assert given.usage is not None
    assert given.usage.context_tokens == 107
    assert (sink.begun, sink.said, sink.thought) == (0, [], [])


@pytest.mark.parametrize(
    "script",
    [
        answer(200, b""),
        answer(200, b"{}"),
        whole(status="in_progress"),
        whole(status="queued"),
        whole(status="failed"),
        whole(status="cancelled"),
        answer(200, b'{"error":{"code":"server_error","message":"boom"}}'),
    ],
)
def test_a_plain_answer_that_is_none_is_retryable(script: Script) -> None:
    assert failed(script).failure.kind is ErrorKind.SERVER_ERROR


# --- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"input_tokens": "100", "output_tokens": 7.0, "input_tokens_details": {"cached_tokens": "60"}}, (40, 7, 60)),
        ({"input_tokens": 100, "output_tokens": "many", "input_tokens_details": 5}, (100, 1, 0)),
    ],
)
def test_counts_never_cost_an_answer(usage: Event, wanted: tuple[int, int, int]) -> None:
    given = heard(*spoken("x"), ended(usage=usage))
    assert given.usage is not None
    assert (given.usage.input_tokens, given.usage.output_tokens, given.usage.cache_read_tokens) == wanted


def test_what_was_answered_can_be_sent_again() -> None:
    """Everything an answer may hold makes a valid part of the next request."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"}
    given = heard(
        done(thought), done(message("a", "b", phase="commentary"), 1), done({**thought, "id": "rs_2"}, 2),
        done(call("bash", "{"), 3), done(call("x y", "{}"), 4), ended(),
    )  # fmt: skip
    results = [ToolSuccess(block.id, "x") for block in given.content if isinstance(block, ToolUse)]
    history = request(user("a"), assistant(*given.content), user(*results))
    body = check_responses(body_of(provider("openai-responses", "http://127.0.0.1:9"), history, NAME))
    kinds = [item["type"] for item in body["input"]]
    assert kinds[:4] == ["message", "reasoning", "message", "reasoning"]
    assert kinds[4:] == [*["function_call"] * 2, *["function_call_output"] * 2]
