"""`make bench-cluster`: the turns on one, two and three nodes with one PostgreSQL, beside SQLite and LangGraph.

Clients, the model provider, all nodes and PostgreSQL share the cores of one machine: more nodes do not add any. Bodies
have a length, as they have for other programs.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.bench import goals
from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.cluster.nodes import DatabaseCost, running_nodes, spent_by
from tests.bench.figures import Report, cpu_seconds
from tests.bench.peers.environments import LANGGRAPH_POSTGRES, Peer
from tests.bench.results import ROUNDS, Turns, in_turn, middle
from tests.bench.running_server import RunningServer, provider, running_server
from tests.bench.turns import turns_of
from tests.support.postgres import PostgresServer

MODEL = "claude-sonnet-4-5"
NODES = (1, 2, 3)


@dataclass(frozen=True)
class Load:
    """The work of each run."""

    url: str
    """The provider's."""
    conversations: int
    turns: int
    """Of each."""


@dataclass(frozen=True)
class Run:
    """One run of the turns, and what they cost whom."""

    turns: Turns
    """Its CPU: of the owners, all together."""
    forwarding_cpu: float | None = None
    """Seconds, of a node that owns nothing; None: there is none."""
    database: DatabaseCost | None = None
    """None: there is none."""
    idle: float = 0.0
    """The share of the machine's CPU time that nobody used, 0 to 1."""


Program: TypeAlias = Callable[[Load], Run]


def main() -> None:
    arguments = argparse.ArgumentParser(prog="make bench-cluster")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--conversations", type=int, default=50)
    arguments.add_argument("--turns", type=int, default=4, help="of each conversation")
    given = arguments.parse_args()
    report = Report("cluster")
    with contextlib.closing(PostgresServer(durable=True)) as postgres, provider(plain=True) as url:
        programs, missing = programs_on(postgres)
        load = Load(url, given.conversations, given.turns)
        taken = in_turn({label: partial(run, load) for label, run in programs.items()}, missing, given.rounds)
    for label, runs in taken.items():
        if label not in missing:
            add(report, label, runs)
    for label, why in missing.items():
        report.add(f"cluster: {label}", "turns/s", not_run=why)
    judged = goals.judged(report.by_name)
    print(goals.table(judged))
    print(f"written to {report.write(goals=judged)}")


def programs_on(postgres: PostgresServer) -> tuple[dict[str, Program], dict[str, str]]:
    """Return what can be run, and why the others cannot."""
    programs: dict[str, Program] = {"SQLite, not a node": _embedded}
    for count in NODES:
        label = "1 node, called itself" if count == 1 else f"{count} nodes, owners called"
        programs[label] = _nodes(postgres, count, forwarded=False)
    programs["1 node, called through another"] = _nodes(postgres, 1, forwarded=True)
    peer = LANGGRAPH_POSTGRES
    if why := peer.why_missing():
        return programs, {peer.full_name: why}
    return programs | {peer.full_name: _peer(peer, postgres)}, {}


def add(report: Report, label: str, runs: Sequence[Run]) -> None:
    """Add a program's row: the medians of its runs."""
    turns = runs[0].turns.turns
    costs: dict[str, float] = {}
    if forwarding := [run.forwarding_cpu for run in runs if run.forwarding_cpu is not None]:
        costs["forwarding_cpu_ms"] = middle([each / turns * 1000 for each in forwarding])
    if databases := [run.database for run in runs if run.database is not None]:
        costs["database_cpu_ms"] = middle([each.cpu / turns * 1000 for each in databases])
        costs["commits"] = middle([each.commits / turns for each in databases], 1)
        costs["wal_kib"] = middle([each.written / turns / 1024 for each in databases], 1)
    report.add(
        f"cluster: {label}",
        "turns/s, ms",
        value=middle([run.turns.per_second for run in runs], 1),
        cpu_ms=middle([run.turns.cpu_ms for run in runs]),
        **costs,
        p50=middle([run.turns.p50() for run in runs], 0),
        p99=middle([run.turns.p99() for run in runs], 0),
        idle_percent=middle([run.idle * 100 for run in runs], 0),
        turns=turns,
    )


