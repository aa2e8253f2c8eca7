"""The lease of a node: counted from when a heartbeat was sent, and written by nobody but the server."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from actors.adapters.store.postgres.nodes.heartbeat import NANOSECONDS, LeaseClock
from actors.ports.cluster import Lease
from tests.support.footprint import footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

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
