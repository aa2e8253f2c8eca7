"""Flood: 5,000 deltas a second to 100 watchers, three of whom read nothing; and a cancel in the middle of it."""

import asyncio
import time

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.crowd import Crowd, crowd
from tests.bench.figures import Report, cpu_seconds, rss_mib, spread
from tests.bench.provider import FLOOD_TEXT
from tests.bench.running_server import RunningServer, provider, running_server

RATE = 5_000
READING, STUCK = 97, 3
TIMES = 20
SECONDS = 1.0
"""How long each flood lasts before it is cancelled."""


async def floods(watched: Watched) -> tuple[list[float], float]:
    """Milliseconds from each cancel to the idle state seen by a client that only waits for it; seconds of flood."""
    await watched.watch()
    took, seconds = [], 0.0
    for _ in range(TIMES):
        await watched.send("go on")
        await watched.streaming.wait()
        began = time.perf_counter()
        await asyncio.sleep(SECONDS)
        took.append(await watched.cancel())
        seconds += time.perf_counter() - began
    await watched.close()
    return took, seconds


async def flooded(running: RunningServer, report: Report) -> None:
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        with crowd(running, watched.name, reading=READING, stuck=STUCK) as watching:
            pid = running.process.pid
            memory, cpu = rss_mib(pid), cpu_seconds(pid)
            took, seconds = await floods(watched)
            memory, cpu = rss_mib(pid, "VmHWM") - memory, cpu_seconds(pid) - cpu
            await asyncio.to_thread(watching.dismiss)
        report.add("flood: cancel → idle seen, 100 watchers", "ms", **spread(took))
        report.add("flood: memory while three read nothing", "MiB", most=round(memory, 1))
        report.add("flood: text to 97 watchers", "deltas/s", **rates(watching, seconds), cpu=round(cpu / seconds, 2))


def rates(watching: Crowd, seconds: float) -> dict[str, int]:
    """Pieces of text that arrived at each watcher, joined or not, and responses that brought them."""
    pieces = watching.seen.characters / len(FLOOD_TEXT) / READING
    return {"each": round(pieces / seconds), "all": round(pieces * READING / seconds),
            "responses": round(watching.seen.responses / seconds)}  # fmt: skip


def run(report: Report) -> None:
    with provider(flood=RATE) as url, running_server(url) as running:
        on_loop(flooded(running, report))
