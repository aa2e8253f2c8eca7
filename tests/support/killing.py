"""Servers that are killed in the middle of their tools, again and again, and what is left of them."""

from __future__ import annotations

import os
import select
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import TYPE_CHECKING

from bedrock.testing.processes import each_running
from bedrock.types import Mode

from actors.ports import SandboxUnavailableError
from tests.support import processes
from tests.support.patience import PATIENCE, eventually
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess
from tests.support.trees import TREES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOGETHER = 3
"""Tools that run when their server is killed."""

LANES = 2
"""Servers at the same time."""


@dataclass(frozen=True)
class Situation:
    """What runs when a server is killed."""

    tier: str
    mode: Mode
    kinds: tuple[str, ...]
    early: bool
    """Killed as soon as there is any process of a tool, not when all trees have grown."""


@dataclass(frozen=True)
class ServerKilled:
    """What was left of a killed server, and for how long."""

    situation: Situation
    milliseconds: float
    """From kill -9 until none of its processes lived."""
    orphans: int
    """Those that would not die."""


def kill_servers(folder: Path, times: int) -> Iterator[ServerKilled]:
    """Kill so many servers, in one situation after the other. Each lane's servers share a data directory."""
    homes = [folder / f"lane{number}" for number in range(LANES)]
    for home in homes:
        home.mkdir()
    situations = list(islice(cycle(_situations()), times))
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(_lane, home, situations[number::LANES]) for number, home in enumerate(homes)]
        for lane in lanes:
            yield from lane.result()


def _situations() -> Iterator[Situation]:
    """Each kind of tree in each tier and mode within the first fifteen, each with other company after that."""
    kinds = list(TREES)
    starts = [number * TOGETHER % len(kinds) for number in range(len(kinds))]
    groups = [tuple(islice(cycle(kinds), start, start + TOGETHER)) for start in starts]
    both: tuple[Mode, ...] = ("restricted", "unrestricted")
    modes: list[tuple[str, Mode]] = [("none", "unrestricted"), *product(_tiers(), both)]
    for number, (group, (tier, mode)) in enumerate(product(groups, modes)):
        # Without a namespace the tool host soon ends a storm for having too many processes.
        brief = "fork storm" in group and (tier, mode) == ("B", "restricted")
        yield Situation(tier, mode, group, early=number % 3 == 2 or brief)


def _tiers() -> list[str]:
    """Those that this machine can keep."""
    kept = []
    for tier in ("A", "B"):
        try:
            sandbox_report(tier)
        except SandboxUnavailableError:
            continue
        kept.append(tier)
    return kept


def _lane(home: Path, situations: list[Situation]) -> list[ServerKilled]:
    return [_kill_one(home, situation) for situation in situations]


def _kill_one(home: Path, situation: Situation) -> ServerKilled:
    server = ServerProcess(home, BEDROCK_SANDBOX=situation.tier)
    try:
        with server.client() as client:
            for kind in situation.kinds:
                client.create(home, model="demo", mode=situation.mode).send(f"run {TREES[kind][0]}")
            _grow(server, situation)
            began = time.perf_counter()
            server.process.kill()
            orphans = _survivors(server.marker)
            took = time.perf_counter() - began
        return ServerKilled(situation, took * 1000, len(orphans))
    finally:
        server.dispose()
        server.process.wait()


def _survivors(marker: str) -> list[int]:
    """Sleep until each process found has ended, until there is none: looking at all of them would keep them alive."""
    late = time.monotonic() + PATIENCE
    while (pid := next(each_running(marker), 0) or next(each_running(marker), 0)) and time.monotonic() < late:
        with suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb") as ended:
            select.select([ended], [], [], PATIENCE)
    return processes.running(marker) if pid else []


def _grow(server: ServerProcess, situation: Situation) -> None:
    if situation.early:
        eventually(lambda: len(server.running()) > 1, "the first process of a tool")
    else:
        wanted = sum(TREES[kind][1] for kind in situation.kinds)
        eventually(lambda: len(processes.sleepers(server.marker)) >= wanted, f"{wanted} sleeps")
