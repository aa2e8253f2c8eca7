"""A program that cannot be measured, and a part that fails, are reported, and the rest is measured."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import __main__ as bench
from tests.bench import goals, results
from tests.bench.figures import Report
from tests.bench.peers import __main__ as peers
from tests.bench.peers.environments import LANGGRAPH_POSTGRES, PEERS, Peer
from tests.bench.results import Turns
from tests.peers.install import InstallError


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("tests.bench.figures.ROOT", tmp_path)
    return Report("bench")


def test_a_peer_without_its_python_is_named_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("Of tomorrow", "langgraph", oldest=(4, 0), newest=(4, 1))
    with pytest.raises(InstallError, match=r"^needs Python 4\.0 to 4\.1$"):
        peer.install()
    monkeypatch.setattr(peers, "PEERS", (peer,))
    programs, missing = peers._programs()
    assert list(programs) == ["bare threads", "Bedrock"]
    assert missing == {f"Of tomorrow {peer.version}": "needs Python 4.0 to 4.1"}


def test_a_peer_that_fails_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fails(url: str, conversations: int, turns: int) -> Turns:
        asked.append(conversations)
        return results.driven(sys.executable, "tests.bench.no_such_driver", url, conversations, turns)

    missing: dict[str, str] = {}
    assert peers._interleaved({"Of yesterday": fails}, missing, 3, peers.Load(2, 1)) == {"Of yesterday": []}
    assert asked == [2]
    program = Path(sys.executable).name
    assert missing == {"Of yesterday": f"needs mending: {program}: No module named tests.bench.no_such_driver"}


def test_the_versions_of_every_peer_are_exact() -> None:
    for peer in (*PEERS, LANGGRAPH_POSTGRES):
        assert peer.version
        assert all("==" in package for package in peer.packages)


def test_a_part_that_fails_is_a_row_and_keeps_what_it_had(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(into: Report) -> None:
        into.add("start to ready", "s", p50=0.3)
        raise OSError("no more disk")

    monkeypatch.setattr("tests.bench.startup.run", fail)
    assert not bench._measured("startup", report)
    rows: dict[str, dict[str, Any]] = report.by_name
    assert rows["startup: not measured"]["not_run"] == "failed: no more disk"
    assert goals.judged(rows)["start to ready"]["reached"] is True
