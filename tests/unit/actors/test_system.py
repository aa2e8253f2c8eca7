"""The real clock, ids and workspace."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from actors.ports import NoFaults
from actors.system import LocalWorkspace, RandomIds, SystemClock, has_form_of_id


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
    NoFaults().hit("commit.before")


def test_a_directory_is_given_by_its_real_path(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert LocalWorkspace().check(str(tmp_path / "link")) == os.path.realpath(real)
    assert LocalWorkspace().check(f"{real}/../real/.") == os.path.realpath(real)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "absolute"),
        ("relative/path", "absolute"),
        ("/nowhere/at/all", "no such directory"),
        ("/etc/passwd", "not a directory"),
        ("/tmp\0/x", "NUL"),
        ("/" + "x" * 5_000, "no such directory"),
    ],
)
def test_what_is_no_directory_is_refused_with_a_reason(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LocalWorkspace().check(path)


def test_a_circle_of_links_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="no such directory"):
        LocalWorkspace().check(str(tmp_path / "a"))
