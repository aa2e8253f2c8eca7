"""Titles: at once from the first message, then a better one; nobody waits for it, and nobody's own is overwritten."""

import threading
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.content import Usage
from actors.core.errors import ErrorKind
from actors.core.notifications import ConversationUpdated
from actors.messages import DeleteConversationCommand, UnknownConversationError, UpdateConversationCommand
from actors.ports import CancelToken, ModelAnswer, ModelRequest, ModelSink, Purpose
from actors.runners import side_queries
from actors.runners.side_queries import TITLE_CHARACTERS, title_of
from tests.integration.actors.conftest import Exchange, ScriptedModel, ShakyStore, World
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import new_store

FIRST = "Please fix the parser.\nIt fails for empty files."
PROVISIONAL = "Please fix the parser"


def title_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bedrock-title"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    until = time.monotonic() + PATIENCE
    for thread in title_threads():
        thread.join(until - time.monotonic())
    assert not title_threads()


@pytest.fixture
def small() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def titling(make_world: Callable[..., World], small: ScriptedModel) -> World:
    return make_world(small=small, titles=True)


def asked(world: World) -> Exchange:
    """The request for a title."""
    exchange: Exchange = world.small.exchanges.get(timeout=PATIENCE)
    assert exchange.request.purpose is Purpose.TITLE
    return exchange


def test_the_first_message_gives_a_title_at_once_and_a_better_one_later(titling: World) -> None:
    talk = titling.create()
    sent = talk.send(FIRST)
    assert talk.record.title == PROVISIONAL
    assert [event.notification for event in talk.events(sent.revision)].count(ConversationUpdated(("title",))) == 1
    request = asked_and_answered(titling, '"Parser of\tempty files."', Usage(40, 5))
    assert FIRST in request.turns[0].content[0].text  # type: ignore[union-attr]
    talk.until(lambda: talk.record.title == "Parser of empty files")
    talk.answer("Done.")
    ledger = talk.record.state.ledger
    assert (ledger.aside_usage, ledger.req) == (Usage(40, 5), 1)
    assert len(talk.found(ConversationUpdated)) == 2
    talk.send("and another thing")
    assert talk.record.title == "Parser of empty files"
    talk.answer("Done.")
    assert titling.small.asked == 1
    assert titling.truth.verify(talk.id) == ()


def asked_and_answered(world: World, answer: str, usage: Usage | None = None) -> ModelRequest:
    exchange = asked(world)
    exchange.say(answer, usage=usage)
    return exchange.request


@pytest.mark.parametrize(
    "thought", ["<think>\nThey want\na title.\n</think>\n\n", "a title … </think>", "<thinking>hm</thinking>"]
)
def test_a_title_has_nothing_of_what_the_model_thought(titling: World, thought: str) -> None:
    talk = titling.create()
    talk.send(FIRST)
    asked_and_answered(titling, f"{thought}**Parser** of empty files")
    talk.until(lambda: talk.record.title == "Parser of empty files")
    talk.answer("Done.")


def test_a_model_that_only_thought_leaves_the_first_line(titling: World) -> None:
    talk = titling.create()
    talk.send(FIRST)
    asked_and_answered(titling, "<think>They want a title, so", Usage(3))
    talk.until(lambda: talk.record.state.ledger.aside_usage == Usage(3))
    talk.answer("Done.")
    assert talk.record.title == PROVISIONAL


@pytest.mark.parametrize("theirs", ["Mine", ""])
def test_a_title_that_a_user_set_meanwhile_stays(titling: World, theirs: str) -> None:
    talk = titling.create()
    talk.send(FIRST)
    exchange = asked(titling)
    talk.ask(UpdateConversationCommand(title=theirs))
    exchange.say("Yours", usage=Usage(3))
    talk.until(lambda: talk.record.state.ledger.aside_usage == Usage(3))
    assert talk.record.title == theirs
    talk.answer("Done.")
    assert talk.record.title == theirs


def test_a_title_from_the_beginning_is_left_alone(titling: World) -> None:
    talk = titling.create(title="Mine")
    talk.send(FIRST)
    talk.answer("Done.")
    assert (talk.record.title, titling.small.asked) == ("Mine", 0)


def test_a_title_that_was_taken_away_is_not_given_again(titling: World) -> None:
    talk = titling.create()
    talk.send(FIRST)
    asked(titling).fail(ErrorKind.SERVER_ERROR)
    talk.answer("Done.")
    talk.ask(UpdateConversationCommand(title=""))
    talk.send("more")
    talk.answer("Done.")
    assert (talk.record.title, titling.small.asked) == ("", 1)


def test_a_failure_leaves_the_first_line_and_is_paid_for(titling: World) -> None:
    talk = titling.create()
    talk.send(FIRST)
    asked(titling).fail(ErrorKind.RATE_LIMIT, usage=Usage(8))
    talk.until(lambda: talk.record.state.ledger.aside_usage == Usage(8))
    talk.answer("Done.")
    assert (talk.record.title, titling.small.asked) == (PROVISIONAL, 1)


@pytest.mark.parametrize("settings", [{"titles": True}, {"titles": False, "small": ScriptedModel()}])
def test_titles_without_a_small_model_and_none_at_all(
    make_world: Callable[..., World], settings: dict[str, Any]
) -> None:
    world = make_world(**settings)
    talk = world.create()
    talk.send(FIRST)
    talk.answer("Done.")
    assert talk.record.title == (PROVISIONAL if settings["titles"] else "")
    assert not title_threads()


