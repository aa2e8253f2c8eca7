"""The resource limits of one call: some are enforced by the kernel, others monitored by the call's host."""

import ctypes
import os
import resource
import sys
import time
from contextlib import suppress

from actors.adapters.sandbox.host import kernel, process_walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

# Seconds between checks: the first value if processes are counted, else the second if memory is measured, else the
# third, if the only check is whether the kernel killed processes because memory ran out.
CENSUS_SECONDS = 0.05, 0.2, 0.5

# Maximum seconds between inspections of the tree. It is inspected even if the machine's figures are stable, because
# free memory does not change when a process takes memory from caches.
LOOK_SECONDS = 1.0

# Inspections, which are slow for large trees and shared memory, take at most 1 / LOOKING_SHARE of the time.
LOOKING_SHARE = 20

# The nice value of the process tree if the host that monitors it may not use a real-time priority.
LOWER_PRIORITY = 10

LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}


class Groups:
    """The control groups of one call, which its init process joins.

    If groups cannot be created, the host itself monitors the limits. Some ways of joining a group block all forks on
    the machine for a while. Init is therefore forked directly into the version 2 group, and joins version 1 groups as a
    single thread.
    """

    def __init__(self, described: "list[tuple[bytes, str, bool, list[tuple[str, str]]]]") -> None:
        self.folders: list[bytes] = []
        self.held: set[str] = set()
        self.born = -1
        self.joined: list[int] = []
        for folder, controllers, unified, settings in described:
            try:
                os.mkdir(folder)
                self.folders.append(folder)
                for name, value in settings:
                    kernel.write_file(os.fsdecode(folder) + "/" + name, value)
                if unified:
                    self.born = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                else:
                    self.joined.append(os.open(folder + b"/tasks", os.O_WRONLY | os.O_CLOEXEC))
            except OSError:
                continue
            self.held.update(controllers.split())

    def fork(self) -> int:
        """Fork init into the call's version 2 cgroup, if there is one; return its pid, 0 in the child.

        Raises OSError if the fork fails.
        """
        if self.born < 0:
            return os.fork()
        arguments = kernel.struct_of_words(kernel.CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, self.born)
        return kernel.checked(kernel.forking_libc.syscall(kernel.NR_CLONE3, arguments, len(arguments)))

    def join(self) -> None:
        for file in self.joined:
            os.write(file, b"0")

    def starved(self) -> bool:
        for folder in self.folders:
            for name in (b"/memory.events", b"/memory.oom_control"):
                try:
                    lines = kernel.contents(folder + name).splitlines()
                except OSError:
                    continue
                if any(line.startswith(b"oom_kill ") and not line.endswith(b" 0") for line in lines):
                    return True
        return False

    def kill(self) -> None:
        """Prevent further forks in the groups, and kill all their processes, as far as the groups support it."""
        for folder in self.folders:
            for name, value in (("cgroup.kill", "1"), ("pids.max", "0")):
                with suppress(OSError):  # the file does not exist in this cgroup version or with this controller
                    kernel.write_file(os.fsdecode(folder) + "/" + name, value)
        for folder in self.folders[:1]:
            with suppress(OSError):  # harmless: the processes are also found as descendants of the host
                for pid in kernel.contents(folder + b"/cgroup.procs").split():
                    process_walk.send_signal(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        for folder in self.folders:
            with suppress(OSError):  # the group still contains a process; the server removes the group later
                os.rmdir(folder)


class Census:
    """Monitors limits that the kernel does not enforce: a tree's processes and their total memory.

    Inspecting the tree is slow, while the machine's figures are fast to read. The tree is therefore inspected only when
    these figures have changed by a considerable part of a limit, or after LOOK_SECONDS. Only memory that cannot be
    reclaimed counts: anonymous memory, and the growth of the machine's shared memory since the call began, up to the
    amount that the processes could own.
    """

    def __init__(self, limits: "dict[str, float]", namespace: bool, groups: Groups) -> None:
        bounded = "pids" in groups.held or (namespace and counts_per_namespace())
        self.processes = 0 if bounded else int(limits["processes"])
        self.memory = 0 if "memory" in groups.held else int(limits["memory_bytes"])
        self.groups = groups
        self.seconds = CENSUS_SECONDS[0 if self.processes else 1 if self.memory else 2]
        self.at = self.look_at = self.measure_at = 0.0
        self.threads, self.free, self.shared = machine_figures()
        self.shared_before = self.shared

    def due(self) -> float | None:
        return self.at if self.processes or self.memory or self.groups.joined else None

    def exceeded(self, root: int) -> int:
        """The number (see kernel.py) of the limit that the processes below pid `root` exceed; 0 for none."""
        now = time.monotonic()
        if self.due() is None or now < self.at:
            return 0
        self.at = now + self.seconds
        if self.groups.joined and self.groups.starved():
            return kernel.MEMORY  # cgroup version 1 kills only one process when memory runs out
        if not (self.processes or self.memory):
            return 0
        if not self.moved(now):
            return 0
        pids = process_walk.below(root, self.processes + 1 if self.processes else sys.maxsize)
        limit = kernel.PROCESSES if 0 < self.processes < len(pids) else 0
        if not limit and self.memory and self.over_memory(pids, now):
            limit = kernel.MEMORY
        self.look_at = now + max(LOOK_SECONDS, (time.monotonic() - now) * LOOKING_SHARE)
        return limit

    def moved(self, now: float) -> bool:
        threads, free, shared = machine_figures()
        step = self.memory // 8 or sys.maxsize
        grown = 0 < self.processes // 2 < threads - self.threads
        if grown or free < self.free - step or shared > self.shared + step or now >= self.look_at:
            self.threads, self.free, self.shared = threads, free, shared
            return True
        self.threads = min(threads, self.threads)
        self.free, self.shared = max(free, self.free), min(shared, self.shared)
        return False

    def over_memory(self, pids: "list[int]", now: float) -> bool:
        """Whether these processes exceed the memory limit.

        The memory is measured exactly only if an upper bound for it exceeds the limit.
        """
        grown = max(0, self.shared - self.shared_before)
        if sum(map(unshared_at_most, pids)) + grown <= self.memory or now < self.measure_at:
            return False
        used = sum(map(unshared, pids)) + (min(grown, shareable(pids)) if grown else 0)
        took = time.monotonic() - now
        self.measure_at = now + took * LOOKING_SHARE
        return used > self.memory


def machine_figures() -> "tuple[int, int, int]":
    """The whole machine's number of threads, bytes of free memory, and bytes of shared memory (with tmpfs)."""
    found = SystemInformation()
    kernel.checked(kernel.libc.sysinfo(ctypes.byref(found)))
    return found.threads, found.free * found.unit, found.shared * found.unit


class SystemInformation(ctypes.Structure):
    _fields_ = (
        ("before", ctypes.c_ulong * 5),
        ("free", ctypes.c_ulong),
        ("shared", ctypes.c_ulong),
        ("swap", ctypes.c_ulong * 3),
        ("threads", ctypes.c_ushort),
        ("high", ctypes.c_ulong * 2),
        ("unit", ctypes.c_uint),
        ("rest", ctypes.c_char * 64),
    )


def figure(lines: bytes, name: bytes) -> int:
    return int((lines.partition(name)[2].split(None, 1) or [b"0"])[0]) << 10


def unshared_at_most(pid: int) -> int:
    """An upper bound on a process's anonymous memory in bytes, including what forks share; 0 if it has ended."""
    try:
        _, resident, shared, *_ = kernel.contents(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def unshared(pid: int) -> int:
    """A process's anonymous memory in bytes, with its share of shared pages; the upper bound if that is unreadable."""
    try:
        return figure(kernel.contents(f"/proc/{pid}/smaps_rollup"), b"Pss_Anon:")
    except OSError:
        return unshared_at_most(pid)


def shareable(pids: "list[int]") -> int:
    sizes: dict[tuple[int, int], int] = {}
    try:
        for pid in pids:
            for found in (mapped_memory(pid), opened_memory(pid)):
                for key, size in found.items():
                    sizes[key] = max(size, sizes.get(key, 0))
    except FileNotFoundError:
        return shareable([pid for pid in pids if process_walk.alive(pid)])
    except OSError:
        return sys.maxsize  # a process that cannot be inspected could own any amount
    return sum(sizes.values())


def mapped_memory(pid: int) -> "dict[tuple[int, int], int]":
    found: dict[tuple[int, int], int] = {}
    for line in kernel.contents(f"/proc/{pid}/maps").splitlines():
        place, _, _, device, inode, *name = line.split(None, 5)
        if name and name[0].startswith((b"/memfd:", b"/SYSV", b"/dev/zero (deleted)")):
            start, _, end = place.partition(b"-")
            major, _, minor = device.partition(b":")
            key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            found[key] = found.get(key, 0) + int(end, 16) - int(start, 16)
    return found


def opened_memory(pid: int) -> "dict[tuple[int, int], int]":
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                about = os.stat(path)
                found[about.st_dev, about.st_ino] = about.st_blocks * 512
        except FileNotFoundError:
            continue  # the process has closed it since the listing
    return found


def counts_per_namespace() -> bool:
    """Whether the kernel can limit the number of processes in one namespace.

    For root, pid_max does this (since Linux 6.14); for other users, RLIMIT_NPROC, which counts per user namespace
    (since 5.14).
    """
    return kernel.kernel_at_least(6, 14) if os.geteuid() == 0 else kernel.kernel_at_least(5, 14)


def step_ahead() -> int:
    """Raise this process's priority, so that a fork bomb cannot starve it.

    Returns the nice value for the tree: LOWER_PRIORITY if this process may not have a higher priority, else 0.
    """
    try:
        ahead = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, ahead, os.sched_param(1))
    except OSError:
        return LOWER_PRIORITY
    return 0


def set_limits(limits: "dict[str, float]", namespace: bool, mark: int) -> None:
    """Set the resource limits that descendants inherit.

    Unless `mark` is 0, it becomes the value of RLIMIT_RTTIME, which is otherwise unused. The value identifies all
    processes of the call, even after exec.
    """
    if mark:
        lower(resource.RLIMIT_RTTIME, mark)
    for name, number in LIMITS.items():
        if limits[name]:
            lower(number, int(limits[name]))
    processes = int(limits["processes"])
    if processes:
        counted_per_namespace = namespace and os.geteuid() != 0 and kernel.kernel_at_least(5, 14)
        lower(resource.RLIMIT_NPROC, processes if counted_per_namespace else processes + running_threads())


def lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def running_threads() -> int:
    """The number of threads of all users, which is at least the number of this user's threads."""
    return int(kernel.contents("/proc/loadavg").split()[3].partition(b"/")[2])
