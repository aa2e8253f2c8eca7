"""The base actor: a fault ends in a report, and everybody who asked is answered."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from pykka import ActorDeadError, ActorRegistry

from actors.runtime.actor import Actor, AskEnvelope, tell
from actors.runtime.mailbox import Mailbox
from actors.runtime.thread_pool import ThreadPool
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


class Stop(BaseException):
    """As bad as it gets: pykka would stop every actor of the process."""


class Gate:
    """Holds the actor up, from when `hold` returns until `open`."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def hold(self, actor: Actor) -> None:
        assert tell(actor.actor_ref, self)
        assert self.entered.wait(PATIENCE)

    def pass_through(self) -> None:
        self.entered.set()
        assert self.release.wait(PATIENCE)

    def open(self) -> None:
        self.release.set()


class Parrot(Actor):
    """Answers with what it is asked; leaves, waits or fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []
        self.on_fault_raises: BaseException | None = None

    def receive(self, message: Any) -> None:
        self.heard.append(message)
        match message.request if isinstance(message, AskEnvelope) else message:
            case "leave":
                self.terminate()
            case Gate() as gate:
                gate.pass_through()
            case BaseException() as error:
                raise error
            case _:
                if isinstance(message, AskEnvelope):
                    message.succeed(message.request)

    def on_fault(self, message: Any, error: BaseException) -> None:
        super().on_fault(message, error)
        if self.on_fault_raises is not None:
            raise self.on_fault_raises


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    made = ThreadPool()
    yield made
    made.close()


@pytest.fixture
def parrot(threads: ThreadPool) -> Iterator[Parrot]:
    actor = Parrot().launch(threads)
    yield actor
    tell(actor.actor_ref, "leave")


def ask(actor: Parrot, request: Any, **options: Any) -> Future[Any]:
    asked: AskEnvelope[Any] = AskEnvelope(request, **options)
    if not tell(actor.actor_ref, asked):
        asked.fail(ActorDeadError("gone"))
    return asked.answer


def test_it_answers_through_a_future_that_carries_callbacks(parrot: Parrot) -> None:
    done = threading.Event()
    answer = ask(parrot, "hello")
    answer.add_done_callback(lambda _: done.set())
    assert done.wait(PATIENCE)
    assert answer.result(0) == "hello"


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), Stop(), SystemExit(1), KeyboardInterrupt()])
def test_whatever_a_handler_raises_it_is_reported_and_the_actor_lives_on(
    parrot: Parrot, threads: ThreadPool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bystander = Parrot().launch(threads)
    assert ask(parrot, error).exception(PATIENCE) is error
    assert tell(parrot.actor_ref, error)
    assert ask(parrot, "still here").result(PATIENCE) == "still here"
    assert ask(bystander, "me too").result(PATIENCE) == "me too"
    tell(bystander.actor_ref, "leave")
    faults = [record for record in caplog.records if record.name == "actors.runtime.actor"]
    assert [record.levelno for record in faults] == [logging.ERROR, logging.ERROR]


def test_a_fault_while_dealing_with_a_fault_ends_the_actor_in_order(parrot: Parrot) -> None:
    parrot.on_fault_raises = Stop()
    gate = Gate()
    gate.hold(parrot)
    first, second = ask(parrot, ZeroDivisionError("bug")), ask(parrot, "waits behind it")
    gate.open()
    assert isinstance(first.exception(PATIENCE), ZeroDivisionError)
    assert isinstance(second.exception(PATIENCE), ActorDeadError)
    assert parrot.stopped
    assert not tell(parrot.actor_ref, "too late")


def test_stopping_answers_every_waiting_caller(parrot: Parrot) -> None:
    gate = Gate()
    gate.hold(parrot)
    tell(parrot.actor_ref, "leave")
    waiting = [ask(parrot, number) for number in range(3)]
    plain = parrot.actor_ref.ask("pykka's own", block=False)
    gate.open()
    assert all(isinstance(answer.exception(PATIENCE), ActorDeadError) for answer in waiting)
    assert plain.get(timeout=PATIENCE) is None
    assert isinstance(ask(parrot, "later").exception(PATIENCE), ActorDeadError)


def test_leaving_with_a_reason_gives_it_to_those_who_wait(threads: ThreadPool) -> None:
    class Polite(Parrot):
        def terminate(self, refusal: Exception | None = None) -> None:
            super().terminate(refusal or PermissionError("closed for today"))

    actor = Polite().launch(threads)
    gate = Gate()
    gate.hold(actor)
    tell(actor.actor_ref, "leave")
    waiting = ask(actor, "hello?")
    gate.open()
    assert isinstance(waiting.exception(PATIENCE), PermissionError)


def test_pykkas_stop_is_handled_in_its_turn(parrot: Parrot) -> None:
    before = ask(parrot, "before")
    assert parrot.actor_ref.stop(timeout=PATIENCE)
    assert before.result(PATIENCE) == "before"
    assert parrot.stopped


def test_an_urgent_request_overtakes(parrot: Parrot) -> None:
    gate = Gate()
    gate.hold(parrot)
    slow = ask(parrot, "slow")
    urgent = ask(parrot, "urgent", urgent=True)
    gate.open()
    slow.result(PATIENCE)
    urgent.result(PATIENCE)
    assert [asked.request for asked in parrot.heard[1:]] == ["urgent", "slow"]


def test_it_is_in_no_registry_and_has_our_mailbox(parrot: Parrot) -> None:
    assert isinstance(parrot.actor_ref.actor_inbox, Mailbox)
    assert parrot.mailbox is parrot.actor_ref.actor_inbox
    assert parrot.actor_ref not in ActorRegistry.get_all()
    assert isinstance(parrot, pykka.ThreadingActor)


def test_it_has_all_that_pykka_gives_an_actor_but_no_random_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(pykka.ThreadingActor):
        pass

    expected = vars(Plain()).keys()
    monkeypatch.setattr("uuid.uuid4", lambda: pytest.fail("a random name costs a system call"))
    one, other = Parrot(), Parrot()
    assert expected <= vars(one).keys()
    assert one.actor_urn != other.actor_urn
    assert str(one) == f"Parrot ({one.actor_urn})"


def test_only_the_first_answer_counts() -> None:
    asked: AskEnvelope[str] = AskEnvelope("what?")
    asked.succeed(1)
    asked.succeed(2)
    asked.fail(ZeroDivisionError())
    assert asked.answer.result(0) == 1
    asked = AskEnvelope("what?")
    asked.fail(ZeroDivisionError("first"))
    asked.succeed(1)
    assert str(asked.answer.exception(0)) == "first"


def test_answering_a_caller_that_timed_out_does_nothing() -> None:
    asked: AskEnvelope[str] = AskEnvelope("what?")
    assert asked.answer.cancel()
    assert not asked.claim()
    asked.succeed(1)
    asked.fail(ZeroDivisionError())
    assert asked.answer.cancelled()


def test_a_claimed_request_cannot_be_withdrawn() -> None:
    asked: AskEnvelope[str] = AskEnvelope("what?")
    assert asked.claim()
    assert asked.claim()
    assert not asked.answer.cancel()
    asked.succeed(1)
    assert asked.answer.result(0) == 1


def test_a_callback_that_raises_stops_nothing(parrot: Parrot) -> None:
    gate = Gate()
    gate.hold(parrot)
    answer = ask(parrot, "hello")
    answer.add_done_callback(lambda _: 1 / 0)
    gate.open()
    assert answer.result(PATIENCE) == "hello"
    assert ask(parrot, "again").result(PATIENCE) == "again"
