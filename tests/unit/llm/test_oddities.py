"""What servers send beside what their protocol says: each oddity in every protocol that can have it.

tests/peers/README.md lists the oddities with these tests.
"""

import codecs
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.adapters.llm.protocols.answer_builder import prompt_tokens
from actors.core.content import Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.context import ToolGroup, ToolTraits
from actors.core.errors import ErrorKind
from actors.ports import ModelAnswer, ModelFailedError, ToolSpec
from actors.runtime.offered_tools import checked_calls
from tests.support.model_requests import ask, assistant, body_of, failure, model, provider, request, user
from tests.support.scripted_server import ScriptedServer, answer, plain, stream
from tests.support.strict_checker import CHECKS
from tests.unit.llm.test_outcomes import ALPHABETS, ENDS, NAMES, PROTOCOLS, Said, outcome

Event = dict[str, Any]
ANTHROPIC, CHAT, RESPONSES = NAMES
BLOCK_STARTS = {"text": {"type": "text", "text": ""}, "reasoning": {"type": "thinking", "thinking": ""}}


def texts(protocol: str, *deltas: Any, kind: str = "text", index: Any = 0) -> list[Event]:
    """Stream a text, or reasoning, in these deltas."""
    match protocol:
        case "anthropic":
            field = "thinking" if kind == "reasoning" else "text"
            began = {"type": "content_block_start", "index": index, "content_block": BLOCK_STARTS[kind]}
            return [
                began,
                *({"type": "content_block_delta", "index": index, "delta": {field: delta}} for delta in deltas),
            ]
        case "openai-chat":
            field = "reasoning_content" if kind == "reasoning" else "content"
            return [chunk(**{field: delta}) for delta in deltas]
        case _:
            name = "reasoning_text" if kind == "reasoning" else "output_text"
            event = {"type": f"response.{name}.delta", "output_index": index, "item_id": f"m{index}"}
            return [event | {"delta": delta} for delta in deltas]


def call(
    protocol: str, *deltas: Any, name: Any = "bash", identity: Any = "t1", index: Any = 1, **own: Any
) -> list[Event]:
    """Stream a tool call whose arguments come in these deltas."""
    match protocol:
        case "anthropic":
            block = {"type": "tool_use", "id": identity, "name": name, "input": {}, **own}
            step = {"type": "content_block_delta", "index": index}
            return [
                {"type": "content_block_start", "index": index, "content_block": block},
                *(step | {"delta": {"partial_json": delta}} for delta in deltas),
            ]
        case "openai-chat":
            first = {"index": index, "id": identity, "function": {"name": name, "arguments": ""}, **own}
            more = ({"index": index, "function": {"arguments": delta}} for delta in deltas)
            return [chunk(tool_calls=[fragment]) for fragment in (first, *more)]
        case _:
            item = {"type": "function_call", "id": identity, "call_id": identity, "name": name, "arguments": "", **own}
            step = {"type": "response.function_call_arguments.delta", "output_index": index, "item_id": identity}
            return [
                {"type": "response.output_item.added", "output_index": index, "item": item},
                *(step | {"delta": delta} for delta in deltas),
            ]


def chunk(**delta: Any) -> Event:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def end(protocol: str, usage: Any = None, **final: Any) -> list[Event]:
    """End an answer; `final` are the fields of the message or response in its last event."""
    match protocol:
        case "anthropic":
            stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
            return [stop, {"type": "message_stop", **({"message": final} if final else {})}]
        case "openai-chat":
            choice = {"index": 0, "delta": {}, "finish_reason": "stop", **({"message": final} if final else {})}
            return [{"choices": [choice], "usage": usage}]
        case _:
            return [{"type": "response.completed", "response": {"usage": usage, **final}}]


def whole(protocol: str, content: Any, usage: Any = None) -> bytes:
    """Return an answer that does not stream; `content` is what the protocol calls content, message or output."""
    match protocol:
        case "anthropic":
            body: Event = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}
        case "openai-chat":
            body = {"choices": [{"message": content, "finish_reason": "stop"}], "usage": usage}
        case _:
            body = {"status": "completed", "output": content, "usage": usage}
    return json.dumps(body).encode()


def heard(protocol: str, *events: Event) -> tuple[ModelAnswer, Said]:
    """Return the answer to these events, each of which arrives alone, and what was shown of it."""
    result, said = outcome(protocol, plain(*events))
    assert isinstance(result, ModelAnswer), result
    together, _ = outcome(protocol, [b"".join(plain(*events))])
    assert together == result
    return result, said


