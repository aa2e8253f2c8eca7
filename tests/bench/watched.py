"""Watchers of a conversation that works: what a turn costs the server with 1, 10 and 100 of them."""

from __future__ import annotations

from tests.bench.clients import Clients, on_loop
from tests.bench.crowd import crowd
from tests.bench.figures import Report, cpu_seconds, spread
from tests.bench.running_server import RunningServer, provider, running_server

WATCHERS = (1, 10, 100)
TURNS = 20


def run(report: Report) -> None:
    with provider() as url:
        for watchers in WATCHERS:
            with running_server(url) as running:
                on_loop(_turns(running, watchers, report))


async def _turns(running: RunningServer, watchers: int, report: Report) -> None:
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        await watched.watch()
        await watched.turn()
        with crowd(running, watched.name, reading=watchers - 1, connections=min(watchers, 10)):
            cpu = cpu_seconds(running.process.pid)
            took = [await watched.turn() for _ in range(TURNS)]
            cpu = cpu_seconds(running.process.pid) - cpu
        await watched.close()
        name = f"turns: {watchers} watcher{'s' if watchers > 1 else ''} of a conversation"
        report.add(name, "ms", cpu_ms=round(cpu / TURNS * 1000, 2), **spread(took))
