"""Finds the processes that a server has left behind, by reading /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def running(marker: str) -> list[int]:
    """The ids of living processes whose arguments or environment contain the marker, under any parent."""
    return list(each_running(marker))


def each_running(marker: str) -> Iterator[int]:
    """Yield what `running` returns, each process as soon as it is found."""
    wanted = marker.encode()
    return (pid for pid in _pids() if wanted in read(pid, "cmdline") + read(pid, "environ") and alive(pid))


def command(pid: int) -> str:
    """The first 200 characters of a process's command line; empty if the process has ended."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:200]


def alive(pid: int) -> bool:
    """Whether a process is alive; a zombie is not."""
    stat = read(pid, "stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def read(pid: int, file: str) -> bytes:
    """A file of /proc about a process; empty if the process has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
