"""Which processes a server has left, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path


def running(marker: str) -> list[int]:
    """Return the living processes that carry the marker in their arguments or environment, wherever they fled to."""
    wanted = marker.encode()
    return [pid for pid in _pids() if wanted in read(pid, "cmdline") + read(pid, "environ") and alive(pid)]


def command(pid: int) -> str:
    """Return the arguments of a process, the first 200 characters; empty if it has ended."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:200]


def alive(pid: int) -> bool:
    """Return whether it runs; a zombie does not."""
    stat = read(pid, "stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def read(pid: int, file: str) -> bytes:
    """Return what the kernel tells in this file of a process; nothing if it has ended or belongs to somebody else."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
