"""The workload: turns of two streamed answers, 50 pieces and two tools, a gRPC watcher on each conversation.

Bare threads run the same turns in between, three rounds; of each figure the median counts.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import Report, cpu_seconds, rss_mib
from tests.bench.results import ROUNDS, Turns, floor, middle
from tests.bench.running_server import RunningServer, provider, running_server
from tests.support.certificates import make_self_signed

SIZES = ((1, 60), (10, 12), (50, 4), (100, 2), (200, 1), (500, 1))
"""Conversations, and turns of each."""
STREAMING = 100
"""Conversations at 20 ms a piece."""
PAUSE = 0.02
PIECES = 50


async def bedrock(running: RunningServer, conversations: int, turns: int, text: str = "go on") -> Turns:
    """Take the turns in conversations of their own, all at the same time; `text` begins each of them."""
    pid = running.process.pid
    async with Clients(running) as clients:
        watched = [await clients.conversation("claude-sonnet-4-5") for _ in range(conversations)]
        await asyncio.gather(*(one.watch() for one in watched))
        cpu, began = cpu_seconds(pid), time.perf_counter()
        took = await asyncio.gather(*(turns_of(one, turns, text) for one in watched))
        seconds, cpu, memory = time.perf_counter() - began, cpu_seconds(pid) - cpu, rss_mib(pid)
        for one in watched:
            await one.close()
        every = [value for values in took for value in values]
        return Turns(conversations * turns, seconds, cpu, every, memory, sum(one.events for one in watched))


async def turns_of(watched: Watched, turns: int, text: str = "go on") -> list[float]:
    """Take so many turns of a conversation, one after the other; the milliseconds of each."""
    return [await watched.turn(text) for _ in range(turns)]


def run(report: Report) -> None:
    for conversations, turns in SIZES:
        _size(report, conversations, turns)
    _with_processes(report)
    _paced(report)
    with tempfile.TemporaryDirectory() as folder:
        _paced_over_tls(report, make_self_signed(Path(folder)))


def _size(report: Report, conversations: int, turns: int) -> None:
    below, above = [], []
    with provider() as url, running_server(url) as running:
        on_loop(bedrock(running, 2, 2))
        for _ in range(ROUNDS):
            below.append(floor(url, conversations, turns))
            above.append(on_loop(bedrock(running, conversations, turns)))
    name = f"{conversations} conversation{'s' if conversations > 1 else ''}"
    rate, bare = (middle([each.per_second for each in runs], 1) for runs in (above, below))
    p50, p99 = middle([each.p50() for each in above]), middle([each.p99() for each in above])
    report.add(
        f"turns: {name}", "turns/s, ms", value=rate, floor=bare, of_floor=round(rate / bare, 2), p50=p50, p99=p99
    )
    cpu, bare = (middle([each.cpu_ms for each in runs]) for runs in (above, below))
    report.add(
        f"turns: a turn's CPU, {name}",
        "ms",
        value=cpu,
        floor=bare,
        of_floor=round(cpu / bare, 2),
        rss_mib=above[0].rss_mib,
    )


def _with_processes(report: Report) -> None:
    """Turns with two calls of `bash -c :`, which start a process each; `think` only computes."""
    conversations, turns = 50, 4
    with provider() as url, running_server(url) as running:
        on_loop(bedrock(running, 2, 2))
        taken = [on_loop(bedrock(running, conversations, turns, "bash")) for _ in range(ROUNDS)]
    report.add(
        f"turns: {conversations} conversations, bash for think",
        "turns/s, ms",
        value=middle([each.per_second for each in taken], 1),
        cpu_ms=middle([each.cpu_ms for each in taken]),
        p50=middle([each.p50() for each in taken]),
        p99=middle([each.p99() for each in taken]),
    )


def _paced(report: Report) -> None:
    """100 conversations at 20 ms a piece: how much later than ideal a turn ends."""
    below, above = [], []
    with provider(PAUSE) as url, running_server(url) as running:
        for _ in range(ROUNDS):
            below.append(floor(url, STREAMING, 2))
            above.append(on_loop(bedrock(running, STREAMING, 2)))
    report.add(
        f"turns: added latency, {STREAMING} streaming",
        "ms",
        floor_p50=middle([added(each) for each in below], 1),
        p50=middle([added(each) for each in above], 1),
        p99=middle([added(each, each.p99()) for each in above], 1),
        cpu_ms=middle([each.cpu_ms for each in above]),
        n=sum(each.turns for each in above),
    )
    report.add(f"resident memory, {STREAMING} conversations", "MiB", value=above[0].rss_mib)


def _paced_over_tls(report: Report, certificate: Path) -> None:
    """The same over TLS: one read of a connection returns one record, and providers send one for each event."""
    with provider(PAUSE, tls=certificate) as url, running_server(url, SSL_CERT_FILE=str(certificate)) as running:
        above = [on_loop(bedrock(running, STREAMING, 2)) for _ in range(ROUNDS)]
    report.add(
        f"turns: added latency, {STREAMING} streaming over TLS",
        "ms",
        p50=middle([added(each) for each in above], 1),
        p99=middle([added(each, each.p99()) for each in above], 1),
        cpu_ms=middle([each.cpu_ms for each in above]),
        n=sum(each.turns for each in above),
    )


def added(turns: Turns, took: float | None = None) -> float:
    """Return by how many milliseconds turns are later than the provider's pauses make them: half of them by less."""
    return (turns.p50() if took is None else took) - PAUSE * PIECES * 1000
