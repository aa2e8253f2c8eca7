"""The backlog: nothing is lost while the store fails, and the order is kept."""

from __future__ import annotations

import pytest

from actors.conversation.retry_queue import PAUSES_MS, RetryQueue
from actors.ports import StoreUnavailableError


class Desk:
    """A store that a test opens and closes, and the timers that it owns."""

    def __init__(self) -> None:
        self.open = True
        self.applied: list[str] = []
        self.pauses: list[int] = []
        self.backlog: RetryQueue[str] = RetryQueue("c1", self.apply, self.pauses.append)

    def apply(self, entry: str) -> None:
        if not self.open:
            raise StoreUnavailableError("disk full")
        if entry == "bug":
            raise ZeroDivisionError
        self.applied.append(entry)

    def take(self, entry: str) -> bool:
        self.backlog.add(entry)
        return self.backlog.settle()


def test_while_the_store_works_everything_passes_straight_through() -> None:
    desk = Desk()
    assert desk.take("a")
    assert desk.take("b")
    assert desk.applied == ["a", "b"]
    assert not desk.backlog
    assert desk.pauses == []


def test_what_is_refused_waits_and_keeps_its_order() -> None:
    desk = Desk()
    desk.open = False
    assert not desk.take("a")
    assert not desk.take("b")
    assert list(desk.backlog) == ["a", "b"]
    desk.open = True
    assert desk.take("c")
    assert desk.applied == ["a", "b", "c"]


def test_the_pauses_grow_to_a_bound_and_one_timer_is_set_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.open = False
    desk.take("a")
    desk.take("b")
    assert desk.pauses == [PAUSES_MS[0]]
    for _ in range(len(PAUSES_MS) + 1):
        desk.backlog.retry()
    assert desk.pauses == [*PAUSES_MS, PAUSES_MS[-1], PAUSES_MS[-1]]
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1
    desk.open = True
    desk.backlog.retry()
    assert desk.applied == ["a", "b"]
    desk.open = False
    desk.take("c")
    assert desk.pauses[-1] == PAUSES_MS[0]


def test_what_was_put_off_is_tried_again_once_as_the_first_or_the_last() -> None:
    desk = Desk()
    desk.open = False
    desk.take("a")
    desk.backlog.put_off("cancel", first=True)
    desk.backlog.put_off("doubt")
    desk.backlog.put_off("doubt")
    assert list(desk.backlog) == ["cancel", "a", "doubt"]
    assert len(desk.pauses) == 1
    desk.open = True
    desk.backlog.retry()
    assert desk.applied == ["cancel", "a", "doubt"]


def test_an_entry_that_cannot_be_applied_is_given_up_and_the_others_are_not_forgotten() -> None:
    desk = Desk()
    desk.open = False
    desk.take("bug")
    desk.take("b")
    desk.open = True
    with pytest.raises(ZeroDivisionError):
        desk.backlog.settle()
    assert list(desk.backlog) == ["b"]
    assert desk.pauses
    desk.backlog.retry()
    assert desk.applied == ["b"]
    assert not desk.backlog


def test_what_is_cleared_is_tried_no_more() -> None:
    desk = Desk()
    desk.open = False
    desk.take("a")
    desk.backlog.clear()
    desk.open = True
    desk.backlog.retry()
    assert desk.applied == []