def test_a_title_wakes_an_idle_conversation_that_was_stopped(
    make_world: Callable[..., World], small: ScriptedModel
) -> None:
    world = make_world(small=small, titles=True, idle_seconds=0)
    talk = world.create()
    talk.send(FIRST)
    talk.answer("Done.")
    until = time.monotonic() + PATIENCE
    while world.supervisor.live_count():
        assert time.monotonic() < until
        time.sleep(0.001)
    asked(world).say("Parser")
    talk.until(lambda: talk.record.title == "Parser")


def test_a_missing_title_blocks_nothing(titling: World) -> None:
    talk = titling.create()
    talk.send(FIRST)
    exchange = asked(titling)
    talk.answer("Done.")
    actor = titling.supervisor._live[talk.id]
    eventually(lambda: actor.settled, "the request for a title does not keep it busy")
    talk.send("more")
    talk.answer("Done.")
    assert not exchange.cancel.cancelled
    titling.supervisor.stop(PATIENCE)
    assert exchange.cancel.cancelled
    assert talk.record.title == PROVISIONAL


def test_a_deletion_ends_it(titling: World) -> None:
    talk = titling.create()
    talk.send(FIRST)
    exchange = asked(titling)
    exchange.counted = Usage(5)
    talk.ask(DeleteConversationCommand(force=True))
    assert exchange.cancel.wait(PATIENCE)
    for thread in title_threads():
        thread.join(PATIENCE)
    with pytest.raises(UnknownConversationError):
        talk.ask(UpdateConversationCommand(title="gone"))


class Stuck:
    """Never answers, and does not hear that it is cancelled, until the test is over."""

    info = ScriptedModel.info

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        self.asked.set()
        self.over.wait(PATIENCE * 3)
        return ModelAnswer((), end_turn=True)


def test_one_that_hangs_for_ever_blocks_nothing(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_queries, "CLOSE_SECONDS", 0.01)
    stuck = Stuck()
    world = make_world(small=stuck, titles=True)
    talk, other = world.create(), world.create()
    talk.send(FIRST)
    assert stuck.asked.wait(PATIENCE)
    talk.answer("Done.")
    other.send(FIRST)
    other.ask(DeleteConversationCommand(force=True))
    world.supervisor.stop(0)
    assert talk.record.title == PROVISIONAL
    assert title_threads(), "they are still stuck: nobody has waited for them"
    stuck.over.set()


def test_only_so_many_are_asked_for_at_the_same_time(titling: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_queries, "TITLES_AT_ONCE", 1)
    first, second = titling.create(), titling.create()
    first.send(FIRST)
    exchange = asked(titling)
    second.asks("Second").say("Done.")
    exchange.say("Better")
    first.until(lambda: first.record.title == "Better")
    assert (second.record.title, titling.small.asked) == ("Second", 1)


def test_without_a_thread_the_first_line_stays(titling: World, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "bedrock-title":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    talk = titling.create()
    talk.send(FIRST)
    talk.answer("Done.")
    assert talk.record.title == PROVISIONAL
    assert not titling.supervisor._shared.titles._asking


def test_a_store_that_fails_costs_a_title_and_nothing_else(
    make_world: Callable[..., World], small: ScriptedModel
) -> None:
    world = make_world(ShakyStore(new_store()), small=small, titles=True)
    talk = world.create()
    talk.send(FIRST)
    exchange = asked(world)
    talk.answer("Done.")
    world.store.down = True
    exchange.say("Better", usage=Usage(1))
    for thread in title_threads():
        thread.join(PATIENCE)
    assert world.store.refusals.acquire(timeout=PATIENCE)
    world.store.down = False
    talk.send("more")
    talk.answer("Done.")
    assert talk.record.title == PROVISIONAL


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n\n  Fix   it.\nNow!", "Fix it"),
        ("# Heading\nmore", "Heading"),
        ('Say "hello" to `world`', "Say hello to world"),
        ("don't", "don't"),
        ("Wait for it .", "Wait for it"),
        ("„Größe“ prüfen", "Größe prüfen"),
        ("a\x00b\x1b[31mc\u202ed\u2028e", "a b [31mc d"),
        ("**Fix** the `foo` bug", "Fix the foo bug"),
        ("## Heading ##", "Heading"),
        ("---\n- [Docs](http://h/p) of *args*", "Docs of args"),
        ("```python\nx = 1", "x = 1"),
        ("> 1. Pass *args and **kwargs in __init__.py, 2*3*4", "Pass *args and kwargs in __init__.py, 2*3*4"),
        ("Learn C#", "Learn C#"),
        ("", ""),
        (" \n\t\n", ""),
        ("x" * 61, "x" * 59 + "…"),
        ("word " * 20, "word word word word word word word word word word word word…"[:60]),
        ("x" * 60, "x" * 60),
    ],
)
def test_a_title_is_one_short_line(text: str, title: str) -> None:
    assert title_of(text) == title
    assert len(title_of(text)) <= TITLE_CHARACTERS


@given(st.text(st.characters() | st.sampled_from(' \n\t"`“.#…\u2028\u202e'), max_size=200))
def test_any_text_makes_a_title_that_can_be_shown_anywhere(text: str) -> None:
    title = title_of(text)
    assert len(title) <= TITLE_CHARACTERS
    assert title == " ".join(title.split())
    assert not {unicodedata.category(each) for each in title.replace(" ", "")} & {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}
    assert not set(title) & set('"`“”„«»')
