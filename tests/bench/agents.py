"""Sub-agents: how long ten equal ones take that work at the same time, and how long one takes alone."""

from __future__ import annotations

from statistics import median

from tests.bench.clients import Clients, on_loop
from tests.bench.figures import Report, spread
from tests.bench.running_server import RunningServer, provider, running_server

TIMES = 8
TEN = 10
PAUSES = (0.02, 0.0)
"""Seconds between pieces of text: as a model writes, and as fast as sockets go."""


def run(report: Report) -> None:
    for pause in PAUSES:
        with provider(pause) as url, running_server(url) as running:
            on_loop(_runs(running, TEN, 1))
            alone, together = on_loop(_runs(running, 1, TIMES)), on_loop(_runs(running, TEN, TIMES))
        longer = round((median(together) / median(alone) - 1) * 100, 1)
        how = f"{pause * 1000:.0f} ms a piece"
        report.add(f"agents: one sub-agent, {how}", "ms", **spread(alone))
        report.add(f"agents: ten at the same time, {how}", "ms", longer_percent=longer, **spread(together))


async def _runs(running: RunningServer, agents: int, times: int) -> list[float]:
    """Milliseconds of runs that start so many sub-agents and wait for them."""
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        await watched.watch()
        took = [await watched.turn(f"spawn {agents}") for _ in range(times)]
        await watched.close()
        return took
