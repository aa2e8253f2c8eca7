"""What runs on this machine, as the kernel tells it."""

import contextlib
import os
import uuid
from pathlib import Path

from bedrock.testing.processes import alive, read, running

__all__ = ["alive", "read", "running"]


def forever() -> str:
    """So many seconds for `sleep` as no other process on this machine sleeps: a marker of the processes that do."""
    return f"1000.{uuid.uuid4().int:039d}"


def sleepers(marker: str) -> list[int]:
    """Those among them whose program is `sleep`: they would never end by themselves."""
    return [pid for pid in running(marker) if read(pid, "comm") == b"sleep\n"]


def threads(pid: int) -> int:
    """Threads of Python; those of gRPC's own pool, which come and go by its own rules, have other names."""
    names = [read(pid, f"task/{task}/comm") for task in os.listdir(f"/proc/{pid}/task")]
    return names.count(read(pid, "comm"))


def asleep(pid: int) -> bool:
    """Whether no thread of the process runs, or would if it had a processor.

    Asked several times, since one that was seen asleep may have been woken by one that slept when it was seen.
    """
    states = [f"task/{task}/stat" for task in os.listdir(f"/proc/{pid}/task")] * 5
    return all(read(pid, state).rpartition(b") ")[2][:1] in (b"S", b"") for state in states)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def files(pid: int) -> list[str]:
    """What its file descriptors refer to; one that is closed meanwhile is left out."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def children(pid: int) -> list[int]:
    """Zombies included."""
    tasks = os.listdir(f"/proc/{pid}/task")
    return [int(child) for task in tasks for child in read(pid, f"task/{task}/children").split()]


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """Memory in use; `VmHWM`: the most there ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no {field}")
