"""Whether a turn costs more the longer the history is: CPU of the server per turn, and the first turn after a start."""

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import Report, cpu_seconds
from tests.bench.running_server import RunningServer, provider, running_server

SIZES = (10, 100, 1_000, 2_000)
"""Turns in the history before the measured ones; a turn has five messages."""
LOADED = 1_000
"""Turns in the history when the server is started again."""
CONVERSATIONS = 2
ROUNDS, MEASURED = 3, 10
"""Long and short histories take turns, so many of each conversation at a time; the medians count."""


def run(report: Report) -> None:
    early, late = [size for size in SIZES if size < LOADED], [size for size in SIZES if size >= LOADED]
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder, provider() as url:
        data = Path(folder)
        with running_server(url, data) as running:
            names = on_loop(_grow(report, running, early))
        with running_server(url, data) as running:
            loaded = on_loop(_first_turns(running, names))
            on_loop(_grow(report, running, late, names))
    report.add(f"history: first turn after loading {LOADED * 5:,} messages", "ms", **loaded)


async def _first_turns(running: RunningServer, names: Iterable[str]) -> dict[str, float]:
    """Milliseconds of the first and of the second turn of each conversation, one after another; medians."""
    async with _opened(running, names) as watched:
        first = [await one.turn() for one in watched]
        second = [await one.turn() for one in watched]
    return {"value": round(statistics.median(first), 1), "next": round(statistics.median(second), 1)}


async def _grow(
    report: Report, running: RunningServer, sizes: Iterable[int], names: Iterable[str] = ()
) -> Iterable[str]:
    """Grow conversations, new ones to LOADED turns, and report what a turn costs at each size; return their names."""
    async with _opened(running, names) as watched:
        turns = LOADED if names else 0
        for size in sizes:
            await _take_turns(watched, size - turns)
            cost, ratio = await _compare(running, watched)
            report.add(f"history: CPU per turn after {size:,} turns", "ms", value=round(cost, 2), ratio=round(ratio, 2))
            turns = size + ROUNDS * MEASURED
        await _take_turns(watched, LOADED - turns)
        return [one.name for one in watched]


async def _compare(running: RunningServer, watched: Iterable[Watched]) -> tuple[float, float]:
    """Return the CPU of a turn in ms, and its ratio to that of conversations with SIZES[0] turns and more."""
    long, short = list[float](), list[float]()
    async with _opened(running, ()) as others:
        await _take_turns(others, SIZES[0])
        for _ in range(ROUNDS):
            long.append(await _cost(running, watched))
            short.append(await _cost(running, others))
    return statistics.median(long), statistics.median(long) / statistics.median(short)


async def _cost(running: RunningServer, watched: Iterable[Watched]) -> float:
    before = cpu_seconds(running.process.pid)
    await _take_turns(watched, MEASURED)
    return (cpu_seconds(running.process.pid) - before) * 1000 / (MEASURED * CONVERSATIONS)


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
