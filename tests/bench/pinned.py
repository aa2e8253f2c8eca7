"""The setting `cpus`: the same turns by a server on one CPU and by one on all, in turn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.bench.clients import on_loop
from tests.bench.results import ROUNDS, Turns, middle
from tests.bench.running_server import provider, running_server
from tests.bench.turns import PAUSE, bedrock

if TYPE_CHECKING:
    from tests.bench.figures import Report

LOADS = {"50 conversations": (0.0, 50, 3), "100 streaming": (PAUSE, 100, 1)}
"""By name: seconds between pieces of text, conversations, turns of each."""


def run(report: Report) -> None:
    for name, (pause, conversations, turns) in LOADS.items():
        free: list[Turns] = []
        pinned: list[Turns] = []
        with provider(pause) as url:
            for _ in range(ROUNDS):
                free.append(_taken(url, conversations, turns))
                pinned.append(_taken(url, conversations, turns, str(max(os.sched_getaffinity(0)))))
        report.add(
            f"pinned: {name}",
            "turns/s, ms",
            value=middle([each.per_second for each in pinned], 1),
            free=middle([each.per_second for each in free], 1),
            cpu_ms=middle([each.cpu_ms for each in pinned]),
            free_cpu_ms=middle([each.cpu_ms for each in free]),
            p50=middle([each.p50() for each in pinned], 0),
            free_p50=middle([each.p50() for each in free], 0),
        )


def _taken(url: str, conversations: int, turns: int, cpus: str = "all") -> Turns:
    with running_server(url, BEDROCK_CPUS=cpus) as running:
        on_loop(bedrock(running, 2, 2))
        return on_loop(bedrock(running, conversations, turns))
