"""Settled means: nothing happens any more until a person does something."""

from __future__ import annotations

import pytest

from actors.core.notifications import Durable, Fate, QueueChanged, StateChanged
from actors.core.states import AwaitingLlm, Idle, Ledger, LlmReason, QueuedInput
from actors.core.summary import StateSummary
from actors.ports import StoredEvent
from server.streams.subscribe import SettledTracker
from tests.support.samples import STATES, record

SETTLED = {"idle", "error", "context_exhausted", "completed", "failed", "awaiting_tool_approval"}
FOLLOW_UP = QueuedInput("m-1", "then", (), 1)


def later(*notifications: Durable, first: int = 43) -> list[StoredEvent]:
    return [StoredEvent(first + index, 1, each) for index, each in enumerate(notifications)]


@pytest.mark.parametrize("kind", STATES)
def test_idle_states_are_settled(kind: str) -> None:
    assert bool(SettledTracker(record(STATES[kind]))) is (kind in SETTLED)


@pytest.mark.parametrize("kind", STATES)
def test_a_change_of_state_is_followed(kind: str) -> None:
    before = Idle() if kind not in SETTLED else AwaitingLlm(Ledger(live=True), LlmReason.STEER)
    settled = SettledTracker(record(before))
    assert bool(settled) is (kind not in SETTLED)
    for event in later(StateChanged(StateSummary(kind), ())):
        settled.take(event)
    assert bool(settled) is (kind in SETTLED)


def test_a_follow_up_that_waits_is_not_settled() -> None:
    settled = SettledTracker(record(Idle(Ledger(follows=(FOLLOW_UP,)))))
    assert not settled
    for event in later(QueueChanged(FOLLOW_UP, "follow_up", Fate.WITHDRAWN)):
        settled.take(event)
    assert settled


def test_steers_do_not_count() -> None:
    settled = SettledTracker(record(STATES["idle"]))
    for event in later(QueueChanged(FOLLOW_UP, "steer", Fate.QUEUED)):
        settled.take(event)
    assert settled


def test_events_from_before_the_record_are_old_news() -> None:
    settled = SettledTracker(record(STATES["idle"]))
    for event in later(StateChanged(StateSummary("tool_executing"), ()), first=42):
        settled.take(event)
    assert settled
