"""The result of a run of the turns by any program, and medians over several runs."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from tests.bench.figures import ROOT, percentile

Result = TypeVar("Result")

DRIVER_SECONDS = 200
"""The most that one run of a driver may take."""

ROUNDS = 3
"""Rounds of everything that is compared; of each figure the median counts."""


@dataclass(frozen=True)
class Turns:
    """A run: turns that were taken, and what they cost the process that is measured."""

    turns: int
    seconds: float
    cpu: float
    """Seconds, user and system."""
    took_ms: Sequence[float]
    """Of each turn."""
    rss_mib: float = 0.0
    events: int = 0
    """That watchers have read."""

    @property
    def per_second(self) -> float:
        return self.turns / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Of a turn."""
        return self.cpu / self.turns * 1000

    def p50(self) -> float:
        """Milliseconds of a turn."""
        return percentile(self.took_ms, 0.5)

    def p99(self) -> float:
        return percentile(self.took_ms, 0.99)


def driven(python: str | Path, driver: str, url: str, conversations: int, turns: int, *, database: str = "") -> Turns:
    """Have a driver run the turns in a process of its own. Raises DriverError with what it said."""
    command = [str(python), "-m", driver, "--url", url]
    command += ["--conversations", str(conversations), "--turns", str(turns), "--database", database]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = kept | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DRIVER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"not done after {DRIVER_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise DriverError(re.sub(r"\S*/", "", said[-1]))  # it is published: without the folders of this machine
    result = json.loads(done.stdout.splitlines()[-1])
    return Turns(conversations * turns, result["seconds"], result["cpu"], result["took_ms"], result["rss_mib"])


class DriverError(Exception):
    """A driver has failed; the text is the end of what it said."""


def in_turn(
    programs: Mapping[str, Callable[[], Result]], missing: dict[str, str], rounds: int
) -> dict[str, list[Result]]:
    """Run all programs one after the other, so many rounds. One that fails is noted as missing, and not run again."""
    taken: dict[str, list[Result]] = defaultdict(list)
    for _ in range(rounds):
        for label in [label for label in programs if label not in missing]:
            try:
                taken[label].append(programs[label]())
            except DriverError as error:
                missing[label] = f"needs mending: {error}"
    return taken


def floor(url: str, conversations: int, turns: int) -> Turns:
    """The turns with bare threads and requests."""
    return driven(sys.executable, "tests.bench.floor", url, conversations, turns)


def middle(values: Sequence[float], digits: int = 2) -> float:
    """Return the median of some rounds, rounded."""
    return round(median(values), digits)
