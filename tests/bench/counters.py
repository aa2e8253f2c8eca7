"""Counters of the kernel: context switches, reads and writes of a measured process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Switches:
    """Context switches: those of a thread that waits, and those of one that is pushed aside."""

    voluntary: float
    involuntary: float

    def __truediv__(self, turns: int) -> Switches:
        return Switches(self.voluntary / turns, self.involuntary / turns)


class ContextSwitches:
    """The context switches of a process from now on; those of threads that end meanwhile are missing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._now()

    def since(self) -> Switches:
        now = self._now()
        found = [
            sum(counts[which] - self._before.get(thread, (0, 0))[which] for thread, counts in now.items())
            for which in (0, 1)
        ]
        return Switches(*found)

    def _now(self) -> dict[str, tuple[int, int]]:
        counts = {}
        for thread in os.listdir(f"/proc/{self._pid}/task"):
            try:
                text = Path(f"/proc/{self._pid}/task/{thread}/status").read_text()
            except OSError:  # it has ended
                continue
            voluntary, involuntary = (int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)
            counts[thread] = (voluntary, involuntary)
        return counts


def reads_and_writes(pid: int) -> int:
    """Return how many reads and writes of files a process has made; those of sockets by recv and send do not count."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    fields = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return fields["syscr"] + fields["syscw"]