def _embedded(load: Load) -> Run:
    with running_server(load.url) as server:
        return on_loop(_taken([server], load))


def _nodes(postgres: PostgresServer, owners: int, *, forwarded: bool) -> Program:
    """Return the program of so many owners; `forwarded`: all calls go to one more node, which owns nothing."""

    def run(load: Load) -> Run:
        with _database(postgres) as database, running_nodes(owners + forwarded, load.url, database) as nodes:
            through = nodes[owners] if forwarded else None
            return on_loop(_taken(nodes[:owners], load, through, postgres))

    return run


async def _taken(
    owners: Sequence[RunningServer],
    load: Load,
    through: RunningServer | None = None,
    postgres: PostgresServer | None = None,
) -> Run:
    """Take the turns, all conversations at the same time, after a few others."""
    async with contextlib.AsyncExitStack() as opened:
        at_owners = [await opened.enter_async_context(Clients(each)) for each in owners]
        calling = None if through is None else await opened.enter_async_context(Clients(through))

        async def watched(conversations: int) -> list[Watched]:
            made = [await at_owners[each % len(owners)].conversation(MODEL) for each in range(conversations)]
            if calling is not None:
                made = [Watched(calling.stub, calling.running_server, each.name) for each in made]
            await asyncio.gather(*(each.watch() for each in made))
            opened.push_async_callback(lambda: asyncio.gather(*(each.close() for each in made)))
            return made

        await asyncio.gather(*(turns_of(each, 2) for each in await watched(2 * len(owners))))
        measured = await watched(load.conversations)
        counting = _Counting(owners, through, postgres)
        took = await asyncio.gather(*(turns_of(each, load.turns) for each in measured))
        return counting.run([value for values in took for value in values])


class _Counting:
    """What is spent from now on."""

    def __init__(
        self, owners: Sequence[RunningServer], through: RunningServer | None, postgres: PostgresServer | None
    ) -> None:
        self._owners = [each.process.pid for each in owners]
        self._through = None if through is None else through.process.pid
        self._postgres = postgres
        self._before = self._now()

    def run(self, took_ms: Sequence[float]) -> Run:
        """Return the run that ends now."""
        began, owners, through, database, idle, cpu_time = self._before
        ended, owners_now, through_now, database_now, idle_now, cpu_time_now = self._now()
        return Run(
            Turns(len(took_ms), ended - began, owners_now - owners, took_ms),
            None if self._through is None else through_now - through,
            None if database is None or database_now is None else database_now - database,
            (idle_now - idle) / (cpu_time_now - cpu_time),
        )

    def _now(self) -> tuple[float, float, float, DatabaseCost | None, int, int]:
        return (
            time.perf_counter(),
            sum(map(cpu_seconds, self._owners)),
            0.0 if self._through is None else cpu_seconds(self._through),
            None if self._postgres is None else spent_by(self._postgres),
            *_cpu_time(),
        )


def _cpu_time() -> tuple[int, int]:
    """Return the CPU time of the machine that nobody has used, and all of it, in ticks."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _peer(peer: Peer, postgres: PostgresServer) -> Program:
    def run(load: Load) -> Run:
        with _database(postgres) as database:
            before, (idle, cpu_time) = spent_by(postgres), _cpu_time()
            turns = peer.run(load.url, load.conversations, load.turns, database=database)
            idle_now, cpu_time_now = _cpu_time()
            return Run(turns, database=spent_by(postgres) - before, idle=(idle_now - idle) / (cpu_time_now - cpu_time))

    return run


@contextlib.contextmanager
def _database(postgres: PostgresServer) -> Iterator[str]:
    """A new database, by its URL; it is dropped at the end."""
    name = postgres.create()
    try:
        yield postgres.url(name)
    finally:
        postgres.drop(name)


if __name__ == "__main__":
    main()
