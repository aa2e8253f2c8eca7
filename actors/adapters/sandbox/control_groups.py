"""Prepares control groups (cgroups), which limit a call's processes and memory, and finds a call's orphans.

Without a PID namespace, a tool can kill its tool host and init, which makes the tool's other processes orphans. These
are recognised by marks that processes inherit: the call's number in the environment and as an otherwise unused resource
limit, and membership in the call's control groups. A process can remove the first two marks, but cannot leave the
groups, so only groups make it certain that no process is left.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import randbits
from typing import TypeAlias

from msgspec import Struct

from actors.adapters.sandbox.host.kernel import Opened
from actors.ports import ProcessLimits

PREFIX = "bedrock-"

WANTED = ("pids", "memory")
# Extended attributes that systemd sets on a control group when it delegates that group to a service.
DELEGATED = ("user.delegate", "trusted.delegate")

# A description of a control group that the tool host must create: its directory, its controllers, whether it is of
# cgroup version 2, and the names and contents of the files to write.
Described: TypeAlias = "tuple[bytes, str, bool, list[tuple[str, str]]]"


class Hierarchy(Struct, frozen=True):
    """One hierarchy of control groups, and this process's group in it."""

    own: Path
    controllers: tuple[str, ...]
    unified: bool
    topmost: bool = False
    """Whether this process cannot see a parent of its group, as in a container."""


class ControlGroups:
    """Control groups below the server's own, so that its limits apply to tools, too. Thread-safe.

    If the server has no right to create groups, calls have none, and `controllers` is empty. In cgroup version 2, the
    server moves to a subgroup if its group was delegated to it, because a group whose subgroups have controllers cannot
    contain processes.
    """

    def __init__(self, hierarchies: tuple[Hierarchy, ...] | None = None) -> None:
        self._numbers = itertools.count(1)
        self._usable: list[Hierarchy] = []
        for each in own_hierarchies() if hierarchies is None else hierarchies:
            with suppress(OSError):
                _sweep(each.own)
                _prepare(each)
                self._usable.append(each)

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that limit every tool call: "pids", "memory", both or none."""
        return frozenset(name for each in self._usable for name in each.controllers)

    def describe(self, limits: ProcessLimits, in_memory: int) -> list[Described]:
        """The groups for a new call; `in_memory` is added to the memory limit, because files in memory count, too."""
        name = f"call-{next(self._numbers)}"
        memory = limits.memory_bytes and limits.memory_bytes + in_memory
        return [
            (os.fsencode(_ours(each) / name), " ".join(each.controllers), each.unified, _settings(each, limits, memory))
            for each in self._usable
        ]

    def close(self) -> None:
        """Remove this server's empty control groups; a server that starts later removes the others."""
        for each in self._usable:
            _remove(_ours(each))
        self._usable = []


def own_hierarchies(process: Path = Path("/proc/self")) -> tuple[Hierarchy, ...]:
    """This process's hierarchies that have a controller in WANTED; () if there are none."""
    try:
        groups = process.joinpath("cgroup").read_text().splitlines()
        mounts = process.joinpath("mountinfo").read_text().splitlines()
    except OSError:
        return ()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in groups)}
    return tuple(found for line in mounts for found in _mounted(line, paths))


def _mounted(line: str, paths: dict[str, str]) -> Iterator[Hierarchy]:
    before, _, after = line.partition(" - ")
    root, point = before.split()[3:5]
    kind, _, options = after.split()[:3]
    for listed, path in paths.items():
        named = tuple(name for name in WANTED if name in listed.split(","))
        if kind == "cgroup" and not (named and set(listed.split(",")) <= set(options.split(","))):
            continue
        if kind not in {"cgroup", "cgroup2"} or (kind == "cgroup2") != (listed == ""):
            continue
        own = Path(point, os.path.relpath(path, root))
        if kind == "cgroup2":
            named = tuple(name for name in WANTED if name in _words(own / "cgroup.controllers"))
        if named and not path.startswith("/.."):
            yield Hierarchy(own, named, kind == "cgroup2", topmost=path == root)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _ours(hierarchy: Hierarchy) -> Path:
    return hierarchy.own / f"{PREFIX}{os.getpid()}"


