"""Flood: 5,000 deltas a second to 100 watchers, three of whom read nothing; and a cancel in the middle of it."""

import asyncio

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.crowd import crowd
from tests.bench.figures import Report, rss_mib, spread
from tests.bench.running_server import RunningServer, provider, running_server

RATE = 5_000
READING, STUCK = 97, 3
TIMES = 20
SECONDS = 1.0
"""How long each flood lasts before it is cancelled."""


async def floods(watched: Watched) -> list[float]:
    """Milliseconds from each cancel to the idle state seen by a client that only waits for it."""
    await watched.watch()
    took = []
    for _ in range(TIMES):
        await watched.send("go on")
        await watched.streaming.wait()
        await asyncio.sleep(SECONDS)
        took.append(await watched.cancel())
    await watched.close()
    return took


async def flooded(running: RunningServer, report: Report) -> None:
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        with crowd(running, watched.name, reading=READING, stuck=STUCK):
            pid = running.process.pid
            before = rss_mib(pid)
            took = await floods(watched)
            memory = rss_mib(pid, "VmHWM") - before
        report.add("flood: cancel → idle seen, 100 watchers", "ms", **spread(took))
        report.add("flood: memory while three read nothing", "MiB", most=round(memory, 1))


def run(report: Report) -> None:
    with provider(flood=RATE) as url, running_server(url) as running:
        on_loop(flooded(running, report))
