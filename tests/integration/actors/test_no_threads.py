"""A machine that cannot start any more threads: calls are refused as that, and cancels still get through."""

import threading
from typing import Any

import pytest

from actors.common.machine import exhausted_resource
from actors.core.context import Limits
from actors.core.errors import ErrorKind
from actors.core.states import Error, Idle
from actors.messages import CancelConversationCommand, CreateConversationCommand
from tests.support.patience import PATIENCE


@pytest.fixture(autouse=True)
def strangers() -> set[threading.Thread]:
    """Threads that other tests have left; they may end at any time."""
    return set(threading.enumerate())


def _fill(strangers: set[threading.Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no more threads can run than do."""
    limit = len(set(threading.enumerate()) - strangers)
    start = threading.Thread.start

    def start_if_there_is_room(thread: threading.Thread) -> None:
        if len(set(threading.enumerate()) - strangers) >= limit:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_there_is_room)


def test_a_new_conversation_is_refused_as_what_it_is(
    make_world: Any, strangers: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    _fill(strangers, monkeypatch)
    asked = world.supervisor.create(CreateConversationCommand(principal="p", working_directory="/"))
    assert exhausted_resource(asked.exception(PATIENCE)).startswith("this server cannot start any more threads")


def test_a_request_that_gets_no_thread_is_tried_again_and_then_says_why(
    make_world: Any, strangers: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(limits=Limits(retry_base_ms=1))
    talk = world.create()
    _fill(strangers, monkeypatch)
    talk.send("hello")
    state = talk.rest(Error)
    assert state.error_kind is ErrorKind.RESOURCE_EXHAUSTED
    assert "Failed after 3 attempts: This server cannot start any more threads" in state.message
    monkeypatch.undo()
    talk.send("again")
    world.model.exchanges.get(timeout=PATIENCE).say("fine")
    talk.rest(Idle)


def test_what_runs_is_cancelled_without_a_thread(
    make_world: Any, strangers: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    talk = world.create()
    talk.send("hello")
    exchange = world.model.exchanges.get(timeout=PATIENCE)
    _fill(strangers, monkeypatch)
    assert not talk.ask(CancelConversationCommand()).no_op
    talk.rest(Idle)
    assert exchange.cancel.cancelled
