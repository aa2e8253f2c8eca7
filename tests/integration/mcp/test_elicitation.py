"""What MCP servers ask people in the middle of a call: over stdin and stdout, and over HTTP."""

import asyncio
import json
import queue
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.mcp.elicitation import RefusedQuestionError, TimedCall, form_of, question_of
from actors.adapters.mcp.server_settings import McpServer
from actors.core.effects import ExecuteTool
from actors.core.events import AskQuestion, Event
from actors.core.states import QuestionStatus
from actors.ports import CancelToken, PersonAnswer, PersonQuestion
from actors.ports.tools import decline_question
from actors.runners.tool_runner import MAX_PER_CALL, OpenQuestions
from actors.runtime.services import SystemClock
from tests.integration.mcp.conftest import Hub, server
from tests.integration.mcp.web import TOKEN, WebServer
from tests.support.patience import PATIENCE

ANSWERED = QuestionStatus.ANSWERED


class Person:
    """Gives these answers, in order; keeps what it was asked. One that is None is never given."""

    def __init__(self, *answers: PersonAnswer | None) -> None:
        self._answers = list(answers)
        self.asked: queue.SimpleQueue[tuple[PersonQuestion, Future[PersonAnswer]]] = queue.SimpleQueue()

    def ask(self, question: PersonQuestion) -> Future[PersonAnswer]:
        future: Future[PersonAnswer] = Future()
        if (answer := self._answers.pop(0)) is not None:
            future.set_result(answer)
        self.asked.put((question, future))
        return future


def test_a_form_is_asked_and_its_answer_goes_to_the_server(hub: Callable[..., Hub]) -> None:
    person = Person(PersonAnswer(ANSWERED, '{"branch": "main", "force": true}'))
    answer = hub(server(question_seconds=7.0)).call("ask", ask=person.ask)
    assert json.loads(answer.text) == {"action": "accept", "content": {"branch": "main", "force": True}}
    question, _ = person.asked.get(timeout=PATIENCE)
    assert (question.asker, question.message, question.timeout_ms, question.url) == ("t", "Which branch?", 7_000, "")
    assert json.loads(question.schema)["required"] == ["branch"]


def test_an_address_is_asked_and_never_visited(hub: Callable[..., Hub]) -> None:
    person = Person(PersonAnswer(ANSWERED))
    params = {"mode": "url", "message": "Log in.", "url": "https://example.com/login", "elicitationId": "e1"}
    answer = hub(server()).call("ask", {"params": params}, ask=person.ask)
    assert json.loads(answer.text) == {"action": "accept"}
    question, _ = person.asked.get(timeout=PATIENCE)
    assert (question.url, question.schema) == ("https://example.com/login", "")


@pytest.mark.parametrize(
    ("status", "action"),
    [(QuestionStatus.DECLINED, "decline"), (QuestionStatus.TIMED_OUT, "cancel"), (QuestionStatus.WITHDRAWN, "cancel")],
)
def test_what_is_not_answered_is_declined_or_cancelled(
    hub: Callable[..., Hub], status: QuestionStatus, action: str
) -> None:
    person = Person(PersonAnswer(status))
    assert json.loads(hub(server()).call("ask", ask=person.ask).text) == {"action": action}


def test_where_nobody_can_be_asked_the_server_is_told_so(hub: Callable[..., Hub]) -> None:
    made = hub(server(), server(name="silent", question_seconds=0.0))
    assert json.loads(made.call("ask", ask=decline_question).text) == {"action": "cancel"}
    person = Person()
    assert json.loads(made.call("mcp__silent__ask", ask=person.ask).text).keys() == {"refused"}
    assert person.asked.empty()


def test_a_question_that_the_server_takes_back_is_dropped(hub: Callable[..., Hub], tmp_path: Path) -> None:
    person, path, cancel = Person(None), tmp_path / "asked", CancelToken()
    made = hub(server())
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(lambda: made.call("ask-and-drop", {"path": str(path)}, cancel, ask=person.ask))
        _, future = person.asked.get(timeout=PATIENCE)
        path.touch()
        with pytest.raises(CancelledError):
            future.result(PATIENCE)
        cancel.cancel()
        assert calling.result(PATIENCE).is_error


def test_a_server_that_asks_for_ever_is_refused_in_the_end(hub: Callable[..., Hub]) -> None:
    clock, asked = SystemClock(), queue.SimpleQueue[Event]()
    questions = OpenQuestions(ExecuteTool("t1", 1, "ask-often", "{}"), clock, asked.put)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(lambda: hub(server()).call("ask-often", {"times": MAX_PER_CALL + 3}, ask=questions.ask))
        for number in range(1, MAX_PER_CALL + 1):
            event = asked.get(timeout=PATIENCE)
            assert isinstance(event, AskQuestion)
            assert event.place == number
            questions.settle(number, PersonAnswer(QuestionStatus.DECLINED))
        answers = json.loads(calling.result(PATIENCE).text)
    assert answers == ["decline"] * MAX_PER_CALL + ["refused"] * 3
    assert asked.empty()


