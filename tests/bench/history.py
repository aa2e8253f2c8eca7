"""Whether a turn costs more the longer the history is: CPU of the server per turn, and the first turn after a start."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import Report, cpu_seconds, rss_mib
from tests.bench.running_server import RunningServer, provider, running_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

SIZES = (10, 100, 1_000, 2_000)
"""Turns in the history before the measured ones; a turn has five messages."""
LOADED = 1_000
"""Turns in the history when the server is started again."""
CONVERSATIONS = 2
MEASURED = 30
"""Turns of each conversation that a figure is the mean of."""


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder, provider() as url:
        data, early, late = Path(folder), [size for size in SIZES if size < LOADED], [s for s in SIZES if s >= LOADED]
        with running_server(url, data) as running:
            names, first = on_loop(_grow(running, early, LOADED))
        with running_server(url, data) as running:
            loaded = on_loop(_first_turns(running, names))
            _, rest = on_loop(_grow(running, late, late[-1], names))
            resident = rss_mib(running.process.pid)
    least = first[early[0]]
    for size, cost in (first | rest).items():
        report.add(
            f"history: CPU per turn after {size:,} turns", "ms", value=round(cost, 2), ratio=round(cost / least, 2)
        )
    report.add(f"history: first turn after loading {LOADED * 5:,} messages", "ms", **loaded)
    report.add(f"history: memory with {CONVERSATIONS} of {late[-1]:,} turns", "MiB", value=resident)


async def _first_turns(running: RunningServer, names: Iterable[str]) -> dict[str, float]:
    """Milliseconds of the first and of the second turn of each conversation, one after another; medians."""
    async with _opened(running, names) as watched:
        first = [await one.turn() for one in watched]
        second = [await one.turn() for one in watched]
    middle = len(watched) // 2
    return {"value": round(sorted(first)[middle], 1), "next": round(sorted(second)[middle], 1)}


async def _grow(
    running: RunningServer, sizes: Iterable[int], last: int, names: Iterable[str] = ()
) -> tuple[list[str], dict[int, float]]:
    """Grow conversations to `last` turns; returns their names, and the CPU of a turn in ms after so many turns."""
    costs: dict[int, float] = {}
    async with _opened(running, names) as watched:
        turns = LOADED if names else 0
        for size in sizes:
            await _take_turns(watched, size - turns)
            before = cpu_seconds(running.process.pid)
            await _take_turns(watched, MEASURED)
            turns = size + MEASURED
            costs[size] = (cpu_seconds(running.process.pid) - before) * 1000 / (MEASURED * len(watched))
        await _take_turns(watched, last - turns)
        return [one.name for one in watched], costs


async def _take_turns(watched: Iterable[Watched], count: int) -> None:
    async def turns(one: Watched) -> None:
        for _ in range(count):
            await one.turn()

    await asyncio.gather(*map(turns, watched))


@contextlib.asynccontextmanager
async def _opened(running: RunningServer, names: Iterable[str]) -> AsyncIterator[list[Watched]]:
    """Watch these conversations, or new ones if there are none yet."""
    async with Clients(running) as clients:
        watched = [Watched(clients.stub, running, name) for name in names]
        watched = watched or [await clients.conversation("claude-sonnet-4-5") for _ in range(CONVERSATIONS)]
        for one in watched:
            await one.watch()
        yield watched
        for one in watched:
            await one.close()
