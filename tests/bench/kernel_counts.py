"""System calls and allocations of a turn, where the machine has what counts them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients import on_loop
from tests.bench.running_server import provider, running_server
from tests.bench.turns import bedrock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.figures import Report

LOADS = ((1, 40), (50, 4))
"""Conversations, and turns of each."""
EVENTS = {"system_calls": "raw_syscalls:sys_enter", "futex": "syscalls:sys_enter_futex"}
"""By name: what perf counts."""
SOURCE = Path(__file__).with_name("allocations.c")
SLOT = 8
"""Bytes of the counter."""


class Unavailable(Exception):
    """It cannot be counted here; the text is what that would need."""


def run(report: Report) -> None:
    for what, measure in (("system calls", _system_calls), ("allocations", _allocations)):
        for conversations, turns in LOADS:
            name = f"counts: {what} of a turn, {conversations} conversation{'s' if conversations > 1 else ''}"
            try:
                report.add(name, "", **measure(conversations, turns))
            except Unavailable as why:
                report.add(name, "", not_run=f"needs {why}")


def _system_calls(conversations: int, turns: int) -> dict[str, float]:
    """Return how many a turn makes, and how many of them are waits for a lock or wakes. Raises Unavailable."""
    if shutil.which("perf") is None:
        raise Unavailable("perf")
    with provider() as url, running_server(url) as running:
        on_loop(bedrock(running, conversations, 1))
        with _perf(running.process.pid) as counted:
            taken = on_loop(bedrock(running, conversations, turns))
        return {name: round(count / taken.turns) for name, count in counted().items()}


@contextmanager
def _perf(pid: int) -> Iterator[Callable[[], dict[str, int]]]:
    """Count the events of a process meanwhile; what it yields returns the counts afterwards. Raises Unavailable."""
    command = ["perf", "stat", "-x", ",", "-e", ",".join(EVENTS.values()), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as perf:
        lines: list[str] = []

        def counts() -> dict[str, int]:
            found = {line.split(",")[2]: line.split(",")[0] for line in lines if line.count(",") > 2}
            if not all(found.get(event, "").isdecimal() for event in EVENTS.values()):
                raise Unavailable("perf with the right to count system calls")
            return {name: int(found[event]) for name, event in EVENTS.items()}

        yield counts
        perf.send_signal(signal.SIGINT)
        assert perf.stderr is not None
        lines += perf.stderr.read().splitlines()


def _allocations(conversations: int, turns: int) -> dict[str, float]:
    """Return how many a turn makes. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        library, counts = _library(Path(folder)), Path(folder) / "counts"
        counts.write_bytes(bytes(SLOT))
        preloaded = {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc", "COUNTS_FILE": str(counts)}
        with provider() as url, running_server(url, **preloaded) as running:  # type: ignore[arg-type]
            on_loop(bedrock(running, conversations, 1))
            before = _count(counts)
            taken = on_loop(bedrock(running, conversations, turns))
            return {"allocations": round((_count(counts) - before) / taken.turns)}


def _library(folder: Path) -> Path:
    """Compile what counts. Raises Unavailable."""
    compiler, library = shutil.which("cc"), folder / "allocations.so"
    if compiler is None:
        raise Unavailable("a C compiler")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable("a C compiler and the headers of glibc")
    return library


def _count(file: Path) -> int:
    return int.from_bytes(file.read_bytes(), "little")
