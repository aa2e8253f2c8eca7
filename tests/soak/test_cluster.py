"""The soak of a cluster in short: one round in which three things happen (`make cluster` is the long one)."""

from pathlib import Path

from tests.soak.cluster.rounds import Round
from tests.soak.python_clients import AsyncioClient, SyncClient
from tests.soak.raw_client import RawClient

DISTURBANCES = ("late commit", "crash of the database and kill", "partition")


def test_a_cluster_loses_nothing_whatever_dies(tmp_path: Path) -> None:
    outcome = Round(tmp_path, 1, seed=1, kinds=(SyncClient, AsyncioClient, RawClient)).run(DISTURBANCES)
    assert outcome.wrong == []
    assert sum(outcome.disturbances.values()) == len(DISTURBANCES)
    assert sum(outcome.accepted.values()) > 0
