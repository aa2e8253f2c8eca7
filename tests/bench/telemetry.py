"""What metrics and traces cost: the CPU of a turn with Prometheus, and with OTLP, as a ratio to one with both off.

Three servers take the same turns in nine rounds, a few of them at a time: each of the three after each other one as
often, since the first of them was several per cent dearer than the others where all did the same. A round of a server
ends when its next one begins, so that what it sends to the collector afterwards counts, too.
"""

from __future__ import annotations

import itertools
import socket
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.bench.clients import on_loop
from tests.bench.figures import Report, cpu_seconds
from tests.bench.results import middle
from tests.bench.running_server import provider, running_server
from tests.bench.turns import bedrock
from tests.support.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.running_server import RunningServer

ROUNDS = 9
CONVERSATIONS, TURNS = 10, 2
"""Of a server's turn among the others."""
OFF, PROMETHEUS, OTLP = "off", "Prometheus", "OTLP"
ORDERS = tuple(itertools.permutations((OFF, PROMETHEUS, OTLP)))
"""Of a round."""


def run(report: Report) -> None:
    with ExitStack() as opened:
        url, collector = opened.enter_context(provider()), opened.enter_context(Collector())
        port = _free_port()
        settings = {
            OFF: {},
            PROMETHEUS: {"BEDROCK_METRICS_LISTEN": str(port)},
            OTLP: {"BEDROCK_OTLP_ENDPOINT": collector.url},
        }
        servers = {
            kind: opened.enter_context(running_server(url, None, "server", open_files=0, **more))
            for kind, more in settings.items()
        }
        for server in servers.values():
            on_loop(bedrock(server, CONVERSATIONS, 2))
        used = _rounds(servers, port)
        assert collector.spans, "the collector got nothing"
    for kind in (PROMETHEUS, OTLP):
        ratios = [with_it / without for with_it, without in zip(used[kind], used[OFF], strict=True)]
        report.add(
            f"telemetry: a turn's CPU with {kind}",
            "ms",
            value=middle([_of_turn(seconds) for seconds in used[kind]]),
            off=middle([_of_turn(seconds) for seconds in used[OFF]]),
            ratio=middle(ratios, 3),
            least=round(min(ratios), 3),
            most=round(max(ratios), 3),
            n=ROUNDS,
        )


def _rounds(servers: Mapping[str, RunningServer], port: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each round of each server, from its beginning to that of the next."""
    begins: dict[str, list[float]] = {kind: [] for kind in servers}
    for number in range(ROUNDS + 1):
        for kind, server in servers.items():
            begins[kind].append(cpu_seconds(server.process.pid))
        for order in ORDERS if number < ROUNDS else ():
            for kind in order:
                on_loop(bedrock(servers[kind], CONVERSATIONS, TURNS))
        _scrape(port)
    return {kind: [after - before for before, after in itertools.pairwise(each)] for kind, each in begins.items()}


def _of_turn(seconds: float) -> float:
    return seconds / (len(ORDERS) * CONVERSATIONS * TURNS) * 1000


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert b"bedrock_" in answer.read()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
