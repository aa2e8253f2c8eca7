"""Servers that are killed in the middle of their tools, again and again, and what is left of them."""

import math
import os
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

from bedrock.testing.processes import each_running
from bedrock.types import Mode

from actors.adapters.sandbox.control_groups import own_hierarchies
from actors.ports import SandboxUnavailableError
from tests.support import processes
from tests.support.patience import PATIENCE, eventually
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess
from tests.support.trees import TREES

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
    """From kill -9 until none of its processes lived: as the kernel tells, or else as a search of /proc finds."""
    orphans: int
    """Those that would not die."""


class Family:
    """A control group for a process and all that it will start: the kernel tells when the last of them has ended.

    Without a control group of version 2 in which tools stay, nothing is told.
    """

    def __init__(self, marker: str) -> None:
        """Gather the processes that carry the marker; they must not be starting others meanwhile."""
        self._folder = _new_group(marker)
        if self._folder is not None:
            for pid in processes.running(marker):
                with suppress(ProcessLookupError):
                    (self._folder / "cgroup.procs").write_text(str(pid))

    def ended(self) -> float:
        """Sleep until none is left, or for PATIENCE; seconds of `time.perf_counter`, or infinity if it was not told."""
        late = time.monotonic() + PATIENCE
        if self._folder is None:
            return math.inf
        with (self._folder / "cgroup.events").open("rb") as events:
            changed = select.poll()
            changed.register(events, select.POLLPRI)
            while b"populated 1" in os.pread(events.fileno(), 100, 0):
                if time.monotonic() > late:
                    return math.inf
                changed.poll(PATIENCE * 1000)
        return time.perf_counter()

    def close(self) -> None:
        """Remove the group, unless a process is left in it."""
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()


def _new_group(name: str) -> Path | None:
    """A new control group; None if none can be made, or if servers move their tools within that hierarchy."""
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in (Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"):
            if not any(each.unified for each in own_hierarchies()):
                folder = point / own.lstrip("/") / name
                folder.mkdir()
                return folder
    return None


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
    family = Family(server.marker)
    try:
        with server.client() as client, ThreadPoolExecutor(1) as pool:
            for kind in situation.kinds:
                client.create(home, model="demo", mode=situation.mode).send(f"run {TREES[kind][0]}")
            _grow(server, situation)
            told = pool.submit(family.ended)
            began = time.perf_counter()
            server.process.kill()
            seen, orphans = _survivors(server.marker)
            searched = time.perf_counter()
            ended = max(seen, min(told.result(), searched))
        return ServerKilled(situation, (ended - began) * 1000, len(orphans))
    finally:
        server.dispose()
        server.process.wait()
        family.close()


def _survivors(marker: str) -> tuple[float, list[int]]:
    """Sleep until each process found has ended, until there is none: looking at all of them would keep them alive.

    Returns when the last one was found alive (seconds of `time.perf_counter`), and what would not end.
    """
    seen = 0.0
    late = time.monotonic() + PATIENCE
    while (pid := next(each_running(marker), 0) or next(each_running(marker), 0)) and time.monotonic() < late:
        seen = time.perf_counter()
        with suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb") as ended:
            select.select([ended], [], [], PATIENCE)
    return seen, processes.running(marker) if pid else []


def _grow(server: ServerProcess, situation: Situation) -> None:
    if situation.early:
        eventually(lambda: len(server.running()) > 1, "the first process of a tool")
    else:
        wanted = sum(TREES[kind][1] for kind in situation.kinds)
        eventually(lambda: len(processes.sleepers(server.marker)) >= wanted, f"{wanted} sleeps")
