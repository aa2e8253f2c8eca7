"""SQLite keeps anything in any column: a number that is none, or that no client can be told, is damage."""

from typing import Any

import pytest

from actors.adapters.store import models, rows
from actors.core.content import Delivery
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput
from actors.ports import SettledInput, StoppedRun

WRONG = ("9", b"\x09", 0.5, None, -1, 253_402_300_800_000)

RUN = rows.run_values("c1", StoppedRun(4, 5, RunStop("c1:1", StopReason.COMPLETED), 3))
WAITED = QueuedInput("m1", "later", (), 5)
FATE = rows.fate_values("c1", SettledInput(4, 5, QueueChanged(WAITED, Delivery.STEER, Fate.WITHDRAWN), ""))
LOG = rows.LogRow(
    conversation_id="c1", step=1, epoch=1, at=5, event="{}", context=None, first_revision=1, event_count=0,
    notifications="[]", prev_hash="", hash="",
)  # fmt: skip


def with_value(row: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    return (*row[:place], value, *row[place + 1 :])


@pytest.mark.parametrize(
    "stop",
    [
        RunStop("c1:1", StopReason.COMPLETED, "context_exhausted", output='{"a":1}'),
        RunStop("c1:1", StopReason.INTERRUPTED, "restart"),
        RunStop("c1:1", StopReason.ERROR, "auth", "check the key"),
    ],
)
def test_the_end_of_a_run_is_kept_with_its_text_or_its_output(stop: RunStop) -> None:
    ended = StoppedRun(4, 5, stop, 3)
    assert rows.run_of(rows.run_values("c1", ended)) == ended


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", ["revision", "last_sequence", "at"])
def test_of_the_end_of_a_run(column: str, wrong: object) -> None:
    assert rows.run_of(RUN).last_sequence == 3
    with pytest.raises(ValueError, match="number"):
        rows.run_of(with_value(RUN, models.columns(models.Runs).index(column), wrong))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", ["revision", "at"])
def test_of_the_end_of_a_wait(column: str, wrong: object) -> None:
    assert rows.fate_of(FATE).at == 5
    with pytest.raises(ValueError, match="number"):
        rows.fate_of(with_value(FATE, models.columns(models.Fates).index(column), wrong))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", ["step", "epoch", "at", "first_revision"])
def test_of_the_log(column: str, wrong: Any) -> None:
    assert rows.stored_transition(LOG).step == 1
    with pytest.raises(ValueError, match="number"):
        rows.stored_transition(LOG._replace(**{column: wrong}))


@pytest.mark.parametrize("wrong", WRONG)
def test_of_events(wrong: Any) -> None:
    assert list(rows.events_of([(1, 5, "[]")], 0)) == []
    for row in ((wrong, 5, "[]"), (1, wrong, "[]")):
        with pytest.raises(ValueError, match="number"):
            list(rows.events_of([row], 0))
