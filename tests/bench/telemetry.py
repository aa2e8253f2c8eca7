"""What metrics and traces cost: the CPU of a turn with Prometheus, and with OTLP, as a ratio to one with both off.

Each of nine rounds starts three servers, which take the same turns, a few at a time, each of them after each other one
as often. Two processes of the same server differ by up to ten per cent, so that one of each would tell nothing. A round
ends when the collector has got everything.
"""

import itertools
import socket
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack

from tests.bench.clients import on_loop
from tests.bench.figures import Report, cpu_seconds
from tests.bench.results import middle
from tests.bench.running_server import provider, running_server
from tests.bench.turns import bedrock
from tests.support.collector import Collector

ROUNDS = 9
CONVERSATIONS, TURNS = 10, 2
"""Of a server's turn among the others."""
OFF, PROMETHEUS, OTLP = "off", "Prometheus", "OTLP"
ORDERS = tuple(itertools.permutations((OFF, PROMETHEUS, OTLP)))
"""Of a round."""
EXPORT_SECONDS = 5.5
"""Within this time spans are sent, by the default of OpenTelemetry."""


def run(report: Report) -> None:
    used: dict[str, list[float]] = {OFF: [], PROMETHEUS: [], OTLP: []}
    with provider() as url, Collector() as collector:
        for _ in range(ROUNDS):
            for kind, seconds in _round(url, collector.url).items():
                used[kind].append(seconds)
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


def _round(url: str, collector: str) -> Mapping[str, float]:
    """Return the CPU seconds of each of three new servers for the same turns."""
    port = _free_port()
    settings = {OFF: {}, PROMETHEUS: {"BEDROCK_METRICS_LISTEN": str(port)}, OTLP: {"BEDROCK_OTLP_ENDPOINT": collector}}
    with ExitStack() as opened:
        servers = {
            kind: opened.enter_context(running_server(url, None, "server", open_files=0, **more))
            for kind, more in settings.items()
        }
        for server in servers.values():
            on_loop(bedrock(server, CONVERSATIONS, 2 * TURNS))
        before = {kind: cpu_seconds(server.process.pid) for kind, server in servers.items()}
        for kind in itertools.chain(*ORDERS):
            on_loop(bedrock(servers[kind], CONVERSATIONS, TURNS))
        _scrape(port)
        time.sleep(EXPORT_SECONDS)
        return {kind: cpu_seconds(server.process.pid) - before[kind] for kind, server in servers.items()}


def _of_turn(seconds: float) -> float:
    return seconds / (len(ORDERS) * CONVERSATIONS * TURNS) * 1000


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert b"bedrock_" in answer.read()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
