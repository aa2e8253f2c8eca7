"""Actors: mailboxes and their lanes, cancel tokens, timers, and the system that runs them."""

import asyncio
import functools
import logging
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pykka import ActorDeadError, ActorRegistry
from pykka._envelope import Envelope

from actors.ports import CancelToken, NoFaultPoints
from actors.runtime.actor import Actor, ActorFuture, Mailbox, Request, ask, failed, forward, tell
from actors.runtime.services import RandomIds, SystemClock, Timers, has_form_of_id
from tests.support.patience import PATIENCE

# The base actor and its mailbox: every message is handled or refused, and every fault is reported.


class Stop(BaseException):
    """As bad as it gets: pykka would stop every actor of the process."""


class Gate:
    """Holds the actor up, from when `hold` returns until `open`."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def hold(self, ref: Any) -> None:
        assert tell(ref, self)
        assert self.entered.wait(PATIENCE)

    def open(self) -> None:
        self.release.set()


class Parrot(Actor):
    """Answers with the command it gets; waits or fails if that is the command."""

    def __init__(self, heard: list[Any] | None = None, on_fault: BaseException | None = None) -> None:
        super().__init__()
        self.heard = [] if heard is None else heard
        self.on_fault_raises = on_fault

    def receive(self, message: Any) -> Any:
        self.heard.append(message)
        match message.command if isinstance(message, Request) else message:
            case Gate() as gate:
                gate.entered.set()
                assert gate.release.wait(PATIENCE)
            case BaseException() as error:
                raise error
            case answer:
                return answer
        return None

    def on_fault(self, message: Any, error: BaseException) -> BaseException:
        if self.on_fault_raises is not None:
            raise self.on_fault_raises
        return super().on_fault(message, error)


Ref = Any


@pytest.fixture
def parrot() -> Iterator[Ref]:
    ref = Parrot.start()
    yield ref
    tell(ref, pykka.messages._ActorStop())


def test_an_answer_comes_through_pykkas_ask_and_as_a_standard_future(parrot: Ref) -> None:
    assert parrot.ask(Request("hello"), timeout=PATIENCE) == "hello"
    done = threading.Event()
    answer = ask(parrot, Request("hello"))
    answer.add_done_callback(lambda _: done.set())
    assert done.wait(PATIENCE)
    assert answer.result(0) == "hello"


async def test_a_loop_awaits_an_answer_and_its_error(parrot: Ref) -> None:
    assert await asyncio.wrap_future(ask(parrot, Request("hello"))) == "hello"
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(ask(parrot, Request(ZeroDivisionError())))


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), Stop(), SystemExit(1), KeyboardInterrupt()])
def test_an_exception_of_any_kind_is_reported_and_the_actor_goes_on(
    parrot: Ref, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bystander = Parrot.start()
    assert ask(parrot, Request(error)).exception(PATIENCE) is error
    assert tell(parrot, error)
    assert ask(parrot, Request("still here")).result(PATIENCE) == "still here"
    assert ask(bystander, Request("me too")).result(PATIENCE) == "me too"
    assert bystander.stop(timeout=PATIENCE)
    faults = [record for record in caplog.records if record.name == "actors.runtime.actor"]
    assert [record.levelno for record in faults] == [logging.ERROR, logging.ERROR]


def test_a_fault_while_dealing_with_a_fault_ends_the_actor_in_order() -> None:
    ref = Parrot.start(on_fault=Stop())
    gate = Gate()
    gate.hold(ref)
    first, second = ask(ref, Request(ZeroDivisionError("bug"))), ask(ref, Request("waits behind it"))
    gate.open()
    assert isinstance(first.exception(PATIENCE), ZeroDivisionError)
    assert isinstance(second.exception(PATIENCE), ActorDeadError)
    assert ref.actor_stopped.wait(PATIENCE)
    assert not tell(ref, "too late")


def test_a_stop_comes_after_all_accepted_messages_and_refuses_the_rest(parrot: Ref) -> None:
    gate = Gate()
    gate.hold(parrot)
    before = ask(parrot, Request("before"))
    stopped = parrot.stop(block=False)
    assert not tell(parrot, "told too late")
    with pytest.raises(ActorDeadError):
        ask(parrot, Request("asked too late"))
    gate.open()
    assert before.result(PATIENCE) == "before"
    assert stopped.get(timeout=PATIENCE)
    assert parrot.actor_stopped.wait(PATIENCE)
    with pytest.raises(ActorDeadError):
        ask(parrot, Request("later"))
    assert not parrot.stop()


def test_a_cancelled_request_is_dropped_unless_it_must_run() -> None:
    heard: list[Any] = []
    ref, gate = Parrot.start(heard), Gate()
    gate.hold(ref)
    for asked in (Request("dropped"), Request("applied", must_run=True)):
        assert ask(ref, asked).cancel()
    begun = ask(ref, Request(last := Gate()))
    gate.open()
    assert last.entered.wait(PATIENCE)
    assert not begun.cancel(), "the actor has begun"
    last.open()
    assert begun.result(PATIENCE) is None
    assert [asked.command for asked in heard[1:]] == ["applied", last]
    assert ref.stop(timeout=PATIENCE)


def test_an_answer_may_be_a_future_that_is_completed_later(parrot: Ref) -> None:
    later: Future[str] = Future()
    answer = ask(parrot, Request(later))
    assert ask(parrot, Request("next")).result(PATIENCE) == "next"
    assert not answer.done()
    later.set_result("now")
    assert answer.result(PATIENCE) == "now"
    assert isinstance(ask(parrot, Request(failed(KeyError()))).exception(PATIENCE), KeyError)


def test_an_answer_that_was_cancelled_stays_so(caplog: pytest.LogCaptureFixture) -> None:
    answer, target = ActorFuture(), Future[Any]()
    for future in (answer.future, target):
        assert future.cancel()
    assert not answer.future.set_running_or_notify_cancel()  # as the actor does, before a command that must run
    answer.set(1)
    answer.set(failed(ZeroDivisionError()))
    answer.set_exception((ZeroDivisionError, ZeroDivisionError(), None))
    forward(failed(ZeroDivisionError()), target)
    for future in (answer.future, target):
        with pytest.raises(CancelledError):
            future.result(0)
    assert not caplog.records  # concurrent.futures logs what a callback raises


def test_it_is_an_actor_of_pykka_and_leaves_its_registry_when_it_stops() -> None:
    before = set(threading.enumerate())
    ref = Parrot.start()
    threads = set(threading.enumerate()) - before
    assert issubclass(ref.actor_class, pykka.ThreadingActor)
    assert isinstance(ref.actor_inbox, Mailbox)
    assert ref in ActorRegistry.get_all()
    assert ref.stop(timeout=PATIENCE)
    assert ref not in ActorRegistry.get_all()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_one_whose_thread_cannot_be_started_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = ActorRegistry.get_all()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError):
        Parrot.start()
    assert ActorRegistry.get_all() == before


# --- the mailbox ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letter:
    number: int
    urgent: bool = False


def letters(mailbox: Mailbox) -> list[Letter]:
    taken = []
    while not mailbox.empty():
        taken.append(mailbox.get().message)
    return taken


@given(st.lists(st.booleans(), max_size=30))
def test_urgent_messages_come_first_and_each_lane_keeps_its_order(lanes: list[bool]) -> None:
    mailbox = Mailbox()
    sent = [Letter(number, urgent) for number, urgent in enumerate(lanes)]
    for letter in sent:
        mailbox.put(Envelope(letter))
    assert letters(mailbox) == [one for one in sent if one.urgent] + [one for one in sent if not one.urgent]


def test_the_next_message_is_delivered_without_waiting_if_it_is_wanted_and_nothing_urgent_waits() -> None:
    mailbox = Mailbox()
    assert mailbox.get_if(lambda letter: True) is None
    mailbox.put_all([Envelope(Letter(1)), Envelope(Letter(2)), Envelope(Letter(3))])
    wanted = [1, 2].__contains__
    found = mailbox.get_if(lambda letter: wanted(letter.number))
    assert found is not None
    assert found.message == Letter(1)
    mailbox.put(Envelope(Letter(4, urgent=True)))
    assert mailbox.get_if(lambda letter: wanted(letter.number)) is None, "a cancel comes first"
    assert mailbox.get().message == Letter(4, urgent=True)
    assert mailbox.get_if(lambda letter: wanted(letter.number)) is not None
    assert mailbox.get_if(lambda letter: wanted(letter.number)) is None, "not wanted"
    assert letters(mailbox) == [Letter(3)]


def test_a_sleeper_is_woken_by_each_message_however_puts_and_gets_interleave() -> None:
    mailbox, count = Mailbox(), 3_000
    taken: list[int] = []

    def read() -> None:
        while len(taken) < 2 * count:
            taken.append(mailbox.get().message.number)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def send() -> None:
        for number in range(count):
            mailbox.put(Envelope(Letter(number, urgent=number % 7 == 0)))

    senders = [threading.Thread(target=send), threading.Thread(target=send)]
    for sender in senders:
        sender.start()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert sorted(taken) == sorted([*range(count), *range(count)])


def test_a_closed_mailbox_refuses_and_has_only_the_stop_left() -> None:
    mailbox = Mailbox()
    mailbox.put(Envelope(Letter(1)))
    mailbox.put(Envelope(Letter(2, urgent=True)))
    assert [envelope.message for envelope in mailbox.close()] == [Letter(2, urgent=True), Letter(1)]
    for refused in (
        lambda: mailbox.put(Envelope(Letter(3))),
        lambda: mailbox.put(Envelope(Letter(3), reply_to=ActorFuture())),
        lambda: mailbox.put_all([Envelope(Letter(3)), Envelope(Letter(4))]),
    ):
        with pytest.raises(ActorDeadError):
            refused()  # type: ignore[no-untyped-call]
    assert isinstance(mailbox.get().message, pykka.messages._ActorStop)
    assert mailbox.empty()


@pytest.mark.parametrize("closed", [Mailbox.close, Mailbox.close_if_empty])
def test_closing_wakes_a_sleeper_and_stops_it(closed: Any) -> None:
    ref = Parrot.start()
    assert ask(ref, Request("awake")).result(PATIENCE) == "awake"
    closed(ref.actor_inbox)
    assert ref.actor_stopped.wait(PATIENCE)


@pytest.mark.parametrize("urgent", [False, True])
def test_it_closes_only_when_empty_if_asked_so(urgent: bool) -> None:
    mailbox = Mailbox()
    mailbox.put(Envelope(Letter(1, urgent)))
    assert not mailbox.close_if_empty()
    assert not mailbox.closed
    mailbox.get()
    assert mailbox.close_if_empty()
    assert mailbox.closed
    assert not mailbox.close_if_empty()


def test_of_a_put_and_a_close_that_race_the_message_is_either_there_or_refused() -> None:
    for _ in range(300):
        mailbox = Mailbox()
        refused = threading.Event()

        def put(mailbox: Mailbox = mailbox, refused: threading.Event = refused) -> None:
            try:
                mailbox.put(Envelope(Letter(1)))
            except ActorDeadError:
                refused.set()

        sender = threading.Thread(target=put)
        sender.start()
        left = mailbox.close()
        sender.join(PATIENCE)
        assert len(left) + refused.is_set() == 1


# The cancellation token: who waits for it, and what runs when it is cancelled.


def test_a_cancel_wakes_every_thread_that_waits() -> None:
    token, ended = CancelToken(), []
    threads = [threading.Thread(target=lambda: ended.append(token.wait(10 * PATIENCE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    token.cancel()
    token.cancel()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == [True] * 3


@pytest.mark.parametrize("seconds", [0.001, 0.0, -1.0])
def test_a_wait_ends_after_its_time_and_leaves_nothing_to_wake(seconds: float) -> None:
    token = CancelToken()
    assert not token.wait(seconds)
    assert not token.wait(seconds)
    token.cancel()
    assert token.wait(10 * PATIENCE)


def test_a_callback_runs_once_or_not_at_all_if_it_was_forgotten() -> None:
    token, ran = CancelToken(), []
    first, second, late = (lambda: ran.append(1)), (lambda: ran.append(2)), (lambda: ran.append(3))
    token.on_cancel(first)
    token.on_cancel(second)
    assert token.forget(first)
    assert not token.forget(first)
    token.cancel()
    token.cancel()
    token.on_cancel(late)
    assert ran == [2, 3]
    assert not token.forget(second)


# Timers: in order of their time, once, never after the end, and no callback hurts another.


class ManualClock(SystemClock):
    """Stands still until a test moves it. A new timer makes the thread look at it again."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timers(clock: ManualClock) -> Iterator[Timers]:
    made = Timers(clock)
    yield made
    made.close()


