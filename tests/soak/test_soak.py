"""The soak in short: one round of clients of every kind over a server that is killed (`make soak` is the long one)."""

from __future__ import annotations

from pathlib import Path

from tests.soak.journal import Entry, Journal, read_all
from tests.soak.rounds import Soak

SECONDS = 8.0


def test_a_round_of_work_and_kills_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=1)
    outcome = soak.round(1, SECONDS, (2.0, 3.0))
    assert outcome.wrong == []
    assert outcome.kills >= 2
    assert sum(outcome.accepted.values()) > 0
    lie_about(soak)
    wrong = "\n".join(soak.check_everything().wrong)
    for lie in ("lost: ['m-never']", "deleted, and still there", "watchers were told otherwise at [1]"):
        assert lie in wrong
    assert "tool call 1-7 ran twice" in wrong


def lie_about(soak: Soak) -> None:
    """Journals of things that never happened: the checks must find them."""
    accepted = [entry for _, entries in read_all(soak.journals) for entry in entries if entry["kind"] == "accepted"]
    deleting = {
        entry["conversation"] for _, entries in read_all(soak.journals) for entry in entries if "del" in entry["kind"]
    }
    watched = {
        entry["conversation"] for _, entries in read_all(soak.journals) for entry in entries if entry["kind"] == "told"
    }
    names = sorted({str(entry["conversation"]) for entry in accepted} - deleting - watched)
    lies: list[Entry] = [
        {"kind": "accepted", "conversation": names[0], "token": "t-never", "message": "m-never", "delivery": "direct"},
        {"kind": "deleting", "conversation": names[1]},
        {"kind": "deleted", "conversation": names[1]},
        {"kind": "told", "conversation": names[2], "revision": 1, "what": "something else"},
    ]
    journal = Journal(soak.journals / "lies-1.jsonl")
    for lie in lies:
        journal.write(**lie)
    journal.close()
    with (soak.work / "ledger").open("a") as ledger:
        ledger.write("1-7\n1-7\n")
