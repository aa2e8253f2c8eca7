"""The soak in short: one round of clients of every kind over a server that is killed (`make soak` is the long one)."""

from pathlib import Path

from tests.soak.rounds import Soak

SECONDS = 8.0


def test_a_round_of_work_and_kills_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=1)
    outcome = soak.round(1, SECONDS, (2.0, 3.0))
    assert outcome.wrong == []
    assert outcome.kills >= 2
    assert sum(outcome.accepted.values()) > 0
