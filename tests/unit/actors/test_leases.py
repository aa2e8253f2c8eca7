"""Leases and outages: the clock of a lease, and what the log says while the store is away."""

import fcntl
import logging
import mmap
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from actors.adapters.store.postgres.nodes.heartbeat import NANOSECONDS, LeaseClock
from actors.common.machine import OutageLog
from actors.ports.cluster import Lease
from tests.support.footprint import footprint

# The lease of a node: counted from when a heartbeat was sent, and written by nobody but the server.


HOUR = 3600.0


@pytest.fixture
def clock() -> Iterator[LeaseClock]:
    clock = LeaseClock(HOUR)
    yield clock
    clock.close()


def written(clock: LeaseClock) -> int:
    """The time that tool hosts read."""
    assert clock.fd is not None
    return int.from_bytes(os.pread(clock.fd, 100, 0), sys.byteorder)


def test_it_is_over_until_it_is_renewed_and_counts_from_sending(clock: LeaseClock) -> None:
    assert (clock.valid(), written(clock)) == (False, 0)
    sent = time.monotonic_ns()
    clock.renew(sent)
    assert (clock.valid(), written(clock)) == (True, sent + int(HOUR * NANOSECONDS))


def test_a_heartbeat_whose_answer_took_longer_than_the_lease_gives_nothing(clock: LeaseClock) -> None:
    clock.renew(time.monotonic_ns() - int(HOUR * NANOSECONDS))
    assert not clock.valid()


def test_an_earlier_heartbeat_does_not_shorten_it(clock: LeaseClock) -> None:
    sent = time.monotonic_ns()
    clock.renew(sent)
    clock.renew(sent - 5)
    assert written(clock) == sent + int(HOUR * NANOSECONDS)


def test_it_is_as_old_as_the_last_heartbeat(clock: LeaseClock) -> None:
    assert 0 <= clock.age() < HOUR / 10
    sent = time.monotonic_ns() - int(HOUR / 2 * NANOSECONDS)
    clock.renew(sent)
    clock.renew(sent - int(HOUR * NANOSECONDS))
    assert HOUR / 2 <= clock.age() < HOUR
    assert Lease().age() == 0


def test_nobody_else_can_write_or_resize_its_file_however_it_was_opened(clock: LeaseClock) -> None:
    opened = os.open(f"/proc/self/fd/{clock.fd}", os.O_RDWR)
    try:
        for change in (
            lambda: os.pwrite(opened, b"x" * 8, 0),
            lambda: os.ftruncate(opened, 0),
            lambda: os.ftruncate(opened, 16),
            lambda: mmap.mmap(opened, 8),
            lambda: fcntl.fcntl(opened, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(opened)
    sent = time.monotonic_ns()
    clock.renew(sent)
    assert written(clock) == sent + int(HOUR * NANOSECONDS), "the server itself can"


def test_closing_ends_it_for_those_who_still_have_the_file() -> None:
    before = footprint()
    clock = LeaseClock(HOUR)
    kept = os.dup(clock.fd or -1)
    clock.renew(time.monotonic_ns())
    for _ in range(2):
        clock.close()
    clock.renew(time.monotonic_ns())
    assert os.pread(kept, 8, 0) == bytes(8)
    assert not clock.valid()
    os.close(kept)
    assert footprint().within(before)


def test_a_server_with_a_store_of_its_own_has_none() -> None:
    assert (Lease().fd, Lease().valid()) == (None, True)


# What fails all the time is in the log once a minute.


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
