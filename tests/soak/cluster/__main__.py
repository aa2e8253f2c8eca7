"""`make cluster`: rounds of work at three nodes and a database that are disturbed, for so many minutes.

Prints a line for each round and writes reports/cluster-soak.json. Ends with 1 if anything was wrong, and keeps the
folders of the rounds in which it was.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from tests.bench.figures import ROOT, machine
from tests.soak.cluster import clocks, networks
from tests.soak.cluster.disturbances import KINDS, ON_SMALL_DISK, possible
from tests.soak.cluster.rounds import ClusterOutcome, Round
from tests.soak.cluster.three_nodes import NAMES, World
from tests.soak.programs import AskProgram, ChatProgram
from tests.soak.python_clients import AsyncioClient, SyncClient
from tests.soak.raw_client import RawClient
from tests.support.postgres import programs_of_distribution

ROUND_SECONDS = 60.0
SMALL_DISK_EVERY = 3
"""In every third round the database has a small disk."""
DISTRIBUTION_EVERY = 2
"""In every second round PostgreSQL is the one that the machine's distribution brings, which is older."""
STATE = ROOT / ".soak" / "cluster"
REPORT = ROOT / "reports" / "cluster-soak.json"
CLIENTS = (SyncClient, AsyncioClient, RawClient, AskProgram, ChatProgram)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("cluster: interrupted"))
    options = _options()
    without = {"networks": networks.hindrance(), "clock": clocks.hindrance(), "small disk": _disk_hindrance()}
    without["other PostgreSQL"] = "" if programs_of_distribution() else "the distribution's is not installed"
    if not (networks.entered() or without["networks"]):
        return networks.again_in_a_network("tests.soak.cluster", sys.argv[1:])
    if networks.entered():
        with networks.Networks(NAMES) as own:
            return _run(options, own, without | {"networks": ""})
    return _run(options, None, without)


def _run(options: argparse.Namespace, own: networks.Networks | None, without: dict[str, str]) -> int:
    outcomes: list[ClusterOutcome] = []
    for what, why in without.items():
        if why:
            print(f"cluster: no {what}: {why}")
    machine_before, order = machine(), Order(options.seed, list(KINDS), frozenset(ON_SMALL_DISK))
    until = time.monotonic() + options.minutes * 60
    while time.monotonic() < until:
        count = len(outcomes) + 1
        folder: Path = options.state / f"{options.seed}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        seconds = min(ROUND_SECONDS, max(1.0, until - time.monotonic()))
        small_disk = count % SMALL_DISK_EVERY == 0 and not without["small disk"]
        programs = None if count % DISTRIBUTION_EVERY else programs_of_distribution()
        world = World(own, clock=not without["clock"], small_disk=small_disk, programs=programs)
        happening = order.during(possible(world), seconds)
        outcome = Round(folder, count, options.seed, CLIENTS, world).run(happening)
        outcomes.append(outcome)
        _show(outcome)
        _write({**machine_before, "without": without, "seed": options.seed}, outcomes)
        if not outcome.wrong:
            shutil.rmtree(folder)
    wrong = sum(len(each.wrong) for each in outcomes)
    print(f"cluster: {len(outcomes)} rounds, {wrong} things wrong")
    if order.left_out:
        print(f"cluster: did not happen: {', '.join(order.left_out)}")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cluster")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--state", type=Path, default=STATE, help="where the rounds have their folders")
    return parser.parse_args()


def _disk_hindrance() -> str:
    return "" if os.getuid() == 0 else "only root can mount one"


class Order:
    """Everything that may happen, in an order that goes on from round to round: all once, then all again."""

    def __init__(self, seed: int, kinds: list[str], rare: frozenset[str] = frozenset()) -> None:
        """`rare`: what few rounds can have, and which comes first in those."""
        self._chance = random.Random(f"{seed}/disturbances")
        self._kinds, self._rare = kinds, rare
        self._waiting: list[str] = []
        self.left_out = list(kinds)
        """What has not happened yet."""

    def during(self, kinds: list[str], seconds: float) -> Iterator[str]:
        """Yield what happens in a round with these kinds, until the time is over; others wait for one that has them."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            yield self._next(kinds)

    def _next(self, kinds: list[str]) -> str:
        if not any(kind in kinds for kind in self._waiting):
            left = [kind for kind in self._kinds if kind not in self._waiting]
            self._waiting += self._chance.sample(left, len(left))
        fitting = [kind for kind in self._waiting if kind in kinds]
        kind = next((kind for kind in fitting if kind in self._rare), fitting[0])
        self._waiting.remove(kind)
        if kind in self.left_out:
            self.left_out.remove(kind)
        return kind


def _show(outcome: ClusterOutcome) -> None:
    print(
        f"round {outcome.number}: {outcome.seconds:.0f} s, {sum(outcome.disturbances.values())} disturbances, "
        f"{sum(outcome.accepted.values())} messages in {outcome.conversations} conversations, {outcome.deleted} "
        f"deleted, {outcome.sub_agents} sub-agents, {outcome.steps} steps replayed, longest pause "
        f"{max(outcome.longest_pause.values(), default=0.0):.1f} s: {len(outcome.wrong)} wrong",
        flush=True,
    )
    for text in outcome.wrong[:20]:
        print(f"  {text}", flush=True)


def _write(about: dict[str, Any], outcomes: list[ClusterOutcome]) -> None:
    """`about`: the machine as it was before, what it could not give, and the seed."""
    counted = ("seconds", "requests", "conversations", "sub_agents", "deleted", "events", "steps")
    report = {
        **about,
        "rounds": len(outcomes),
        **{name: round(sum(getattr(each, name) for each in outcomes), 1) for name in counted},
        "disturbances": _together(outcomes, "disturbances", sum),
        "accepted": _together(outcomes, "accepted", sum),
        "longest_pause_seconds": _together(outcomes, "longest_pause", max),
        "wrong": [text for each in outcomes for text in each.wrong],
        "each": to_builtins(outcomes),
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")


def _together(outcomes: list[ClusterOutcome], name: str, how: Callable[[list[float]], float]) -> dict[str, float]:
    kinds = sorted({kind for each in outcomes for kind in getattr(each, name)})
    return {kind: how([getattr(each, name).get(kind, 0) for each in outcomes]) for kind in kinds}


if __name__ == "__main__":
    sys.exit(main())
