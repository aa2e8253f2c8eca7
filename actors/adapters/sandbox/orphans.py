"""Finds and kills the orphaned processes of a call whose tool host and init have exited.

Without a PID namespace a tool can kill its tool host and init; its other processes are then orphans. They are
recognised by marks that processes inherit: the call's number in the environment and as an otherwise unused resource
limit, and membership in the call's control groups. A process can remove the first two marks, but cannot leave the
groups: only with groups is it certain that no process is left.
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
"""The environment variable with the number of the call."""

_LIMIT = b"Max realtime timeout"
"""The name in /proc of the limit that contains the call's number: RLIMIT_RTTIME, in microseconds."""


class CallMarks(Struct, frozen=True):
    """The marks by which the processes of one call are recognised."""

    number: int
    folders: tuple[bytes, ...] = ()
    """The directories of the call's control groups."""


def new_number() -> int:
    """Return an unguessable random number; as a limit of CPU time in µs it exceeds thirty years and has no effect."""
    return 1 << 50 | randbits(50)


def kill_orphans(trace: CallMarks, seconds: float, *, grouped: bool) -> tuple[set[int], bool]:
    """Kill the processes with the marks `trace` until none is left, for at most `seconds`. Callable from any thread.

    Returns the ids of the killed processes, and whether it is certain that none is left. It is never certain without
    `grouped`, which means that all processes of the call were created in its control groups.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = {pid for pid in _candidates(trace) if _kill(pid, trace)}
        if not found:
            return killed, grouped and not any(_members(folder) for folder in trace.folders)
        killed |= found
        time.sleep(0.005)  # wait for killed processes to exit, so that the next pass does not find them again
    return killed, False


def remove_groups(trace: CallMarks) -> None:
    """Remove the control groups of a call that has ended; groups that still contain processes are kept."""
    for folder in trace.folders:
        with suppress(OSError):
            os.rmdir(folder)


def _candidates(trace: CallMarks) -> Iterator[int]:
    yield from (pid for folder in trace.folders for pid in _members(folder))
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _members(folder: bytes) -> list[int]:
    return [int(line) for line in _read(folder + b"/cgroup.procs").split()]


def _kill(pid: int, trace: CallMarks) -> bool:
    """Kill the process if it belongs to the call. Return False if it does not, or cannot be killed.

    A pidfd is used, so that the pid cannot be reused between the check and the kill.
    """
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
    """Return a file's content; b"" if it is missing or not readable for this user."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
