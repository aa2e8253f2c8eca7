"""Processes of a call that has lost those that keep it: found by marks that they inherit, and killed.

Without a PID namespace a tool can kill its tool host and init, and be nobody's child. What it started still carries
the call's number, in the environment and as a limit that means nothing, and is in the call's control groups. Only the
groups cannot be left: without them it is never certain that nothing lives.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from secrets import randbits
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "BEDROCK_CALL"
"""Holds the number of a call in the environment of its tool."""

_LIMIT = b"Max realtime timeout"
"""How /proc names the limit that the tool host sets to the call's number: RLIMIT_RTTIME, in microseconds."""


class CallMarks(Struct, frozen=True):
    """By what the processes of one call are known."""

    number: int
    folders: tuple[bytes, ...] = ()
    """Its control groups."""


def new_number() -> int:
    """A number that nobody can guess, and as a limit none: more than thirty years of computing."""
    return 1 << 50 | randbits(50)


def kill_orphans(trace: CallMarks, seconds: float, *, grouped: bool) -> tuple[set[int], bool]:
    """Kill what carries these marks until nothing does any more (any thread). Returns the process ids, and whether
    it is certain that nothing lives: `grouped`, every process of the call was born in its groups."""
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = {pid for pid in _candidates(trace) if _kill(pid, trace)}
        if not found:
            return killed, grouped and not any(_members(folder) for folder in trace.folders)
        killed |= found
        time.sleep(0.005)
    return killed, False


def remove_groups(trace: CallMarks) -> None:
    """Remove the control groups of a call that has ended; those with somebody in them stay."""
    for folder in trace.folders:
        with suppress(OSError):
            os.rmdir(folder)


def _candidates(trace: CallMarks) -> Iterator[int]:
    yield from (pid for folder in trace.folders for pid in _members(folder))
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _members(folder: bytes) -> list[int]:
    return [int(line) for line in _read(folder + b"/cgroup.procs").split()]


def _kill(pid: int, trace: CallMarks) -> bool:
    """Kill it if it is one of them; False if it is not, or cannot be killed. A pidfd keeps it from being another."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _is_of(pid, trace):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def _is_of(pid: int, trace: CallMarks) -> bool:
    number = str(trace.number).encode()
    if _read(b"/proc/%d/stat" % pid).rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"]):
        return False
    if b"\0%s=%s\0" % (VARIABLE.encode(), number) in b"\0" + _read(b"/proc/%d/environ" % pid):
        return True
    if number in _read(b"/proc/%d/limits" % pid).partition(_LIMIT)[2].partition(b"\n")[0].split():
        return True
    return any(pid in _members(folder) for folder in trace.folders)


def _read(path: bytes) -> bytes:
    """A file that may be gone, or another user's: then b"" ."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
