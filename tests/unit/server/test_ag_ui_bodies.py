"""Whatever is wrong in the body of an AG-UI run, it is refused by its name: never an error of the gateway's own."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from typing import Any, cast

import pytest
from bedrock import v1
from hypothesis import given
from hypothesis import strategies as some

from server.gateway.http_api import AG_UI, HttpApi
from server.gateway.routes import Route
from server.gateway.upstream import Upstream

CONVERSATION = v1.Conversation(name="conversations/t")
IMAGE = {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}, "metadata": {"a": 1}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}, "metadata": {"a": 1}}
BODY: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "parentRunId": "p",
    "state": {"bedrock": {"mode": 1}, "own": [1]},
    "context": [{"description": "page", "value": "home"}],
    "forwardedProps": {"a": ["b"]},
    "messages": [
        {"id": "0", "role": "system", "content": "Be kind.", "metadata": {"a": 1}},
        {"id": "t:1.1", "role": "assistant", "content": "I look.", "toolCalls": [CALL]},
        {"id": "2", "role": "tool", "toolCallId": "c", "content": "seen", "error": "not quite"},
        {"id": "3", "role": "user", "content": [{"type": "text", "text": "Hello"}, IMAGE]},
    ],
    "tools": [{
        "name": "look", "description": "Looks.", "parameters": {"type": "object", "enum": ["a"]},
        "metadata": {"bedrock": {"timeout": "1s"}, "other": [1]},
    }],
    "resume": [
        {"interruptId": "conversations/t/approvals/a", "status": "resolved",
         "payload": {"approved": True, "note": "n", "rule": {"command_prefix": "a"}}},
        {"interruptId": "conversations/t/questions/q", "status": "resolved", "payload": {"name": "Ada"}},
    ],
}  # fmt: skip
BODIES = (BODY, {**BODY, "messages": [BODY["messages"][0], BODY["messages"][3]], "resume": []})
"""One that goes on with a run, and one that begins it, which is when the tools are read."""
VALUES = [None, True, 0, 1.5, 10**400, "", "text", "\ud800", [], [None], ["\ud800"], {}, {"a": 1}, {"bedrock": 1}]


class Answering:
    """A server that accepts every request, and whose run has ended."""

    async def unary(self, route: Route, request: Any, _http: object) -> Any:
        type(request).FromString(request.SerializeToString())
        response: Any = route.response()
        if route.name == "GetConversation":
            response.conversation.CopyFrom(CONVERSATION)
        elif route.name == "SendMessage":
            response.run = "conversations/t/requestCycles/1"
        elif route.name == "GetRequestCycle":
            response.request_cycle.stop_reason = v1.STOP_REASON_COMPLETED
        return response

    async def stream(self, _route: Route, _request: Any, _http: object) -> AsyncIterator[v1.SubscribeResponse]:
        snapshot = v1.Event(snapshot=v1.Event.Snapshot(conversation=CONVERSATION))
        yield v1.SubscribeResponse(events=[snapshot, v1.Event(caught_up=v1.Event.CaughtUp())])


def answer_to(body: Any) -> tuple[int, str]:
    sent: list[Any] = []
    arrived = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive() -> Any:
        return next(arrived, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": AG_UI, "raw_path": AG_UI.encode(), "headers": headers}
    asyncio.run(HttpApi(cast("Upstream", Answering()))({**scope, "query_string": b"", "state": {}}, receive, send))
    return sent[0]["status"], b"".join(bytes(each.get("body", b"")) for each in sent[1:]).decode()


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield from places(node[key], (*path, key))


def changed(given: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    body = place = deepcopy(given)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return body


@pytest.mark.parametrize("body", BODIES)
def test_the_body_as_it_is_runs(body: Any) -> None:
    status, text = answer_to(body)
    assert (status, "RUN_FINISHED" in text) == (200, True), text


@given(some.sampled_from([(body, path) for body in BODIES for path in places(body)]), some.sampled_from(VALUES))
def test_a_wrong_value_is_refused_by_its_name_or_of_no_matter(where: tuple[Any, tuple[Any, ...]], value: Any) -> None:
    body, path = where
    status, text = answer_to(changed(body, path, value))
    if status == 200:
        assert "RUN_FINISHED" in text, text
        return
    error = json.loads(text)["error"]
    assert (status, error["status"]) == (400, "INVALID_ARGUMENT"), text
    names = {each for each in path if isinstance(each, str)}
    assert not path or any(name in error["message"] for name in names | {"surrogate", "JSON"}), (path, value, text)


@pytest.mark.parametrize("value", [1, "a", [], True])
def test_the_servers_part_of_a_tools_metadata_is_an_object(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    status, text = answer_to(changed(BODIES[1], ("tools", 0, "metadata", "bedrock"), value))
    assert (status, "tools[0].metadata.bedrock: must be an object" in text) == (400, True), text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