def _settings(hierarchy: Hierarchy, limits: ProcessLimits, memory: int) -> list[tuple[str, str]]:
    """The files to write in a call's group, and their contents. Swap is limited only if the kernel supports this."""
    said: list[tuple[str, str]] = []
    if "pids" in hierarchy.controllers and limits.processes:
        said.append(("pids.max", str(limits.processes + 1)))  # plus one for the tool host
    if "memory" in hierarchy.controllers and memory and hierarchy.unified:
        said += [("memory.max", str(memory)), ("memory.oom.group", "1"), ("memory.swap.max", "0")]
    elif "memory" in hierarchy.controllers and memory:
        said += [("memory.limit_in_bytes", str(memory)), ("memory.memsw.limit_in_bytes", str(memory))]
    return [(name, value) for name, value in said if "sw" not in name or (_ours(hierarchy) / name).exists()]


def _prepare(hierarchy: Hierarchy) -> None:
    """Create the group that contains the calls' groups, and test it with a trial subgroup.

    On failure, remove the group and raise OSError.
    """
    ours = _ours(hierarchy)
    try:
        if hierarchy.unified:
            _divide(hierarchy)
        ours.mkdir()
        if hierarchy.unified:
            _give(ours, hierarchy.controllers)
        trial = ours / "trial"
        trial.mkdir()
        for name, value in _settings(hierarchy, ProcessLimits(), ProcessLimits().memory_bytes):
            (trial / name).write_text(value)
        trial.rmdir()
    except OSError:
        _remove(ours)
        raise


def _divide(hierarchy: Hierarchy) -> None:
    """Enable the controllers for the subgroups of this process's group, in cgroup version 2.

    First move this process to a subgroup, because a group whose subgroups have controllers cannot contain processes.
    Raises OSError, for example if the group was not delegated to this process.
    """
    if set(hierarchy.controllers) <= set(_words(hierarchy.own / "cgroup.subtree_control")):
        return
    if not hierarchy.topmost and not _delegated(hierarchy.own):
        raise PermissionError("this group is not the server's own")
    inner = hierarchy.own / f"{PREFIX}{os.getpid()}-server"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(os.getpid()))
    try:
        _give(hierarchy.own, hierarchy.controllers)
    except OSError:
        (hierarchy.own / "cgroup.procs").write_text(str(os.getpid()))
        inner.rmdir()
        raise


def _give(folder: Path, controllers: tuple[str, ...]) -> None:
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _delegated(folder: Path) -> bool:
    for name in DELEGATED:
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _sweep(own: Path) -> None:
    for folder in own.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for inner in folder.iterdir():
            if inner.is_dir():
                with suppress(OSError):
                    inner.rmdir()
        folder.rmdir()


# The environment variable with the call's number.
VARIABLE = "BEDROCK_CALL"

# The name in /proc of the limit that carries the call's number: RLIMIT_RTTIME, in microseconds.
_LIMIT = b"Max realtime timeout"


class CallMarks(Struct, frozen=True):
    number: int
    folders: tuple[bytes, ...] = ()


def new_number() -> int:
    """An unguessable random number. As a CPU time limit in µs, it means over thirty years, so it has no effect."""
    return 1 << 50 | randbits(50)


def kill_orphans(trace: CallMarks, seconds: float, *, grouped: bool) -> tuple[set[int], bool]:
    """Kill the processes with these marks until none are left, for at most `seconds`. Thread-safe.

    Returns the killed pids, and whether it is certain that no process is left. This can be certain only if `grouped`,
    which means that all processes were created in the call's groups.
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
    """Kill a process if it belongs to the call, else return False. Uses a pidfd, because the pid could be reused."""
    try:
        with Opened(os.pidfd_open(pid)) as process:
            if _is_of(pid, trace):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
    except OSError:
        pass
    return False


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
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
