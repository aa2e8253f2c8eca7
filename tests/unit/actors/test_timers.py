"""Timers: in order of their time, once, never after the end, and no callback hurts another."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import pytest

from actors.runtime.services import SystemClock, Timers
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    assert "a timer's callback failed" in caplog.text


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