class Record:
    """Remembers what ran, and when enough has."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._news = threading.Condition()

    def note(self, name: str) -> None:
        with self._news:
            self.ran.append(name)
            self._news.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.ran) >= count, PATIENCE), self.ran
            return list(self.ran)


def catch_up(timers: Timers) -> None:
    """Return once the thread has run everything that is due."""
    looked = threading.Event()
    timers.after(0, looked.set)
    assert looked.wait(PATIENCE)


def test_callbacks_run_in_the_order_of_their_time_and_only_when_it_has_come(timers: Timers, clock: ManualClock) -> None:
    record = Record()
    timers.after(300, lambda: record.note("third"))
    timers.after(100, lambda: record.note("first"))
    timers.after(200, lambda: record.note("second"))
    catch_up(timers)
    assert record.ran == []
    clock.seconds += 0.2
    catch_up(timers)
    assert record.ran == ["first", "second"]
    clock.seconds += 60
    catch_up(timers)
    catch_up(timers)
    assert record.ran == ["first", "second", "third"]


def test_timers_of_the_same_time_run_in_the_order_they_were_set(timers: Timers, clock: ManualClock) -> None:
    record = Record()
    for number in range(50):
        timers.after(10, functools.partial(record.note, str(number)))
    clock.seconds += 1
    catch_up(timers)
    assert record.wait_for(50) == [str(number) for number in range(50)]


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit()])
def test_a_callback_that_raises_does_not_stop_the_others(
    timers: Timers, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> None:
        raise error

    timers.after(0, explode)
    catch_up(timers)
    assert "a timer callback failed" in caplog.text


def test_a_cancelled_timer_never_fires_and_is_not_kept(timers: Timers, clock: ManualClock) -> None:
    record = Record()
    kept, *dropped = [timers.after(10 + number, functools.partial(record.note, str(number))) for number in range(5)]
    for timer in dropped:
        timers.cancel(timer)
        timers.cancel(timer)
    assert timers._due == [kept]
    clock.seconds += 60
    catch_up(timers)
    timers.cancel(kept)
    assert record.ran == ["0"]


def test_nothing_runs_after_the_end(clock: ManualClock) -> None:
    timers = Timers(clock)
    record = Record()
    timers.after(10, lambda: record.note("pending"))
    timers.close()
    clock.seconds += 60
    timers.after(0, lambda: record.note("late"))
    timers.close()
    assert record.ran == []
    assert timers._due == [], "what can never run is not kept"
    assert timers._thread not in threading.enumerate()


def test_closing_waits_for_the_callback_that_runs(clock: ManualClock) -> None:
    timers = Timers(clock)
    entered, release = threading.Event(), threading.Event()
    record = Record()

    def slow() -> None:
        entered.set()
        assert release.wait(PATIENCE)
        record.note("done")

    timers.after(0, slow)
    assert entered.wait(PATIENCE)
    closer = threading.Thread(target=timers.close)
    closer.start()
    release.set()
    closer.join(PATIENCE)
    assert record.ran == ["done"]


def test_a_callback_may_set_a_timer(timers: Timers) -> None:
    record = Record()
    timers.after(0, lambda: timers.after(0, lambda: record.note("second")))
    assert record.wait_for(1) == ["second"]


def test_real_time_passes_by_itself() -> None:
    timers = Timers(SystemClock())
    rang = threading.Event()
    timers.after(5, rang.set)
    assert rang.wait(PATIENCE)
    timers.close()


# The real clock and ids.


def test_the_clock_tells_milliseconds_since_the_epoch_and_never_goes_back() -> None:
    clock = SystemClock()
    before = time.time() * 1000
    assert before - 1 <= clock.now_ms() <= time.time() * 1000 + 1
    readings = [clock.monotonic() for _ in range(1_000)]
    assert readings == sorted(readings)


def test_ids_are_lower_case_and_never_the_same() -> None:
    ids = RandomIds()
    made = {ids.conversation() for _ in range(2_000)} | {ids.message() for _ in range(2_000)}
    assert len(made) == 4_000
    assert all(re.fullmatch(r"[a-z0-9-]+", one) for one in made)


def test_slugs_are_readable() -> None:
    slugs = {RandomIds().slug() for _ in range(200)}
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-[a-z0-9]{4}", slug) for slug in slugs)
    assert len(slugs) > 190


def test_ids_have_their_form_and_slugs_never_do() -> None:
    ids = RandomIds()
    for _ in range(200):
        one = ids.conversation()
        assert all(map(has_form_of_id, (one, f"{one}-a1", f"{one}-a1-a20")))
        assert not any(map(has_form_of_id, (ids.slug(), one[1:], one + "x", f"{one}-b1")))


def test_production_has_no_faults() -> None:
    NoFaultPoints().hit("commit.before")
