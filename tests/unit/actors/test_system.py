"""The real clock and ids."""

from __future__ import annotations

import re
import time

from actors.ports import NoFaultPoints
from actors.runtime.services import RandomIds, SystemClock, has_form_of_id


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