def content(protocol: str, *events: Event) -> tuple[Any, ...]:
    """Return the texts and calls of an answer, without reasoning."""
    blocks = heard(protocol, *events)[0].content
    return tuple(block for block in blocks if not isinstance(block, Reasoning))


def content_of_body(protocol: str, body: bytes) -> tuple[Any, ...]:
    result, _ = outcome(protocol, [body])
    assert isinstance(result, ModelAnswer), result
    return tuple(block for block in result.content if not isinstance(block, Reasoning))


def failed(protocol: str, script: Any) -> ModelFailedError:
    with ScriptedServer(script) as server:
        return failure(model(protocol, server.url, NAMES[protocol]))


# --- surrogate pairs ----------------------------------------------------------------------------------------------


@PROTOCOLS
@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_a_surrogate_pair_split_over_two_deltas_is_one_character(protocol: str, kind: str) -> None:
    told = texts(protocol, "a\ud83d", "\ude00b", "\udc00c", "\ud83d", kind=kind)
    answered = [*told, *texts(protocol, "x", index=1)] if kind == "reasoning" else told
    given, said = heard(protocol, *answered, *end(protocol))
    wanted = "a\U0001f600b\ufffdc\ufffd"
    assert getattr(given.content[0], "text", "") == wanted
    assert said.joined[0] == (kind == "reasoning", wanted)
    assert all("\ufdd0" not in text for _, text in said.told)
    if isinstance(given.content[0], Reasoning):
        assert "\ufdd0" not in given.content[0].raw


@PROTOCOLS
def test_a_surrogate_pair_split_in_arguments_is_one_character(protocol: str) -> None:
    """In the text of the arguments, and in the escapes of the arguments themselves."""
    events = call(protocol, '{"a": "\ud83d', '\ude00", "b": "\\ud83d', '\\ude00\ud83d"}')
    (use,) = content(protocol, *events, *end(protocol))
    assert json.loads(use.input) == {"a": "\U0001f600", "b": "\U0001f600\ufffd"}


# --- other types than the protocol says ---------------------------------------------------------------------------

PARTS = [
    {"type": "text", "text": "Hel"},
    {"type": "image_url", "image_url": {}},
    {"type": "text", "text": {"value": "lo"}},
]


@PROTOCOLS
@pytest.mark.parametrize("given", ["Hello", PARTS, {"type": "text", "text": "Hello"}, [["Hel"], "lo"]])
def test_a_text_as_a_list_of_parts_is_read(protocol: str, given: Any) -> None:
    assert content(protocol, *texts(protocol, given), *end(protocol)) == (Text("Hello"),)
    block: Any = {
        ANTHROPIC: given if isinstance(given, str) else [{"type": "text", "text": given}],
        CHAT: {"content": given},
        RESPONSES: [{"type": "message", "content": given}],
    }[protocol]
    assert content_of_body(protocol, whole(protocol, block)) == (Text("Hello"),)
    assert content_of_body(protocol, codecs.BOM_UTF8 + whole(protocol, block)) == (Text("Hello"),)


