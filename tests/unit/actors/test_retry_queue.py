"""The retry queue: nothing is lost while the store fails, and the order is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.conversation.retry_queue import PAUSES_MS, Prepared, RetryQueue
from actors.ports import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ToolHarness:
    """A store that a test opens and closes, and the timers that it owns."""

    def __init__(self) -> None:
        self.open = True
        self.applied: list[str] = []
        self.pauses: list[int] = []
        self.together = 1
        """How many entries share a commit."""
        self.tried: list[tuple[str, ...]] = []
        self.queue: RetryQueue[str] = RetryQueue("c1", self.prepare, self.pauses.append)

    def prepare(self, entries: Sequence[str]) -> Prepared:
        shared = tuple(entries[: self.together])
        if shared[0] == "bug":
            raise ZeroDivisionError if self.open else StoreUnavailableError("disk full")
        return Prepared(len(shared), lambda: self.commit(shared))

    def commit(self, entries: tuple[str, ...]) -> None:
        self.tried.append(entries)
        if not self.open:
            raise StoreUnavailableError("disk full")
        if "late bug" in entries:
            raise ZeroDivisionError
        self.applied += entries

    def take(self, entry: str) -> bool:
        return self.queue.enqueue(entry)


def test_while_the_store_works_everything_passes_straight_through() -> None:
    harness = ToolHarness()
    assert harness.take("a")
    assert harness.take("b")
    assert harness.applied == ["a", "b"]
    assert not harness.queue
    assert harness.pauses == []


def test_what_is_refused_waits_and_keeps_its_order() -> None:
    harness = ToolHarness()
    harness.open = False
    assert not harness.take("a")
    assert not harness.take("b")
    assert list(harness.queue) == ["a", "b"]
    harness.open = True
    assert harness.take("c")
    assert harness.applied == ["a", "b", "c"]


def test_the_pauses_grow_to_a_bound_and_one_timer_is_set_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    harness = ToolHarness()
    harness.open = False
    harness.take("a")
    harness.take("b")
    assert harness.pauses == [PAUSES_MS[0]]
    for _ in range(len(PAUSES_MS) + 1):
        harness.queue.retry()
    assert harness.pauses == [*PAUSES_MS, PAUSES_MS[-1], PAUSES_MS[-1]]
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["a", "b"]
    harness.open = False
    harness.take("c")
    assert harness.pauses[-1] == PAUSES_MS[0]


def test_what_was_put_off_is_tried_again_once_as_the_first_or_the_last() -> None:
    harness = ToolHarness()
    harness.open = False
    harness.take("a")
    harness.queue.requeue("cancel", first=True)
    harness.queue.requeue("doubt")
    harness.queue.requeue("doubt")
    assert list(harness.queue) == ["cancel", "a", "doubt"]
    assert len(harness.pauses) == 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["cancel", "a", "doubt"]


def test_an_entry_that_cannot_be_applied_is_dropped_and_the_others_are_kept() -> None:
    harness = ToolHarness()
    harness.open = False
    harness.take("bug")
    harness.take("b")
    harness.open = True
    with pytest.raises(ZeroDivisionError):
        harness.queue.flush()
    assert list(harness.queue) == ["b"]
    assert harness.pauses
    harness.queue.retry()
    assert harness.applied == ["b"]
    assert not harness.queue


def test_what_is_cleared_is_tried_no_more() -> None:
    harness = ToolHarness()
    harness.open = False
    harness.take("a")
    harness.queue.clear()
    harness.open = True
    harness.queue.retry()
    assert harness.applied == []


def test_entries_that_share_a_commit_are_refused_together_and_committed_again_as_they_were() -> None:
    harness = ToolHarness()
    harness.together = 3
    harness.open = False
    harness.queue.enqueue("a", "b")
    harness.take("c")
    harness.open = True
    harness.take("d")
    assert harness.tried == [("a", "b"), ("a", "b"), ("a", "b"), ("c", "d")]
    assert harness.applied == ["a", "b", "c", "d"]


def test_what_is_put_before_refused_entries_is_committed_before_them() -> None:
    harness = ToolHarness()
    harness.together = 2
    harness.open = False
    harness.queue.enqueue("a", "b")
    harness.queue.requeue("cancel", first=True)
    harness.together = 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["cancel", "a", "b"]


def test_a_commit_that_breaks_takes_its_entries_with_it_and_no_others() -> None:
    harness = ToolHarness()
    harness.together = 2
    with pytest.raises(ZeroDivisionError):
        harness.queue.enqueue("late bug", "b", "c")
    assert list(harness.queue) == ["c"]
    harness.queue.retry()
    assert harness.applied == ["c"]


def test_entries_that_were_refused_together_are_not_joined_by_others_if_some_are_committed_before() -> None:
    harness = ToolHarness()
    harness.open, harness.together = False, 2
    for entry in "ab":
        harness.queue.requeue(entry)
    harness.queue.retry()
    assert harness.tried == [("a", "b")]
    harness.queue.requeue("c")
    harness.open, harness.together = True, 1
    prepare = harness.prepare

    def two_at_most(entries: Sequence[str]) -> Prepared:
        prepared = prepare(entries)
        harness.together = 2
        return prepared

    harness.queue._prepare = two_at_most
    harness.queue.retry()
    assert harness.tried[-3:] == [("a",), ("b",), ("c",)]
