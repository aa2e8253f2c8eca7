"""The workload: turns of two streamed answers, 50 pieces and two tools, a gRPC watcher on each conversation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import ROOT, Report, cpu_seconds, rss_mib, spread
from tests.bench.running_server import RunningServer, provider, running_server

SIZES = ((1, 60), (10, 12), (50, 4), (100, 2))
"""Conversations, and turns of each."""


def floor(url: str, conversations: int, turns: int) -> dict[str, float]:
    """The same turns with bare threads and requests, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.floor", "--url", f"{url}/v1/messages"]
    command += ["--conversations", str(conversations), "--turns", str(turns)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(run.stdout)
    return result


async def bedrock(running: RunningServer, conversations: int, turns: int) -> tuple[float, list[float], int]:
    """Seconds for all, milliseconds of each turn, events read."""
    async with Clients(running) as clients:
        watched = [await clients.conversation("claude-sonnet-4-5") for _ in range(conversations)]
        for one in watched:
            await one.watch()
        began = time.perf_counter()
        took = await asyncio.gather(*(_turns(one, turns) for one in watched))
        seconds = time.perf_counter() - began
        for one in watched:
            await one.close()
        return seconds, [value for values in took for value in values], sum(one.events for one in watched)


async def _turns(watched: Watched, turns: int) -> list[float]:
    return [await watched.turn() for _ in range(turns)]


def run(report: Report) -> None:
    with provider() as url, running_server(url) as running:
        on_loop(bedrock(running, 2, 2))
        for conversations, turns in SIZES:
            count = conversations * turns
            below = floor(url, conversations, turns)
            cpu = cpu_seconds(running.process.pid)
            seconds, took, events = on_loop(bedrock(running, conversations, turns))
            cpu = cpu_seconds(running.process.pid) - cpu
            ratio = below["seconds"] / seconds
            report.add(
                f"turns: {conversations} conversations",
                "turns/s, ms",
                value=round(count / seconds, 1),
                floor=round(count / below["seconds"], 1),
                ratio_to_floor=round(ratio, 2),
                events_per_s=round(events / seconds),
                **spread(took),
            )
            above = (cpu - below["cpu"]) / count * 1000
            report.add(
                f"turns: CPU per turn above floor, {conversations}",
                "ms",
                value=round(above, 2),
                rss_mib=rss_mib(running.process.pid),
            )
    paced(report)


def paced(report: Report) -> None:
    """100 conversations at 20 ms a piece: how much later than ideal a turn ends."""
    conversations, pause, pieces = 100, 0.02, 50
    with provider(pause) as url, running_server(url) as running:
        ideal = pause * pieces * 1000
        below = floor(url, conversations, 2)
        _, took, _ = on_loop(bedrock(running, conversations, 2))
        added = [value - ideal for value in took]
        floor_added = [value - ideal for value in below["took_ms"]]  # type: ignore[attr-defined]
        report.add("turns: added latency, 100 streaming", "ms", floor_p50=spread(floor_added)["p50"], **spread(added))
