"""AG-UI over HTTP with a whole server: its own types read every event, and a strict reader holds their order."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ag_ui.core import Event
from httpx_sse import connect_sse
from pydantic import TypeAdapter

from tests.e2e.test_http import client_of, refused
from tests.support.fake_provider import FakeProvider, begins, calls, finishes, says, stalls
from tests.support.patience import only
from tests.support.server_process import ServerProcess, Servers, provider
from tests.unit.server.test_ag_ui import Reader

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.one_server("the gateway stands in front of one server")
PATH = "/ag-ui/v1/run"
TOOL = {"name": "find_order", "description": "Finds an order.", "parameters": {"type": "object"}}
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers, folder = Servers(), tmp_path_factory.mktemp("server")
    (folder / "settings.toml").write_text(
        f'[http.new_thread]\nworking_directory = "{folder}"\nmode = "unrestricted"\napproval_policy = "ask_writes"\n'
    )
    settings = str(folder / "settings.toml")
    yield servers(folder, "--http", "127.0.0.1:0", "--config", settings, **provider(fake_provider.url))
    servers.close()


class Thread:
    """A front end: it keeps what it is told, and sends all of it each time."""

    def __init__(self, http: httpx.Client, thread: str = "") -> None:
        self.http, self.id = http, thread or str(uuid.uuid4())
        self.messages: list[dict[str, Any]] = []
        self.reader = Reader()

    def say(self, text: Any, role: str = "user", **more: Any) -> None:
        self.messages.append({"id": str(uuid.uuid4()), "role": role, "content": text, **more})

    def body(self, **more: Any) -> dict[str, Any]:
        return {"threadId": self.id, "runId": str(uuid.uuid4()), "messages": self.messages, **more}

    def run(self, until: str = "", **more: Any) -> list[dict[str, Any]]:
        """Run to the end, or leave after an event of the type `until`; the events."""
        found: list[dict[str, Any]] = []
        self.reader = Reader(self.messages)
        with connect_sse(self.http, "POST", PATH, json=self.body(**more)) as source:
            source.response.read() if source.response.status_code != 200 else None
            assert source.response.status_code == 200, source.response.text
            for event in source.iter_sse():
                found.append(json.loads(event.data))
                assert EVENT.validate_json(event.data).type.value == event.event
                self.reader.read(found[-1])
                if found[-1]["type"] == until:
                    break
        self.messages = self.reader.messages
        return found

    def refusal(self, **more: Any) -> tuple[int, str]:
        answer = self.http.post(PATH, json=self.body() | more)
        return refused(answer)[0], answer.json()["error"]["message"]

    @property
    def called(self) -> list[str]:
        """The ids of all calls."""
        return [call["id"] for message in self.messages for call in message.get("toolCalls", ())]

    def answer(self, decision: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"interruptId": each["id"], **decision} for each in self.reader.interrupts]


@pytest.fixture
def thread(server: ServerProcess) -> Iterator[Thread]:
    with client_of(server) as http:
        yield Thread(http)


def test_a_new_thread_asks_calls_the_page_and_answers(thread: Thread, fake_provider: FakeProvider) -> None:
    nasty = "Done.\r\n\ndata: {}\n\n\u2028\x85\x00"
    two = calls(("find_order", {"id": 1}), ("find_order", {"id": 2}))
    part = fake_provider.part(calls(("bash", {"command": "echo hi"}), text="Let me see. "), two, says(nasty))
    thread.say(part.key)
    thread.run(tools=[TOOL | {"metadata": {"bedrock": {"readOnly": True}}}])
    assert [each["toolCallId"] for each in thread.reader.interrupts] == thread.called
    thread.run(resume=thread.answer({"status": "resolved", "payload": {"approved": True}}))
    assert "hi" in only([each["content"] for each in thread.messages if each["role"] == "tool"])
    for number in (1, 2):
        call = thread.called[number]
        assert thread.reader.outcome == {"type": "success", "pendingToolCallIds": [call]}
        thread.say("Shipped.", "tool", toolCallId=call)
        thread.run()
    assert thread.reader.outcome == {"type": "success"}
    assert thread.messages[-1]["content"] == nasty
    assert thread.reader.state["bedrock"]["mode"] == "MODE_UNRESTRICTED"
    assert [each["role"] for each in thread.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    again = Thread(thread.http, thread.id)
    again.run(state={"theirs": 1})
    assert again.messages == thread.messages
    assert again.reader.state["theirs"] == 1


def test_a_denial_is_told_and_a_message_can_come_with_it(thread: Thread, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(calls(("bash", {"command": "rm x"})), says("Then not."))
    thread.say(part.key)
    thread.run()
    thread.say("Rather not.")
    thread.run(resume=thread.answer({"status": "cancelled"}))
    assert "Denied" in only([each["content"] for each in thread.messages if each["role"] == "tool"])
    texts = [each["content"] for each in thread.messages if each["role"] != "tool" and each.get("content")]
    assert texts == [part.key, "Rather not.", "Then not."]


def test_a_run_that_was_left_goes_on_and_is_found_again(thread: Thread, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(begins("Hello, ", finishes("world.")))
    thread.say(part.key)
    before = list(thread.messages)
    thread.run(until="TEXT_MESSAGE_CONTENT")
    exchange = part.next_reached()
    assert thread.refusal(messages=[*before, {"id": "2", "role": "user", "content": "And?"}])[0] == 400
    thread.messages = before  # as if the connection had broken before anything had come back
    exchange.go.set()
    found = thread.run()
    assert [each["content"] for each in thread.messages] == [part.key, "Hello, world."]
    assert found[-1]["outcome"] == {"type": "success"}
    thread.messages = before
    thread.run()
    assert [each["content"] for each in thread.messages] == [part.key, "Hello, world."]
    assert len(part.exchanges) == 1


def test_a_cancel_is_an_outcome_and_takes_the_void_text_away(thread: Thread, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(stalls)
    thread.say(part.key)
    with connect_sse(thread.http, "POST", PATH, json=thread.body()) as source:
        for event in source.iter_sse():
            thread.reader.read(json.loads(event.data))
            if event.event == "TEXT_MESSAGE_CONTENT":
                assert thread.http.post(f"/v1/conversations/{thread.id}:cancel", json={}).status_code == 200
    assert thread.reader.outcome == {"type": "cancelled"}
    assert [each["role"] for each in thread.reader.messages] == ["user"]


def test_errors_end_the_run_as_errors(start_server: Servers, fake_provider: FakeProvider, tmp_path: Path) -> None:
    server = start_server(tmp_path, "--http", "127.0.0.1:0", **provider(fake_provider.url))
    with client_of(server) as http:
        folder = {"workingDirectory": str(tmp_path), "slug": "mine"}
        assert http.post("/v1/conversations", json=folder).status_code == 200
        part = fake_provider.part(stalls)
        thread = Thread(http, "mine")
        assert "new_thread" in Thread(http, "other").refusal()[1]
        thread.say(part.key)
        with connect_sse(http, "POST", PATH, json=thread.body()) as source, closing(source.response):
            for event in source.iter_sse():
                thread.reader.read(json.loads(event.data))
                if event.event == "TEXT_MESSAGE_CONTENT":
                    server.process.send_signal(signal.SIGTERM)
        assert thread.reader.error
    server.stop()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"threadId": 1}, "threadId: must be a valid string"),
        ({"threadId": "a/b"}, "threadId: must be the id or the slug"),
        ({"threadId": "No Slug"}, "threadId: must be the id or the slug"),
        ({"threadId": "UPPER"}, "threadId: must be lower-case"),
        ({"messages": None}, "messages: must be a valid list"),
        ({"messages": [{"id": "1", "role": "king", "content": ""}]}, "messages[0]: "),
        ({"messages": [{"id": "1", "role": "user", "content": 1}]}, "messages[0].content: must be"),
        ({"messages": [{"id": "1", "role": "user"}]}, "messages[0].content: is required"),
        ({"messages": [{"id": "1", "role": "user", "content": "a"}] * 2}, "messages[1].id: must not be given twice"),
        ({"messages": [{"id": "", "role": "user", "content": "a"}]}, "messages[0].id: must have 1 to 256"),
        ({"messages": [{"id": "1", "role": "user", "content": " "}]}, "messages[0]"),
        ({"messages": [{"id": "1", "role": "assistant", "content": "I?"}]}, "messages[0]: the agent never wrote"),
        ({"messages": [{"id": "1", "role": "user", "content": [{"type": "image", "source": {
            "type": "data", "value": "!", "mimeType": "image/png"}}]}]}, "messages[0].content[0].source.value: "),
        ({"resume": [{"interruptId": "x", "status": "resolved"}]}, "resume[0].interruptId: must be"),
        ({"resume": [{"interruptId": "x", "status": "perhaps"}]}, "resume[0].status: must be"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: must not be given twice"),
        ({"tools": [TOOL | {"name": "a b"}], "messages": [{"id": "1", "role": "user", "content": "a"}]},
         "tools[0].name: must be"),
        ({"tools": [TOOL | {"parameters": 1}], "messages": [{"id": "1", "role": "user", "content": "a"}]}, "tools"),
    ],
)  # fmt: skip
def test_what_is_no_input_is_refused_by_its_name(thread: Thread, wrong: dict[str, Any], told: str) -> None:
    status, text = thread.refusal(**wrong)
    assert (status, told in text) == (400, True), text


def test_answers_to_what_is_not_asked(thread: Thread, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(calls(("bash", {"command": "echo"})), says("Yes."))
    thread.say(part.key)
    thread.run()
    answer = thread.answer({"status": "resolved", "payload": {"approved": True}})
    assert "resume[0].payload" in thread.refusal(resume=thread.answer({"status": "resolved", "payload": "yes"}))[1]
    assert "resume[0].payload.nota" in thread.refusal(
        resume=thread.answer({"status": "resolved", "payload": {"approved": True, "nota": "x"}})
    )[1]  # fmt: skip
    thread.run(resume=answer)
    status, text = thread.refusal(messages=[{"id": "1", "role": "tool", "content": "", "toolCallId": "x"}])
    assert (status, text.partition(":")[0]) == (409, "messages[0].toolCallId")
    found = thread.run(resume=answer, later=1)
    warnings = [each["value"] for each in found if each["type"] == "CUSTOM"]
    assert [warnings[0], warnings[1].startswith("resume[0]: ")] == ["later: unknown", True]


def test_tools_that_the_mode_does_not_offer_are_refused(
    start_server: Servers, fake_provider: FakeProvider, thread: Thread, tmp_path: Path
) -> None:
    made = thread.http.post(
        "/v1/conversations", json={"workingDirectory": str(tmp_path), "slug": "narrow", "mode": "MODE_RESTRICTED"}
    )
    if made.status_code != 200:
        pytest.skip("this machine has no restricted mode")
    narrow = Thread(thread.http, "narrow")
    narrow.say(fake_provider.part(says("Hello.")).key)
    status, text = narrow.refusal(tools=[TOOL])
    assert (status, "find_order" in text, text.startswith("tools")) == (400, True, True), text
    narrow.run(tools=[TOOL | {"metadata": {"bedrock": {"readOnly": True}}}])
    assert narrow.reader.outcome == {"type": "success"}


def test_the_route_is_guarded_like_every_other(thread: Thread) -> None:
    assert thread.http.get(PATH).status_code == 405
    assert thread.http.post(PATH, json=thread.body(), headers={"Host": "attacker.example"}).status_code == 403
    assert thread.http.post(PATH, content="{}", headers={"Content-Type": "text/plain"}).status_code == 415
    del thread.http.headers["Authorization"]
    assert thread.refusal()[0] == 401
