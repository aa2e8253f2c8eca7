"""Watchers: what each of 5,000 that wait for something costs the server."""

from __future__ import annotations

from tests.bench.clients import Clients, on_loop
from tests.bench.crowd import crowd
from tests.bench.figures import Report, rss_mib
from tests.bench.running_server import RunningServer, running_server

WATCHERS = 5_000
CONNECTIONS = 50


async def _name(running: RunningServer) -> str:
    async with Clients(running) as clients:
        return (await clients.conversation("demo")).name


def run(report: Report) -> None:
    with running_server() as running:
        name = on_loop(_name(running))
        with crowd(running, name, reading=CONNECTIONS):
            before = rss_mib(running.process.pid)
        with crowd(running, name, reading=WATCHERS, connections=CONNECTIONS):
            more = rss_mib(running.process.pid) - before
        report.add(f"watchers: memory of one of {WATCHERS:,}", "KiB", value=round(more * 1024 / WATCHERS, 1))
