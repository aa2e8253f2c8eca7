"""`make bench-peers`: the turns with other programs, interleaved with Bedrock and bare threads, three rounds, medians.

Bodies have a length here: parsing chunks costs the peers' HTTP parser most, and is not what is compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tests.bench import goals
from tests.bench.clients import on_loop
from tests.bench.figures import Report
from tests.bench.peers.environments import PEERS
from tests.bench.results import ROUNDS, Turns, floor, in_turn, middle
from tests.bench.running_server import provider, running_server
from tests.bench.turns import PAUSE, added, bedrock

Program: TypeAlias = Callable[[str, int, int], Turns]
"""Runs turns: the provider's URL, conversations, turns of each."""


@dataclass(frozen=True)
class Load:
    """The work that each program is given."""

    conversations: int
    turns: int
    """Of each."""
    pause: float = 0.0
    """Seconds between pieces of text."""


def main() -> None:
    arguments = argparse.ArgumentParser(prog="make bench-peers")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--conversations", type=int, default=50, help="without a pause between pieces of text")
    arguments.add_argument("--streaming", type=int, default=100, help="conversations at 20 ms a piece")
    given = arguments.parse_args()
    report = Report("peers")
    programs, missing = _programs()
    fast = _interleaved(programs, missing, given.rounds, Load(given.conversations, turns=4))
    paced = _interleaved(programs, missing, given.rounds, Load(given.streaming, turns=1, pause=PAUSE))
    for label in programs:
        if label not in missing:
            _add(report, label, fast, paced[label])
    for label, why in missing.items():
        report.add(f"peers: {label}", "turns/s", not_run=why)
    print(goals.table(goals.judged(report.by_name)))
    print(f"written to {report.write()}")


def _programs() -> tuple[dict[str, Program], dict[str, str]]:
    """Return what can be run, and why the others cannot."""
    programs: dict[str, Program] = {"bare threads": floor, "Bedrock": _bedrock}
    missing: dict[str, str] = {}
    for peer in PEERS:
        if why := peer.why_missing():
            missing[peer.full_name] = why
        else:
            programs[peer.full_name] = peer.run
    return programs, missing


def _bedrock(url: str, conversations: int, turns: int) -> Turns:
    with running_server(url) as running:
        on_loop(bedrock(running, 2, 2))
        return on_loop(bedrock(running, conversations, turns))


def _interleaved(
    programs: Mapping[str, Program], missing: dict[str, str], rounds: int, load: Load
) -> dict[str, list[Turns]]:
    """Give all programs this work, in turn."""
    with provider(load.pause, plain=True) as url:
        runs = {label: partial(run, url, load.conversations, load.turns) for label, run in programs.items()}
        return in_turn(runs, missing, rounds)


def _add(report: Report, label: str, fast: Mapping[str, list[Turns]], paced: list[Turns]) -> None:
    """Add a program's row: medians over the rounds, and its share of what bare threads do."""
    rate, cpu = (
        {name: middle([getattr(run, field) for run in runs], 4) for name, runs in fast.items()}
        for field in ("per_second", "cpu_ms")
    )
    report.add(
        f"peers: {label}",
        "turns/s",
        value=round(rate[label], 1),
        of_threads=round(rate[label] / rate["bare threads"], 2),
        cpu_ms=round(cpu[label], 2),
        cpu_of_threads=round(cpu[label] / cpu["bare threads"], 1),
        rss_mib=middle([run.rss_mib for run in fast[label]], 0),
        added_p50_s=middle([added(run) / 1000 for run in paced]),
        paced_turns=paced[0].turns,
        turns=fast[label][0].turns,
    )


if __name__ == "__main__":
    main()
