"""Streamed text goes past the mailbox, in the window that the state machine has opened for its attempt."""

import threading
from typing import Any

import pytest

from actors.conversation import creation
from actors.conversation.pipeline import LoadedConversation
from actors.core.content import Delivery, Text
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import Event, LlmError, LlmResponse, LlmStreamStarted, RetryTimeout, UserCancel, UserMessage
from actors.core.notifications import ConversationUpdated, StreamDiscarded
from actors.messages import CreateConversationCommand, SettingsChanged
from actors.publishing.hub import TextWindow
from actors.runtime.services import Services
from tests.support.patience import PATIENCE


class Conversation:
    """A conversation whose model request has begun, and a watcher of it."""

    def __init__(self, services: Services) -> None:
        self.services = services
        record, commit = creation.new_conversation(services, "c1", CreateConversationCommand("p", "/tmp"), 1)
        services.store.commit(commit)
        self.loaded = LoadedConversation(services, record)
        hub: Any = services.bus
        self.watch = hub.attach("c1", lambda: None)
        self.publish(UserMessage(2, "m1", "hello"))

    def window(self, attempt: int = 1) -> TextWindow:
        return TextWindow(self.services.bus, self.services.clock, "c1", "c1:r1", attempt)

    def publish(self, *events: Event) -> None:
        """Commit and publish, each event by itself. No window hears of it yet."""
        for event in events:
            unit = self.loaded.begin()
            unit.run(event)
            self.loaded.commit(unit)

    def rename(self) -> None:
        """Commit and publish a change that the state machine knows nothing of."""
        unit = self.loaded.begin()
        unit.change(SettingsChanged(4, ("title",)), 4, (ConversationUpdated(("title",)),))
        self.loaded.commit(unit)

    def tell(self, *windows: TextWindow) -> None:
        for window in windows:
            window.published(self.loaded.record, self.loaded.context)

    def shown(self) -> list[tuple[int, str]]:
        """The text that is new to the watcher, with the attempt that it belongs to."""
        text = self.watch.read(self.loaded.record.revision).text
        return [(text.attempt, chunk.text) for chunk in text.chunks] if text else []


@pytest.fixture
def talk(services: Services) -> Conversation:
    return Conversation(services)


STARTED = LlmStreamStarted(3, "c1:r1", 1)
FAILED = LlmError(4, "c1:r1", 1, LlmFailure(ErrorKind.NETWORK, "cut"))
ANSWERED = LlmResponse(5, "c1:r1", 1, (Text("so be it"),), True)
STEER = UserMessage(4, "s", "steer", delivery=Delivery.STEER)


def say(window: TextWindow, text: str, *, reasoning: bool = False) -> None:
    window.put(text, reasoning=reasoning)
    window.pass_on()


def test_text_waits_for_the_commit_of_its_streams_start_and_then_for_nothing(talk: Conversation) -> None:
    window = talk.window()
    say(window, "so ")
    talk.publish(STEER)
    talk.tell(window)
    say(window, "be ")
    talk.publish(STARTED)
    say(window, "hm", reasoning=True)
    assert talk.shown() == []
    talk.tell(window)
    assert talk.shown() == [(1, "so be "), (1, "hm")]
    say(window, "it")
    assert talk.shown() == [(1, "it")]


def test_text_passes_by_the_store_and_the_journal(talk: Conversation) -> None:
    window = talk.window()
    talk.publish(STARTED)
    talk.tell(window)
    step = talk.loaded.record.step
    say(window, "secret")
    assert talk.shown() == [(1, "secret")]
    assert talk.loaded.record.step == step
    assert all(b"secret" not in row.event for row in talk.services.store.transitions("c1", after_step=0, limit=99))


def test_text_between_two_published_states_waits_and_keeps_its_order(talk: Conversation) -> None:
    window = talk.window()
    talk.publish(STARTED)
    talk.tell(window)
    talk.publish(STEER)
    say(window, "so ")
    say(window, "be ")
    assert talk.shown() == []
    talk.tell(window)
    say(window, "it")
    assert talk.shown() == [(1, "so be it")]


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("end", [FAILED, ANSWERED, UserCancel(5)])
def test_the_commit_of_what_ends_the_attempt_ends_its_window(talk: Conversation, end: Event, heard: bool) -> None:
    window = talk.window()
    talk.publish(STARTED)
    talk.tell(window)
    talk.publish(end)
    if heard:
        talk.tell(window)
    say(window, "late")
    assert talk.shown() == []


def test_a_cancel_shuts_the_window_before_its_commit(talk: Conversation) -> None:
    open_, waiting = talk.window(), talk.window()
    say(waiting, "waits")
    talk.publish(STARTED)
    talk.tell(open_)
    open_.shut()
    waiting.shut()
    say(open_, "late")
    talk.tell(open_, waiting)
    assert talk.shown() == []


def test_text_of_a_stale_attempt_is_dropped_while_the_next_one_streams(talk: Conversation) -> None:
    first, second = talk.window(), talk.window(2)
    talk.publish(STARTED)
    talk.tell(first)
    say(first, "half of")
    assert talk.shown() == [(1, "half of")]
    talk.publish(FAILED, RetryTimeout(5, "c1:r1", 2), LlmStreamStarted(6, "c1:r1", 2))
    events = talk.services.store.events("c1", after=0, limit=99)
    assert [each.notification.attempt for each in events if isinstance(each.notification, StreamDiscarded)] == [1]
    say(first, " it")
    say(second, "all of it")
    talk.tell(first, second)
    assert talk.shown() == [(2, "all of it")]


def test_no_text_is_lost_between_two_threads_however_often_the_state_changes(talk: Conversation) -> None:
    window = talk.window()
    parts = [str(number) + "," for number in range(2_000)]
    began = threading.Event()

    def write() -> None:
        for part in parts:
            say(window, part)
            began.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert began.wait(PATIENCE)
    shown = ""
    talk.publish(STARTED)
    for _ in range(200):
        talk.tell(window)
        talk.rename()
        shown += "".join(text for _, text in talk.shown())
    writer.join(PATIENCE)
    talk.tell(window)
    assert shown + "".join(text for _, text in talk.shown()) == "".join(parts)
