"""kill -9 of the server at work, and a start over the same data: at rest, complete, nothing left, nothing repeated."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Event, v1

from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Play, calls, says, streams
from tests.support.patience import eventually, within
from tests.support.server_process import Servers, provider
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("the server is killed and restarted")

FOREVER = processes.forever()


class Scene:
    """Conversations of one server, each caught at another moment."""

    def __init__(self, start: Servers, fake_provider: FakeProvider, folder: Path) -> None:
        self._start, self._fake_provider, self._folder = start, fake_provider, folder
        self.opened = ExitStack()
        self.server = start(folder, **provider(fake_provider.url))
        self.client = self.opened.enter_context(self.server.client())
        self.port = self.server.address.rpartition(":")[2]

    def chat(self, *plays: Play, **settings: str) -> Chat:
        return Chat(self.client, self._fake_provider.part(*plays), self._folder, **settings)

    def watch(self, chat: Chat, **request: int) -> Watcher:
        watcher = Watcher(self.server, chat.name, **request)
        self.opened.callback(watcher.close)
        watcher.until("caught_up")
        return watcher

    def crash(self) -> None:
        self.server.kill()

    def start_again(self) -> None:
        """The same data at the same place."""
        self.server = self._start(self._folder, listen=f"127.0.0.1:{self.port}", **provider(self._fake_provider.url))


@pytest.fixture
def scene(start_server: Servers, fake_provider: FakeProvider, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(start_server, fake_provider, tmp_path)
    with made.opened:
        yield made


def test_a_killed_server_comes_back_idle_with_everything_it_acknowledged(
    scene: Scene, fake_provider: FakeProvider
) -> None:
    quiet = scene.chat(says("Hello."))
    assert quiet.ask("Hi.") == "Hello."
    tooling = scene.chat(
        calls(("bash", {"cmd": f"echo up; setsid sleep {FOREVER} & sleep {FOREVER}"}), ("think", {"thoughts": "x"}))
    )
    streaming = scene.chat(streams)
    asking = scene.chat(calls(("bash", {"cmd": "echo asked"})), approval_policy="ask_all")
    chats = [quiet, tooling, streaming, asking]
    watchers = [scene.watch(chat, after_revision=0) for chat in chats]
    tooling.send("Run something long.")
    streaming.send("Talk for ever.")
    asking.send("May you?")
    queued = streaming.send("And afterwards this.", delivery="follow_up")
    streaming.send("Mind that.", delivery="steer")
    watchers[1].until("tool_output_delta")
    eventually(lambda: len(processes.sleepers(FOREVER)) == 2, "the tool's processes run")
    watchers[2].until("text_delta")
    watchers[3].until("approval_changed")
    watchers[2].until(lambda event: event.queue_changed.message.delivery == v1.DELIVERY_STEER)

    scene.crash()
    for watcher in watchers:
        assert watcher.end() == "UNAVAILABLE"
    asked = fake_provider.asked
    eventually(lambda: not processes.running(FOREVER), "the tools of the dead server are gone")
    eventually(lambda: not scene.server.running(), "nothing of the dead server is left")
    scene.start_again()

    for chat, watcher in zip(chats, watchers, strict=True):
        assert chat.state.kind == "idle"
        chat.assert_valid()
        again = scene.watch(chat, after_revision=0)
        assert again.revisions == list(range(1, len(again.revisions) + 1))
        assert _unchanging(again.durable[: len(watcher.durable)]) == _unchanging(watcher.durable)
    assert quiet.said() == [("user", f"Hi. {quiet.part.key}"), ("agent", "Hello.")]
    _assert_interrupted(scene.watch(tooling, after_revision=0))
    results = [block.tool_result for message in tooling.messages()[2:] for block in message.content]
    assert [each.output for each in results] == ["Interrupted by server restart"] * 2
    assert results[0].outcome == v1.TOOL_OUTCOME_CANCELLED
    assert [role for role, _ in streaming.said()] == ["user", "user"], "text of the cut stream was kept"
    assert streaming.messages()[1].name == queued.message.name
    last = scene.watch(streaming, after_revision=0)
    assert [each.fate for each in last.of("queue_changed")][-2:] == [
        v1.QueuedMessage.FATE_RETURNED,
        v1.QueuedMessage.FATE_DISCARDED,
    ]
    assert len(last.of("stream_discarded")) == 1
    decided = [each.decision for each in scene.watch(asking, after_revision=0).of("approval_changed")]
    assert decided == [v1.APPROVAL_DECISION_UNSPECIFIED, v1.APPROVAL_DECISION_WITHDRAWN]

    assert fake_provider.asked == asked, "the start asked the model"
    for chat in chats:
        chat.part.then(says("Back again."))
        assert chat.ask("Still there?") == "Back again."
        chat.assert_valid()
    assert fake_provider.asked == asked + len(chats)


def _assert_interrupted(watcher: Watcher) -> None:
    stops = [(stop.reason, stop.detail) for stop in watcher.of("run_stopped")]
    assert stops == [(v1.STOP_REASON_INTERRUPTED, "restart")]


def _unchanging(events: list[v1.Event]) -> list[v1.Event]:
    """Events without what is told as it is now, not as it was then."""
    return [event for event in events if not event.HasField("conversation_updated")]


def test_accepted_calls_are_remembered_over_a_crash(scene: Scene, fake_provider: FakeProvider) -> None:
    chat = scene.chat(streams)
    identity, born = str(uuid.uuid4()), str(uuid.uuid4())
    created = scene.client.create(scene.server.folder, title="one", request_id=born)
    first = chat.send("Once.", request_id=identity)
    scene.crash()  # at once: what was acknowledged is on disk
    scene.start_again()
    asked = fake_provider.asked
    again = chat.send("Once.", request_id=identity)
    assert again.disposition == "duplicate"
    assert (again.message.name, again.name) == (first.message.name, first.name)
    assert again.wait() is not None
    assert scene.client.create(scene.server.folder, title="one", request_id=born).name == created.name
    assert len(chat.messages()) == 1
    assert fake_provider.asked == asked


def test_a_client_that_iterates_is_carried_over_a_crash(scene: Scene) -> None:
    chat = scene.chat(streams, says("Later."))
    run = chat.send("Talk for ever.")
    seen: list[Event] = []

    def iterate() -> None:
        for event in run:
            seen.append(event)
            if event.kind == "text_delta" and scene.server.process.poll() is None and len(seen) < 50:
                scene.crash()
                scene.start_again()

    within(iterate)
    assert run.stop is not None
    assert (run.stop.reason, run.stop.detail) == ("interrupted", "restart")
    revisions = [event.revision for event in seen if event.revision]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    assert [event.kind for event in seen].count("stream_discarded") == 1
    assert chat.ask("And now?") == "Later."
