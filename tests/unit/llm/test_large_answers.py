"""Answers that are larger than a message may be: hung up on while they arrive, and never asked for again."""

from typing import Any

import pytest

from actors.adapters.llm.protocols.answer_builder import MAX_BLOCKS, ContentSize
from actors.adapters.llm.transport.sse import MAX_EVENT_BYTES
from actors.core.content import Content, Reasoning, Text, ToolUse
from actors.core.errors import ErrorKind
from actors.ports import MAX_MODEL_RESPONSE_BYTES
from tests.support.model_requests import ask, failure, model
from tests.support.scripted_server import ScriptedServer, ServedConnection, named, plain, stream

BYTES = MAX_MODEL_RESPONSE_BYTES
PIECES = ["x" * (BYTES // 8)] * 9
CHARACTERS = ["€" * (BYTES // 24)] * 9
"""Nine eighths of the limit in bytes, three eighths in characters."""


def _anthropic(block: str, delta: str, field: str, pieces: list[str]) -> list[bytes]:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": block}}
    deltas = ({"type": delta, field: piece} for piece in pieces)
    usage = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}
    return named(usage, start, *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas))


def _chat(*deltas: dict[str, Any]) -> list[bytes]:
    return plain(*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas))


def _call(arguments: str, index: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"call_{index}", "function": {"name": "t", "arguments": arguments}}]}


def _responses(kind: str, pieces: list[str]) -> list[bytes]:
    return named(*({"type": f"response.{kind}.delta", "item_id": "i", "delta": piece} for piece in pieces))


ANSWERS = {
    "anthropic text": ("anthropic", _anthropic("text", "text_delta", "text", PIECES)),
    "anthropic characters": ("anthropic", _anthropic("text", "text_delta", "text", CHARACTERS)),
    "anthropic reasoning": ("anthropic", _anthropic("thinking", "thinking_delta", "thinking", PIECES)),
    "anthropic input": ("anthropic", _anthropic("tool_use", "input_json_delta", "partial_json", PIECES)),
    "chat text": ("openai-chat", _chat(*({"content": piece} for piece in PIECES))),
    "chat reasoning": ("openai-chat", _chat(*({"reasoning": piece} for piece in PIECES))),
    "chat input": ("openai-chat", _chat(*map(_call, PIECES))),
    "chat calls": ("openai-chat", _chat(*(_call("", index) for index in range(MAX_BLOCKS + 1)))),
    "responses text": ("openai-responses", _responses("output_text", PIECES)),
    "responses reasoning": ("openai-responses", _responses("reasoning_text", PIECES)),
    "responses input": ("openai-responses", _responses("function_call_arguments", PIECES)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_hung_up_on_as_soon_as_it_is_too_large(answer: str) -> None:
    protocol, pieces = ANSWERS[answer]
    with ScriptedServer(stream(pieces, then=lambda connection: connection.wait_for_close())) as server:
        failed = failure(model(protocol, server.url))
    limit = "2,048 parts" if answer == "chat calls" else "1 MiB"
    assert (failed.failure.kind, failed.failure.message) == (
        ErrorKind.RESPONSE_TOO_LARGE,
        f"fake: the answer holds more than {limit}, which is the limit for one answer. "
        "Ask for less at once: a long text or file in several parts.",
    )
    assert not failed.failure.retryable
    assert (failed.usage is not None) == (protocol == "anthropic"), "what the provider counted by then is kept"


def test_a_json_body_is_hung_up_on_when_it_is_larger_than_an_event_may_be() -> None:
    def flood(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
        while True:
            connection.send(b"1," * 30_000)

    with ScriptedServer(flood) as server:
        failed = failure(model("anthropic", server.url)).failure
    assert failed.kind is ErrorKind.RESPONSE_TOO_LARGE
    assert f"a body of more than {MAX_EVENT_BYTES} bytes" in failed.message


EXACT = ["x" * (BYTES // 2), "é" * (BYTES // 4)]
"""Exactly the limit, in UTF-8."""

LARGEST = {
    "anthropic text": ("anthropic", ("text", "text_delta", "text")),
    "anthropic reasoning": ("anthropic", ("thinking", "thinking_delta", "thinking")),
    "chat text": ("openai-chat", ("content",)),
    "chat reasoning": ("openai-chat", ("reasoning",)),
    "responses text": ("openai-responses", ("message", "output_text")),
    "responses reasoning": ("openai-responses", ("reasoning", "reasoning_text")),
}


def _complete(protocol: str, how: tuple[str, ...], pieces: list[str]) -> list[bytes]:
    if protocol == "anthropic":
        stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        return _anthropic(how[0], how[1], how[2], pieces) + named(stop, {"type": "message_stop"})
    if protocol == "openai-chat":
        said = [{how[0]: piece} for piece in pieces] + [{"content": ""}]
        return _chat(*said) + plain({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
    part = {"type": "output_text" if how[0] == "message" else "reasoning_text", "text": "".join(pieces)}
    done = {"type": "response.output_item.done", "item": {"type": how[0], "id": "i", "content": [part]}}
    return _responses(how[1], pieces) + named(done, {"type": "response.completed", "response": {}})


@pytest.mark.parametrize("answer", LARGEST)
def test_an_answer_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused(answer: str) -> None:
    protocol, how = LARGEST[answer]
    with ScriptedServer(stream(_complete(protocol, how, EXACT)), stream(_complete(protocol, how, [*EXACT, "x"]))) as up:
        given = ask(model(protocol, up.url))
        failed = failure(model(protocol, up.url))
    told = "".join(block.text for block in given.content if isinstance(block, Text | Reasoning))
    if "reasoning" not in answer:
        assert told == "".join(EXACT)
    assert failed.failure.kind is ErrorKind.RESPONSE_TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [
        (Text("x" * BYTES),),
        (Text("x" * (BYTES - 8)), ToolUse("c1", "bash", '{"a":1}'[:4])),
        (Reasoning("\x01" * BYTES, "p", "m", '{"reasoning":"' + "\\u0001" * BYTES + '"}'),),
        (Reasoning("", "p", "m", "x" * BYTES),),
        (Reasoning("x", "p", "m", "x" * (BYTES + 6)),),
        (Text(""),) * MAX_BLOCKS,
    ],
    ids=["text", "call", "escaped reasoning", "hidden reasoning", "signature", "blocks"],
)
def test_the_size_of_content_is_that_of_its_texts(content: tuple[Content, ...]) -> None:
    more: tuple[Content, ...] = (Text("x"),)
    assert ContentSize.of(content).excess == ""
    assert ContentSize.of(content + more).excess
