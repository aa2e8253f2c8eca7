"""What fails all the time is in the log once a minute."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from actors.ports.machine import OutageLog

LOG = logging.getLogger("test.outages")


class Told:
    """An outage log, its clock, and what it has logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1_000.0
        self._caplog = caplog
        self.outages = OutageLog(LOG, "it works again", monotonic=lambda: self.now)

    @property
    def lines(self) -> list[tuple[Any, ...]]:
        """Level, text, seconds and failures of each line."""
        return [
            (each.levelname, each.getMessage(), *(vars(each).get(key) for key in ("outage_seconds", "failures")))
            for each in self._caplog.records
        ]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.DEBUG, LOG.name)
    return Told(caplog)


def test_an_outage_is_told_at_its_begin_once_a_minute_and_at_its_end(told: Told) -> None:
    for _ in range(125):
        told.outages.failed("no answer")
        told.pass_time(1)
    told.outages.worked()
    assert told.outages.seconds == 125
    told.pass_time(5)
    told.outages.worked()
    assert told.outages.seconds == 0
    assert told.lines == [
        ("WARNING", "no answer", None, None),
        ("ERROR", "no answer", 60.0, 61),
        ("ERROR", "no answer", 120.0, 121),
        ("WARNING", "it works again", 125.0, 125),
    ]


def test_what_fails_now_and_then_is_one_outage(told: Told) -> None:
    for _ in range(30):
        told.outages.failed("no answer")
        told.outages.worked()
        told.pass_time(1)
        told.outages.worked()
    assert len(told.lines) == 1
    told.pass_time(10)
    told.outages.worked()
    assert told.lines[1:] == [("WARNING", "it works again", 29.0, 30)]


def test_an_end_that_nobody_noted_in_time_is_told_before_the_next_begin(told: Told) -> None:
    told.outages.failed("no answer")
    told.outages.worked()
    told.pass_time(100)
    told.outages.failed("again")
    assert [line[1] for line in told.lines] == ["no answer", "it works again", "again"]


def test_what_works_says_nothing(told: Told) -> None:
    told.outages.worked()
    assert told.lines == []