def test_parts_of_reasoning_in_a_chat_message_are_reasoning() -> None:
    """As Mistral's models send it; the servers that do so do not accept it back under another name."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}], "closed": True}
    streamed, said = heard(CHAT, chunk(content=[thought]), *texts(CHAT, "Yes"), *end(CHAT))
    assert streamed.content == (Reasoning("Hm", CHAT, NAMES[CHAT], "", "fake"), Text("Yes"))
    assert said.joined == [(True, "Hm"), (False, "Yes")]
    result, _ = outcome(CHAT, [whole(CHAT, {"content": [thought, {"type": "text", "text": "Yes"}]})])
    assert isinstance(result, ModelAnswer)
    assert result.content == streamed.content


ARGUMENTS = {"cmd": "ls ✓", "n": 12345678901234567890}


@PROTOCOLS
@pytest.mark.parametrize(
    "given",
    [ARGUMENTS, json.dumps(json.dumps(ARGUMENTS)), json.dumps(ARGUMENTS)],
    ids=["object", "encoded twice", "text"],
)
def test_arguments_as_an_object_or_encoded_twice_are_read(protocol: str, given: Any) -> None:
    (use,) = content(protocol, *call(protocol, given), *end(protocol))
    assert (use.name, json.loads(use.input)) == ("bash", ARGUMENTS)
    block: Any = {
        ANTHROPIC: [{"type": "tool_use", "id": "t1", "name": "bash", "input": given}],
        CHAT: {"content": None, "tool_calls": [{"id": "t1", "function": {"name": "bash", "arguments": given}}]},
        RESPONSES: [{"type": "function_call", "call_id": "t1", "name": "bash", "arguments": given}],
    }[protocol]
    (use,) = content_of_body(protocol, whole(protocol, block))
    assert (use.id, json.loads(use.input)) == ("t1", ARGUMENTS)


@PROTOCOLS
@pytest.mark.parametrize("given", ['"{"', '"[1]"', '"x"', '"5"'])
def test_arguments_that_are_a_mere_string_stay_as_they_are(protocol: str, given: str) -> None:
    (use,) = content(protocol, *call(protocol, given), *end(protocol))
    assert use.input == given


def test_the_legacy_function_call_is_a_call() -> None:
    first = chunk(function_call={"name": "bash", "arguments": ""})
    more = [chunk(function_call={"arguments": delta}) for delta in ('{"cmd":', '"ls"}')]
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}
    given, _ = heard(CHAT, first, *more, finish)
    assert given.content == (ToolUse("c1-r7-0", "bash", '{"cmd":"ls"}'),)
    assert not given.end_turn
    body = whole(CHAT, {"content": None, "function_call": {"name": "bash", "arguments": "{}"}})
    assert content_of_body(CHAT, body) == (ToolUse("c1-r7-0", "bash", "{}"),)


@PROTOCOLS
@pytest.mark.parametrize("number", [7, 7.0, "7"])
def test_an_id_as_a_number_and_an_index_as_a_text_are_read(protocol: str, number: Any) -> None:
    events = [*call(protocol, '{"a"', ":1}", identity=number, index="1"), *call(protocol, "{}", index="2")]
    first, second = content(protocol, *texts(protocol, "x", index="0"), *events, *end(protocol))[1:]
    assert (first.name, first.input, second) == ("bash", '{"a":1}', ToolUse("t1", "bash", "{}"))


@PROTOCOLS
def test_without_an_index_deltas_belong_to_what_began_last(protocol: str) -> None:
    events = [*call(protocol, '{"a"', ":1}", index=None), *call(protocol, "{", "}", identity="t2", index=None)]
    told = texts(protocol, "x", "y", index=None)
    wanted = (Text("xy"), ToolUse("t1", "bash", '{"a":1}'), ToolUse("t2", "bash", "{}"))
    assert content(protocol, *told, *events, *end(protocol)) == wanted


def test_a_choice_without_an_index_is_the_first() -> None:
    events = json.loads(json.dumps([*texts(CHAT, "x"), *end(CHAT)]).replace('"index": 0', '"index": null'))
    assert content(CHAT, *events) == (Text("x"),)


ODD: dict[str, list[Any]] = {
    ANTHROPIC: [
        {"type": "message_start", "message": 7},
        {"type": "content_block_start", "index": 0, "content_block": 7},
        {"type": "content_block_delta", "index": 0, "delta": {"text": True}},
        [],
    ],
    CHAT: [{"choices": 7}, chunk(content=7), chunk(content=[True]), chunk(tool_calls=[7]), {"choices": ["x"]}],
    RESPONSES: [
        {"type": 7},
        {"type": "response.output_item.done", "item": 7},
        {"type": "response.output_item.done", "item": {"type": "message", "content": 7}},
        {"type": "response.completed", "response": {"output": {}}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("protocol", "event"), [(name, event) for name, events in ODD.items() for event in events])
def test_what_cannot_be_read_is_not_paid_for_again_and_says_what_is_odd(protocol: str, event: Any) -> None:
    result, _ = outcome(protocol, [*plain(*texts(protocol, "x"), event), *plain(*end(protocol))])
    assert not isinstance(result, ModelAnswer)
    failure = result[0]
    assert failure.kind is ErrorKind.INVALID_REQUEST
    assert re.search(r"the answer cannot be parsed: Expected .+, got `\w+`", failure.message)


# Events without what they must have.
LACKING = {
    ANTHROPIC: '{"type":"content_block_start","index":0}',
    CHAT: '{"choices":',
    RESPONSES: '{"type":"response.output_item.added"}',
}


@PROTOCOLS
@pytest.mark.parametrize("data", ["{", "hello", "\\ud83d", ""])
def test_a_malformed_event_is_retryable_and_ends_the_reading(protocol: str, data: str) -> None:
    pieces = [*plain(*texts(protocol, "x")), f"data: {data or LACKING[protocol]}\n\n".encode()]
    told = failed(protocol, stream(pieces, then=lambda connection: connection.wait_for_close())).failure
    assert told.kind is ErrorKind.SERVER_ERROR
    assert "malformed" in told.message


# --- other answers than a stream ----------------------------------------------------------------------------------

PAGES = [
    (b"<!doctype html><html>Sign in</html>", "text/html; charset=utf-8", "received text/html instead of a stream"),
    (b"\n <html>Sign in</html>", "application/json", "received a page instead of a stream"),
    (b"<html>Sign in</html>", "text/event-stream", "received a page instead of a stream"),
    (b"\xef\xbb\xbf<html>Sign in</html>", "text/html", "received text/html instead of a stream"),
    (b"<html>Sign in</html>", "", "received a page instead of a stream"),
    (b"ok", "text/plain", "received text/plain instead of a stream"),
    (b"", "text/html", "received text/html instead of a stream"),
    (b'{"message":{"content":"x"}}\n{"done":true}\n', "application/x-ndjson", "received application/x-ndjson"),
]


@PROTOCOLS
@pytest.mark.parametrize(("page", "kind", "said"), PAGES)
def test_a_page_in_place_of_an_answer_is_named_and_not_asked_for_again(
    protocol: str, page: bytes, kind: str, said: str
) -> None:
    told = failed(protocol, answer(200, page, kind)).failure
    assert told.kind is ErrorKind.INVALID_REQUEST
    assert told.message.startswith(f"fake: {said}")
    assert told.message.endswith("check the base_url of provider fake")


@PROTOCOLS
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_not_asked_for_again(protocol: str, status: int) -> None:
    told = failed(protocol, answer(status, b"<html>moved</html>", "text/html", location="/login?key=hunter22")).failure
    assert told.kind is ErrorKind.INVALID_REQUEST
    assert "redirects; set it to the final URL" in told.message
    assert "hunter22" not in told.message


@PROTOCOLS
@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream", "", "application/octet-stream"])
def test_a_stream_or_a_whole_answer_is_read_whatever_type_it_states(protocol: str, kind: str) -> None:
    streamed = b"".join(plain(*texts(protocol, "x"), *end(protocol)))
    block: Any = {
        ANTHROPIC: [{"type": "text", "text": "x"}],
        CHAT: {"content": "x"},
        RESPONSES: [{"type": "message", "content": "x"}],
    }[protocol]
    for body in (streamed, b"\n" + whole(protocol, block)):
        with ScriptedServer(answer(200, body, kind)) as server:
            assert ask(model(protocol, server.url, NAMES[protocol])).content == (Text("x"),)


# --- the final form counts ----------------------------------------------------------------------------------------


def final(protocol: str, text: str, *calls: tuple[str, str]) -> Event:
    """Return the fields of a last event that hold a whole answer: a text, and calls by their ids and arguments."""
    match protocol:
        case "anthropic":
            said: list[Event] = [{"type": "text", "text": text}] if text else []
            uses = [{"type": "tool_use", "id": i, "name": "bash", "input": json.loads(raw)} for i, raw in calls]
            return {"content": [*said, *uses]}
        case "openai-chat":
            uses = [{"id": i, "function": {"name": "bash", "arguments": raw}} for i, raw in calls]
            return {"content": text or None, "tool_calls": uses or None}
        case _:
            said = [{"type": "message", "id": "m0", "content": [{"type": "output_text", "text": text}]}] if text else []
            uses = [{"type": "function_call", "call_id": i, "name": "bash", "arguments": raw} for i, raw in calls]
            return {"output": [*said, *uses]}


@PROTOCOLS
def test_an_answer_that_comes_only_at_its_end_is_whole(protocol: str) -> None:
    events = end(protocol, **final(protocol, "Hello", ("t1", '{"a": 1}'), ("t2", "{}")))
    wanted = (Text("Hello"), ToolUse("t1", "bash", '{"a": 1}'), ToolUse("t2", "bash", "{}"))
    assert content(protocol, *events) == wanted


@PROTOCOLS
def test_where_the_final_form_differs_from_the_stream_it_counts(protocol: str) -> None:
    streamed = [*texts(protocol, "Hel"), *call(protocol, '{"a"')]
    given, said = heard(protocol, *streamed, *end(protocol, **final(protocol, "Hello", ("t1", '{"a": 1}'))))
    assert given.content == (Text("Hello"), ToolUse("t1", "bash", '{"a": 1}'))
    assert said.joined[0][1] in {"Hel", "Hello"}
    given, _ = heard(protocol, *streamed, *end(protocol, **final(protocol, "Bye", ("t2", "{}"))))
    assert given.content == (Text("Bye"), ToolUse("t2", "bash", "{}"))


@PROTOCOLS
def test_a_final_form_that_repeats_the_stream_changes_nothing(protocol: str) -> None:
    streamed = [*texts(protocol, "Hel", "lo"), *call(protocol, '{"a": 1}')]
    given, said = heard(protocol, *streamed, *end(protocol, **final(protocol, "Hello", ("t1", '{"a": 1}'))))
    assert given.content == (Text("Hello"), ToolUse("t1", "bash", '{"a": 1}'))
    assert said.joined == [(False, "Hello")]


@PROTOCOLS
def test_a_final_form_without_content_keeps_what_was_streamed(protocol: str) -> None:
    streamed = [*texts(protocol, "Hello"), *call(protocol, '{"a": 1}')]
    empties: dict[str, Event] = {ANTHROPIC: {"content": []}, CHAT: {"content": None}, RESPONSES: {"output": []}}
    empty = empties[protocol]
    wanted = (Text("Hello"), ToolUse("t1", "bash", '{"a": 1}'))
    assert content(protocol, *streamed, *end(protocol, **empty)) == wanted


def test_a_block_that_comes_only_with_its_end_is_whole() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"a": 1}}
    said = {"type": "text", "text": "Hello"}
    stops = [{"type": "content_block_stop", "index": i, "content_block": each} for i, each in enumerate((said, block))]
    wanted = (Text("Hello"), ToolUse("t1", "bash", '{"a": 1}'))
    assert content(ANTHROPIC, *stops, *end(ANTHROPIC)) == wanted
    assert content(ANTHROPIC, *texts(ANTHROPIC, "Hel"), *call(ANTHROPIC, "{"), *stops, *end(ANTHROPIC)) == wanted


def test_messages_in_place_of_deltas_are_put_together() -> None:
    events = [{"choices": [{"index": 0, "message": {"content": piece}}]} for piece in ("Hel", "lo")]
    assert content(CHAT, *events, *end(CHAT)) == (Text("Hello"),)


DONE = {
    "text": {"type": "response.output_text.done", "text": "Hello"},
    "part": {"type": "response.content_part.done", "part": {"type": "output_text", "text": "Hello"}},
    "item": {"type": "response.output_item.done", "item": {"type": "message", "content": "Hello"}},
}


@pytest.mark.parametrize("streamed", ["", "Hel", "Hello", "Bye"])
@pytest.mark.parametrize("event", DONE.values(), ids=DONE)
@pytest.mark.parametrize("place", [{}, {"output_index": 0, "item_id": "m0"}], ids=["anywhere", "placed"])
def test_a_text_that_comes_with_its_end_is_whole(event: Event, streamed: str, place: Event) -> None:
    events = [*({"type": "response.output_text.delta", "delta": streamed, **place},) * bool(streamed), event | place]
    given, said = heard(RESPONSES, *events, *end(RESPONSES))
    assert given.content == (Text("Hello"),)
    assert said.joined == [(False, "Hello" if "Hello".startswith(streamed) else streamed)]


def test_a_refusal_that_comes_with_its_end_is_a_refusal() -> None:
    part = {"type": "refusal", "refusal": "No."}
    for event in (
        {"type": "response.refusal.done", "refusal": "No."},
        {"type": "response.content_part.done", "part": part},
        {"type": "response.output_item.done", "item": {"type": "message", "content": [part]}},
    ):
        given, _ = heard(RESPONSES, event, *end(RESPONSES))
        assert (given.content, given.refusal) == ((Text("No."),), True)
    given, _ = heard(RESPONSES, *end(RESPONSES, output=[{"type": "message", "content": [part]}]))
    assert (given.content, given.refusal) == ((Text("No."),), True)


def test_arguments_that_come_with_their_end_are_whole() -> None:
    done = {
        "type": "response.function_call_arguments.done",
        "arguments": '{"a": 1}',
        "output_index": 1,
        "item_id": "t1",
    }
    for begun in (call(RESPONSES), call(RESPONSES, '{"b"')):
        assert content(RESPONSES, *begun, done, *end(RESPONSES)) == (ToolUse("t1", "bash", '{"a": 1}'),)
    assert content(RESPONSES, done | {"name": "bash"}, *end(RESPONSES)) == (ToolUse("t1", "bash", '{"a": 1}'),)


def test_reasoning_that_comes_with_its_end_is_whole() -> None:
    part = {"type": "summary_text", "text": "Hm"}
    parts = [
        {"type": "response.reasoning_summary_text.done", "summary_index": 0, "text": "Hm"},
        {"type": "response.reasoning_summary_part.done", "summary_index": 0, "part": part},
        {"type": "response.reasoning_summary_text.delta", "summary_index": 1, "delta": "A"},
        {"type": "response.reasoning_summary_text.done", "summary_index": 1, "text": "Ah"},
    ]  # fmt: skip
    said = {"type": "response.output_text.done", "text": "Yes", "output_index": 1}
    given, shown = heard(RESPONSES, *(part | {"output_index": 0} for part in parts), said, *end(RESPONSES))
    assert given.content == (Reasoning("Hm\n\nAh", RESPONSES, NAMES[RESPONSES], "", "fake"), Text("Yes"))
    assert shown.joined == [(True, "Hm\n\nAh"), (False, "Yes")]


def test_parts_of_a_text_end_one_by_one() -> None:
    events = [
        {"type": f"response.output_text.{step}", "content_index": index, field: text, "output_index": 0}
        for index, texts in enumerate((("a", "ab"), ("c", "cd")))
        for step, field, text in (("delta", "delta", texts[0]), ("done", "text", texts[1]))
    ]
    assert content(RESPONSES, *events, *end(RESPONSES)) == (Text("abcd"),)


# --- blocks and calls ---------------------------------------------------------------------------------------------


@PROTOCOLS
def test_two_calls_at_one_index_are_two(protocol: str) -> None:
    """With ids of their own, and without ids; llama.cpp, Ollama and gateways to Gemini count so."""
    events = [*call(protocol, "{", "}", identity="t1"), *call(protocol, '{"a"', ":1}", identity="t2")]
    wanted = (ToolUse("t1", "bash", "{}"), ToolUse("t2", "bash", '{"a":1}'))
    assert content(protocol, *events, *end(protocol)) == wanted
    nameless = [*call(protocol, "{}", identity=""), *call(protocol, '{"a":1}', identity="")]
    first, second = content(protocol, *nameless, *end(protocol))
    assert (first.input, second.input) == ("{}", '{"a":1}')
    assert first.id != second.id


def test_two_blocks_at_one_index_are_two() -> None:
    events = [*texts(ANTHROPIC, "a"), *texts(ANTHROPIC, "b"), *call(ANTHROPIC, "{}", index=0)]
    assert content(ANTHROPIC, *events, *end(ANTHROPIC)) == (Text("a"), Text("b"), ToolUse("t1", "bash", "{}"))


def test_two_finished_items_at_one_place_are_two() -> None:
    items = [{"type": "function_call", "id": i, "call_id": i, "name": "bash", "arguments": "{}"} for i in "ab"]
    events = [{"type": "response.output_item.done", "output_index": 0, "item": item} for item in items]
    assert content(RESPONSES, *events, *end(RESPONSES)) == (ToolUse("a", "bash", "{}"), ToolUse("b", "bash", "{}"))


@PROTOCOLS
def test_a_delta_whose_block_was_not_announced_keeps_its_text(protocol: str) -> None:
    events = [event for event in texts(protocol, "Hel", "lo", index=5) if event.get("type") != "content_block_start"]
    assert content(protocol, *events, *end(protocol)) == (Text("Hello"),)


def test_a_delta_of_another_kind_than_its_block_is_a_block_of_its_own() -> None:
    events = texts(ANTHROPIC, "Hm", kind="reasoning")
    events += [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes"}}]
    given, said = heard(ANTHROPIC, *events, *end(ANTHROPIC))
    assert given.content[1:] == (Text("Yes"),)
    assert said.joined == [(True, "Hm"), (False, "Yes")]


# --- what is the provider's own -----------------------------------------------------------------------------------

OWN: dict[str, Event] = {
    ANTHROPIC: {"caller": {"type": "direct"}, "signature": "c2ln"},
    CHAT: {"extra_content": {"google": {"thought_signature": "c2ln"}}},
    RESPONSES: {"namespace": "shell"},
}


def sent_calls(protocol: str, given: ModelAnswer, name: str = "fake", named: str = "") -> list[Any]:
    """Return the calls of an answer as the next request sends them, to the provider and the model of these names."""
    history = request(user("a"), assistant(*given.content), user("b"))
    body = json.loads(body_of(provider(protocol, "http://127.0.0.1:9", name=name), history, named or NAMES[protocol]))
    match protocol:
        case "anthropic":
            return [block for block in body["messages"][1]["content"] if block["type"] == "tool_use"]
        case "openai-chat":
            return [sent for message in body["messages"] for sent in message.get("tool_calls", ())]
        case _:
            return [item for item in body["input"] if item["type"] == "function_call"]


@PROTOCOLS
def test_the_signature_of_a_call_goes_back_to_its_provider_and_model_only(protocol: str) -> None:
    own = OWN[protocol]
    given, _ = heard(
        protocol, *call(protocol, "{}", **own), *call(protocol, "{}", identity="t2", index=2), *end(protocol)
    )
    first, second = sent_calls(protocol, given)
    assert {field: first.get(field) for field in own} == own
    assert not own.keys() & second.keys()
    for elsewhere in ({"name": "other"}, {"named": {ANTHROPIC: "claude-opus-4-5"}.get(protocol, "gpt-5.1")}):
        assert not own.keys() & sent_calls(protocol, given, **elsewhere)[0].keys()
    other = CHAT if protocol != CHAT else ANTHROPIC
    assert not own.keys() & sent_calls(other, given)[0].keys()


def test_a_signature_may_follow_its_call_without_an_index() -> None:
    """As Gemini sends it."""
    own = OWN[CHAT]
    given, _ = heard(CHAT, *call(CHAT, "{}"), chunk(tool_calls=[own]), *end(CHAT))
    assert given.content == (
        ToolUse("t1", "bash", "{}", own=Reasoning("", CHAT, NAMES[CHAT], json.dumps(own), "fake")),
    )
    body = whole(CHAT, {"tool_calls": [{"id": "t1", "function": {"name": "bash", "arguments": "{}"}, **own}]})
    assert content_of_body(CHAT, body) == given.content


@pytest.mark.parametrize("echo", ["calls", "always", "never"])
def test_the_details_of_reasoning_go_back_joined_to_their_provider_only(echo: str) -> None:
    """As OpenRouter and LiteLLM stream them: a signature is of the whole text."""
    shown = {"type": "reasoning.text", "index": 0, "format": "f"}
    fragments = [
        chunk(reasoning="Hm", reasoning_details=[shown | {"text": "Hm"}]),
        chunk(reasoning=", yes", reasoning_details=[shown | {"text": ", yes"}]),
        chunk(reasoning_details=[shown | {"text": None, "signature": "c2ln"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "b3Bh"}]),
        *(chunk(thinking_blocks=[{"type": "thinking", **each}]) for each in (
            {"thinking": "a"}, {"thinking": "b", "signature": ""}, {"thinking": "", "signature": "1"},
            {"thinking": "c", "signature": "2"},
        )),
    ]  # fmt: skip
    given, said = heard(CHAT, *fragments, *texts(CHAT, "Yes"), *end(CHAT))
    assert said.joined == [(True, "Hm, yes"), (False, "Yes")]
    wanted = {
        "reasoning_details": [
            shown | {"text": "Hm, yes", "signature": "c2ln"},
            {"type": "reasoning.encrypted", "index": 1, "data": "b3Bh"},
        ],
        "thinking_blocks": [
            {"type": "thinking", "thinking": "ab", "signature": "1"},
            {"type": "thinking", "thinking": "c", "signature": "2"},
        ],
    }
    history = request(user("a"), assistant(*given.content), user("b"))
    settings: Event = {"protocol": CHAT, "url": "http://127.0.0.1:9", "echo_reasoning": echo}
    sent = json.loads(body_of(provider(**settings), history, NAMES[CHAT]))["messages"][2]
    assert {field: sent.get(field) for field in wanted} == wanted
    assert sent.get("reasoning") == ("Hm, yes" if echo == "always" else None)
    sent = json.loads(body_of(provider(**settings, name="other"), history, NAMES[CHAT]))["messages"][2]
    assert sent.keys() == {"role", "content"}


@PROTOCOLS
def test_reasoning_of_version_0_2_which_names_no_provider_goes_back(protocol: str) -> None:
    raw = {ANTHROPIC: '{"type":"thinking","thinking":"Hm","signature":"c2ln"}', CHAT: '{"reasoning":"Hm"}'}
    raw[RESPONSES] = '{"type":"reasoning","summary":[],"encrypted_content":"c2ln"}'
    old = Reasoning("Hm", protocol, NAMES[protocol], raw[protocol])
    history = request(user("a"), assistant(old, ToolUse("t1", "bash", "{}")), user("b"))
    body = body_of(provider(protocol, "http://127.0.0.1:9"), history, NAMES[protocol])
    assert raw[protocol].strip("{}").encode() in body


# --- calls that are not written as the tool was offered ----------------------------------------------------------


@PROTOCOLS
@pytest.mark.parametrize("name", ["functions.bash", " bash ", "default_api:bash"])
def test_a_call_with_another_name_and_numbers_as_texts_is_the_call_that_is_meant(protocol: str, name: str) -> None:
    """What is stored, run and sent again is the corrected call."""
    schema = {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}}
    offered = ToolSpec("Runs.", schema, ToolTraits("bash", ToolGroup.BASH))
    given, _ = heard(protocol, *call(protocol, '{"cmd": "5", ', '"n": "5"}', name=name), *end(protocol))
    (use,) = content = checked_calls(given.content, (offered,), ())
    assert isinstance(use, ToolUse)
    assert (use.name, json.loads(use.input), bool(use.corrected)) == ("bash", {"cmd": "5", "n": 5}, True)
    history = request(user("a"), assistant(*content), user(ToolSuccess("t1", "ok")))
    body = body_of(provider(protocol, "http://127.0.0.1:9"), history, NAMES[protocol])
    CHECKS[protocol](body)
    assert b'"bash"' in body
    assert name.encode() not in body


# --- counts -------------------------------------------------------------------------------------------------------

COUNTS = {
    ANTHROPIC: ("input_tokens", "output_tokens"),
    CHAT: ("prompt_tokens", "completion_tokens"),
    RESPONSES: ("input_tokens", "output_tokens"),
}


@PROTOCOLS
@pytest.mark.parametrize("count", [-5, 12.5, "many", True, [], 10**30, 999_999_999, None])
def test_a_count_that_cannot_be_is_noted_and_estimated(
    protocol: str, count: Any, caplog: pytest.LogCaptureFixture
) -> None:
    prompt, output = COUNTS[protocol]
    told = texts(protocol, "x" * 402)
    for usage, wanted in (
        ({prompt: count, output: 7}, Usage(prompt_tokens(request()), 7)),
        ({prompt: 100, output: count}, Usage(100, 101)),
    ):
        caplog.clear()
        found = heard(protocol, *told, *end(protocol, usage))[0].usage
        assert found is not None
        assert (found.input_tokens, found.output_tokens) == (wanted.input_tokens, wanted.output_tokens)
        assert found.cost_micros > 0
        assert ("implausible token count" in caplog.text) is (count is not None)


@PROTOCOLS
@pytest.mark.parametrize("usage", [None, 7, "none", [], {}])
def test_no_counts_are_no_usage(protocol: str, usage: Any) -> None:
    assert heard(protocol, *texts(protocol, "x"), *end(protocol, usage))[0].usage is None


@PROTOCOLS
def test_a_later_count_of_0_does_not_replace_a_count(protocol: str) -> None:
    prompt, output = COUNTS[protocol]
    early: Event = {
        ANTHROPIC: {"type": "message_start", "message": {"usage": {prompt: 100, output: 1}}},
        CHAT: {"choices": [], "usage": {prompt: 100, output: 1}},
        RESPONSES: {"type": "response.completed", "response": {"usage": {prompt: 100, output: 7}}},
    }[protocol]
    later = [] if protocol == RESPONSES else end(protocol, {prompt: 0, output: 7})
    found = heard(protocol, *texts(protocol, "x"), early, *later)[0].usage
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (100, 7)


# --- whatever else --------------------------------------------------------------------------------------------------

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
FIELDS = st.sampled_from("type text content thinking index id name function arguments".split())
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(FIELDS, inner, max_size=3)),
    max_leaves=4,
)


def replaced(value: Any, data: st.DataObject) -> Any:
    """Return a JSON value with anything in place of one value in it."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 3)) == 0:
        return data.draw(ANYTHING)
    keys = sorted(value) if isinstance(value, dict) else range(len(value))
    chosen = data.draw(st.sampled_from(keys))
    copy = value.copy()
    copy[chosen] = replaced(value[chosen], data)
    return copy


@PROTOCOLS
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_server_sends_in_a_field_has_an_outcome(protocol: str, data: st.DataObject) -> None:
    events = data.draw(st.lists(ALPHABETS[protocol], min_size=1, max_size=5))
    events = [replaced(event, data) if isinstance(event, dict) else event for event in events]
    result, _ = outcome(protocol, plain(*map(json.dumps, events), *data.draw(ENDS[protocol])))
    if isinstance(result, ModelAnswer):
        history = request(user("a"), assistant(*result.content), user("b"))
        json.loads(body_of(provider(protocol, "http://127.0.0.1:9"), history, NAMES[protocol]))
    else:
        assert result[0].kind is not ErrorKind.UNKNOWN, result