def test_over_http_the_official_library_asks(hub: Callable[..., Hub]) -> None:
    with WebServer() as web:
        made = hub(McpServer(name="t", url=web.url, headers={"Authorization": f"Bearer {TOKEN}"}))
        person = Person(PersonAnswer(ANSWERED, '{"name": "Ann"}'))
        assert made.call("greet", ask=person.ask).text == "Hello Ann!"
        question, _ = person.asked.get(timeout=PATIENCE)
        assert (question.message, json.loads(question.schema)["required"]) == ("Who are you?", ["name"])


def test_a_server_of_the_official_library_asks_on_its_own_in_the_protocol_that_has_it(hub: Callable[..., Hub]) -> None:
    command = (sys.executable, str(Path(__file__).with_name("greeter.py")))
    with WebServer() as web:
        over_http: dict[str, Any] = {"url": web.url, "headers": {"Authorization": f"Bearer {TOKEN}"}}
        for way in (over_http, {"command": command, "read_only": True}):
            newest, before = McpServer(name="t", **way), McpServer(name="t", protocol="2025-11-25", **way)
            person = Person(PersonAnswer(ANSWERED, '{"name": "Ann"}'))
            assert hub(before).call("welcome", ask=person.ask).text == "Welcome Ann!"
            assert person.asked.get(timeout=PATIENCE)[0].message == "Who are you?"
            assert "back-channel" in hub(newest).call("welcome", ask=decline_question).text


def test_the_time_of_a_call_stands_still_while_a_person_is_asked() -> None:
    async def check() -> None:
        call = TimedCall(decline_question, 100)
        async with call.limit:
            before = call.limit.when()
            assert before is not None
            with call.paused():
                assert call.limit.when() is None
                with call.paused():
                    pass
                assert call.limit.when() is None, "another question waits still"
            after = call.limit.when()
            assert after is not None
            assert after >= before
            expired = call.paused()
            expired.__enter__()
        expired.__exit__(None, None, None)  # a question that outlives its call

    asyncio.run(check())


FIELDS: dict[str, Any] = {
    "text": {"type": "string", "title": "Text", "minLength": 1, "format": "email"},
    "count": {"type": "integer", "minimum": 1, "maximum": 9},
    "share": {"type": "number"},
    "sure": {"type": "boolean", "default": False},
    "one": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    "other": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
    "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
    "others": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
    "max_tokens": {"type": "integer"},
}


def test_a_form_has_all_that_the_protocol_has_for_it_and_nothing_else() -> None:
    told: dict[str, Any] = {"text": {**FIELDS["text"], "pattern": "(a+)+$", "$ref": "http://x/"}}
    form = json.loads(form_of({"type": "object", "properties": FIELDS | told, "required": ["text"], "$defs": {}}))
    assert form == {
        "type": "object", "properties": FIELDS, "required": ["text"], "additionalProperties": False,
        "propertyOrder": list(FIELDS),
    }  # fmt: skip
    assert json.loads(form_of({"type": "object", "properties": {}}))["properties"] == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}},
        {"type": "object", "properties": {"a": {"type": "string", "oneOf": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"type": "string", "title": {"x": 1}}}},
        {"type": "object", "properties": {"a": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {f"f{number}": {"type": "string"} for number in range(33)}},
        {"type": "object", "properties": {"a": {"type": "string", "description": "x" * (1 << 20)}}},
        {"type": "object", "properties": {"a\x1b[2J": {"type": "string"}}},
        {"type": "object", "properties": {"apiKey": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string", "title": "Your GitHub password"}}},
        {"type": "object", "properties": {"access_token": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string", "format": "password"}}},
        {"type": "object", "properties": {"a": {"type": "string", "writeOnly": True}}},
        {"type": "object", "properties": {"a": {"type": "number", "default": float("nan")}}},
        {"type": "object", "properties": {"a": {"type": "number", "default": float("inf")}}},
        {"type": "object", "properties": {"a": {"type": "integer", "default": 10**400}}},
        {"type": "object", "properties": {"a": {"type": "integer", "maximum": 10**400}}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": [1, {}]}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [["a"]]},
    ],
)
def test_a_form_that_no_person_should_be_asked_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RefusedQuestionError):
        form_of(schema)


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "file:///etc/passwd", "https://me:pw@example.com/", "https://a b/", "https://é/", "https://"
     + "x" * 3_000, "https://example.com/\x1b[2J", "https://evil.test\\.example.com/"],
)  # fmt: skip
def test_an_address_that_no_person_should_visit_is_refused(url: str) -> None:
    from mcp_types import ElicitRequestURLParams

    with pytest.raises(RefusedQuestionError):
        question_of(server(), ElicitRequestURLParams(message="Log in.", url=url))


def test_a_form_of_a_million_choices_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda *_, **__: pytest.fail("it is refused before it is written as JSON"))
    for given in ({"enum": [""] * 10_000}, {"oneOf": [{"const": ""}] * 10_000}):
        with pytest.raises(RefusedQuestionError):
            form_of({"properties": {"a": {"type": "string", **given}}})


def test_a_long_message_is_cut_and_cleaned() -> None:
    from mcp_types import ElicitRequestFormParams

    params = ElicitRequestFormParams(message="\x1b[2Jgo\x00\n" + "x" * 100_000, requested_schema={})
    message = question_of(server(), params).message
    assert message.startswith("\ufffd[2Jgo\ufffd\nx")
    assert len(message) == 4_096
