"""Run one program as a tool so that its whole process tree can always be stopped (REQ-BED-005).

Started by `fork_server.py` as an interpreter with `-I -S`, single-threaded, in a session of its own, with an empty
environment: as the fork server, which has everything loaded and forks a host for each call, or as a host.
It imports nothing of this project and as little as possible, because hosts, init and main are copies of that process.

Theory of operation. Three processes, each the only child of the previous one:

    host   forked by the fork server as a child of the server. Exchanges frames with the server,
           forwards output, enforces the time limit, kills.
    init   PID 1 of a new PID namespace if one can be created; otherwise a subreaper like the host.
    main   the program, in a session of its own. Its descendants may do what they like: init inherits them.

In a namespace the kernel kills all processes when init exits. Without one, killing init makes the host inherit all
orphans, and `clear` kills and reaps until the kernel reports that no child is left. Either way the host is done only
when waitpid fails with ECHILD. Which process ends, and what follows:

    KILL received, out of time   the host kills init and clears; likewise beyond the limits of processes or memory
    lease over                   likewise, whether or not the server runs: it may be stopped
    main ended                   its output is drained, then what it left behind is killed likewise
    the server                   the control socket ends or fails: the host clears
    init                         the status pipe ends: the host clears
    the host                     init is signalled: in a namespace it exits, and all others with it; else it clears
    host and init, by the tool   only without a namespace: the server finds what is left by its mark or control group

Lease. A server that shares its store with others lets tools live only until a time, which it moves on for as long as it
may act. The time is in a file in memory: 8 bytes, nanoseconds of CLOCK_MONOTONIC. The host reads it before it begins,
and again when it has come, so that nothing is sent to hosts and they seldom wake. Main compares it once more before it
execs. Init has closed the file before main exists, so no tool ever has it; nobody but the server can write to it.

The host must outlive its server to clean up, so it does not set PR_SET_PDEATHSIG for itself. PR_SET_PDEATHSIG is used
only between these single-threaded processes, because it fires when the *thread* ends that forked. Main is forked only
after INIT was sent to the server: a host that ends before that has certainly started nothing.

Control socket (AF_UNIX, SOCK_SEQPACKET, so a frame is whole or absent even if its writer is killed):

    server → host   the length of the launch in 4 bytes, then the launch (marshal of a dict: both ends are the same
                    interpreter) in packets; later KILL, or SIGNAL and a number for main's process group
    host → server   one byte of kind, then: HOST "pid", INIT "pid namespace grouped", STARTED, FAILED "stage errno",
                    OUTPUT bytes, END "exit signal killed limit leaked milliseconds pid…", CLEARED "pid…" (by init, host
                    dead)

The fork server gets the control socket of each call, and its stdin and stdout if it has its own, through a SEQPACKET
socket, never the launch: nothing of a call is in its memory, which all later hosts copy. It never runs a call, and ends
when that socket does. FAILED "host errno" is its report that it could not fork.

Launch: argv [bytes], python bool (argv[0] is source to run, not a program to exec), cwd bytes, env {bytes: bytes},
limits {name: number, 0 none}, namespace bool, mark number or 0, groups [(path bytes, controllers text, unified bool,
[(file text, content text)])], hide [path bytes], restrict None or {tier "A" or "B", abi number, private path bytes,
protected [path bytes], workspace None or {root path bytes, names [path bytes], denied [path bytes], private path
bytes}}.

Limits. The host enforces the time limit. The kernel limits each single process (rlimits). The number of processes, and
their total memory, are limited by the kernel if the call has control groups (the number of processes also by a
namespace, or the user's own limit); otherwise the host counts (Census).

Restriction. All requested restrictions apply, or main does not exec (FAILED "restrict …", "hide …"). They are applied
by processes of the call itself, so none remains after the call, and in this order, because each step needs rights that
the next one takes away:

    host   user and PID namespace; in tier A for root, too: init's capabilities then reach nothing outside
    init   mount namespace, own /proc, pid_max; tier A: also network, IPC and host name namespaces, masks over what is
           hidden, every mount read-only, private tmpfs over the private directory and /dev/shm
    main   capabilities dropped permanently, no_new_privs, Landlock, seccomp, exec

Tier A needs all of it, tier B only what main does. Masks hide directories; a file in a directory that is shared with
others gets no Landlock rule either, so that a file which replaces it stays inaccessible. In B nothing is masked, and no
protected path has a rule. Mounts are bound to init's namespace and end with it; none propagates outwards.

With a workspace, init is also the broker of main's changes beneath it, see write_broker.py, and has no capabilities
then either; in tier A it has the only place where the workspace is writable: a copy of its mounts that has no path.
"""

# ruff: noqa: SIM105 -- contextlib is one more import at every tool call

import ctypes
import errno
import fcntl
import gc
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from actors.adapters.sandbox.broker import write_broker
else:
    import _signal as signal
    import _socket as socket

    if __name__ == "__main__":
        if "write_broker" not in sys.modules:  # not started by fork_server.py, but from its file
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "broker"))
        import write_broker
    else:
        from actors.adapters.sandbox.broker import write_broker

PROGRAM, PYTHON = b"f", b"p"
KILL, SIGNAL = b"K", b"N"
HOST, INIT, STARTED, FAILED, OUTPUT, END, CLEARED = b"H", b"I", b"S", b"X", b"O", b"E", b"C"

WALL, PROCESSES, MEMORY, LEASE = 1, 2, 3, 4
"""The limits that END can name; 0: none."""

CHUNK = 1 << 16
"""Bytes read from the program at once; the largest frame is one byte longer."""

DRAIN_SECONDS = 0.2
"""Seconds to wait for output after main ended; a background process may keep the pipe open for ever."""

CENSUS_SECONDS = 0.05, 0.2, 0.5
"""Seconds between checks for too many processes, for too much memory, and for processes that the kernel killed because
memory ran out."""

LOOK_SECONDS = 1.0
"""Seconds after which the tree is inspected even if the machine's figures have not changed: memory taken from caches
does not change them."""

LOOKING_SHARE = 20
"""Limits inspections, which are slow for large trees and shared memory: they take at most 1/n of the time."""

BEHIND = 10
"""The nice value of a tree whose host has to count its processes but may not use a real-time priority."""

CLEAR_SECONDS = 3.0
"""Seconds in which the remaining processes must have exited; then the host reports a leak, and continues to kill."""

PASS_SECONDS = 0.005
"""Minimum seconds between a kill and the next search for remaining processes."""

LAST_OUTPUT = 1 << 20
"""Maximum bytes read from the pipe after the tree is dead."""

SNAPSHOT = 128
"""Maximum number of processes that are listed for the kill receipt before a tree is killed."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 23, 24, 28, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x8000, 1
MOUNT_ATTR_RDONLY = 1
LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}
RESERVED_PIDS = 300
"""The kernel reserves the pids below this one, so a namespace's pid_max counts from here."""

PRELOADED = (
    "__future__", "array", "bisect", "contextlib", "dataclasses", "difflib", "json", "pathlib", "re", "subprocess",
    "typing", "unicodedata",
)  # fmt: skip
"""Modules of the standard library that the server's own Python programs import; the fork server imports them when it
starts the first of these programs."""

PRIVATE_BYTES, SHARED_BYTES, PRIVATE_FILES = 1 << 30, 256 << 20, 1 << 18
"""Maximum content of the private directory and of /dev/shm in tier A. In tier B only the size of each file is
limited."""

CLONE_PARENT = 0x00008000
CLONE_INTO_CGROUP, NR_CLONE3 = 1 << 33, 435
NR_OPEN_TREE = 428
NR_MOUNT_SETATTR, NR_LANDLOCK_CREATE, NR_LANDLOCK_ADD, NR_LANDLOCK_RESTRICT = 442, 444, 445, 446
"""System calls that are newer than 2019 have the same number on every architecture."""

libc = ctypes.CDLL(None, use_errno=True)
forking_libc = ctypes.PyDLL(None, use_errno=True)
"""The C library, called without releasing the interpreter's lock, so that a forked child holds it, too."""


class ServerGoneError(Exception):
    """The control socket ended or failed: the server no longer needs this call."""


class NotStartedError(Exception):
    """The program did not start; the reason was sent to the server."""


# --- the process tree -------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """Return the children of `pid`, of all its threads, zombies included; [] if it has ended."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, contents(f"/proc/{pid}/task/{task}/children").split()))
    except OSError:
        pass  # the process or one of its threads has ended meanwhile; the caller inspects again
    return found


def contents(path: "str | bytes") -> bytes:
    """Return the content of a file of /proc or of a control group. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while data := os.read(file, CHUNK):
            found += data
        return found
    finally:
        os.close(file)


def alive(pid: int) -> bool:
    """Return whether `pid` exists and is not a zombie."""
    try:
        return contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def walk(root: int) -> "Iterator[int]":
    """Yield living processes below `root`, parents first, each as soon as its own children are known.

    Killing them as they come stops a fork bomb at its source before all its descendants are inspected.
    """
    seen = children(root)
    for pid in seen:
        seen.extend(children(pid))
        if alive(pid):
            yield pid


def descendants(root: int) -> list[int]:
    """Return the living processes below `root`, parents first."""
    return list(walk(root))


def below(root: int, most: int) -> list[int]:
    """Return processes below `root`, ended ones too, parents first: all, or of very many at least `most`."""
    seen = children(root)
    for pid in seen:
        if len(seen) >= most:
            break
        seen.extend(children(pid))
    return seen


def snapshot(root: int) -> list[int]:
    """Return the processes below `root` that will be killed, for the receipt: at most the first SNAPSHOT.

    The number is limited because the kill waits for it while a fork bomb grows.
    """
    seen = below(root, SNAPSHOT)
    return seen[:SNAPSHOT] if len(seen) >= SNAPSHOT else [pid for pid in seen if alive(pid)]


def send_signal(pid: int, number: int) -> None:
    """Signal `pid`; no effect if it has ended."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap() -> "Iterator[tuple[int, int]]":
    """Yield every child that has ended, with its wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def childless() -> bool:
    """Return whether this process has no child, running or ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def clear(killed: "set[int] | None", seconds: float) -> bool:
    """Kill and reap until no child is left; False if that took longer than `seconds`.

    Adds killed processes to `killed`, unless it is None, which is faster. Children created meanwhile are found by the
    next pass, because this process is their subreaper.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if killed is None:
            kill_all(descendants_unseen(os.getpid()))
        else:
            kill_all(noted(walk(os.getpid()), killed))
        now = time.monotonic()
        if reap_until(now + max(PASS_SECONDS, now - began)):
            return True
        if now > deadline:
            return False


def reap_until(deadline: float) -> bool:
    """Reap until no child is left or the deadline has passed; return whether none is left.

    Searching again while killed processes are still exiting would slow them down.
    """
    while True:
        for _ in reap():
            pass
        if childless():
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, left)


def descendants_unseen(root: int) -> "Iterator[int]":
    """Yield processes below `root`, also ended ones, parents first; only the children of first threads.

    Children of other threads become children of a subreaper once their parent has been killed.
    """
    seen = [root]
    for pid in seen:
        try:
            seen.extend(map(int, contents(f"/proc/{pid}/task/{pid}/children").split()))
        except OSError:
            pass  # ended
        if pid != root:
            yield pid


def noted(pids: "Iterator[int]", killed: "set[int]") -> "Iterator[int]":
    """Yield the processes, and add each to `killed`."""
    for pid in pids:
        killed.add(pid)
        yield pid


def kill_all(pids: "Iterator[int]") -> None:
    """Kill each with its whole process group, which ends at once even if its members fork quickly."""
    groups = {os.getpgrp()}
    for pid in pids:
        try:
            group = os.getpgid(pid)
            if group not in groups:
                groups.add(group)
                os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # ended
        send_signal(pid, signal.SIGKILL)


# --- limits of the kernel, and those monitored here -----------------------------------------------------------------


class Groups:
    """The control groups of one call. Init joins them first; if that fails, the host counts processes and memory.

    Some ways of joining block all forks of the machine for a time. They are avoided: in version 2 init is created in
    the group, in version 1 it joins as a single thread.
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
                    write_file(os.fsdecode(folder) + "/" + name, value)
                if unified:
                    self.born = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                else:
                    self.joined.append(os.open(folder + b"/tasks", os.O_WRONLY | os.O_CLOEXEC))
            except OSError:
                continue
            self.held.update(controllers.split())

    def fork(self) -> int:
        """Fork into the groups; raises OSError if that fails, and then there is no child."""
        if self.born < 0:
            return os.fork()
        arguments = struct_of_words(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, self.born)
        return checked(forking_libc.syscall(NR_CLONE3, arguments, len(arguments)))

    def join(self) -> None:
        """Join the groups of version 1, which init is not created in."""
        for file in self.joined:
            os.write(file, b"0")

    def starved(self) -> bool:
        """Return whether the kernel has killed a process of the groups because memory ran out."""
        for folder in self.folders:
            for name in (b"/memory.events", b"/memory.oom_control"):
                try:
                    lines = contents(folder + name).splitlines()
                except OSError:
                    continue
                if any(line.startswith(b"oom_kill ") and not line.endswith(b" 0") for line in lines):
                    return True
        return False

    def kill(self) -> None:
        """Prevent further forks in the groups, and kill all their processes, as far as the groups support it."""
        for folder in self.folders:
            for name, value in (("cgroup.kill", "1"), ("pids.max", "0")):
                try:
                    write_file(os.fsdecode(folder) + "/" + name, value)
                except OSError:
                    pass  # the file does not exist in this version, or with this controller
        for folder in self.folders[:1]:
            try:
                for pid in contents(folder + b"/cgroup.procs").split():
                    send_signal(int(pid), signal.SIGKILL)
            except OSError:
                pass  # it may be found among the descendants instead

    def remove(self) -> None:
        """Remove the groups, as far as they are empty."""
        for folder in self.folders:
            try:
                os.rmdir(folder)
            except OSError:
                pass  # a process is still in it; the server removes it later


def struct_of_words(*words: int) -> bytes:
    """Encode 64-bit words as a C struct."""
    return b"".join(word.to_bytes(8, sys.byteorder) for word in words)


class Census:
    """Monitors limits that the kernel does not enforce: the number of processes of a tree, and their total memory.

    The figures of the whole machine are cheap to read. The tree is inspected when they have changed by a considerable
    part of a limit, and every LOOK_SECONDS. Only memory that cannot be reclaimed counts: the processes' shares of
    anonymous memory, and shared memory, as far as the machine has more of it than before the call and the tree could
    own it.
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
        """Return when to check next (monotonic seconds); None: never."""
        return self.at if self.processes or self.memory or self.groups.joined else None

    def exceeded(self, root: int) -> int:
        """Return the limit that the tree below `root` exceeds, 0 for none."""
        now = time.monotonic()
        if self.due() is None or now < self.at:
            return 0
        self.at = now + self.seconds
        if self.groups.joined and self.groups.starved():
            return MEMORY  # in version 1 the kernel kills only one process
        if not (self.processes or self.memory):
            return 0
        if not self.moved(now):
            return 0
        pids = below(root, self.processes + 1 if self.processes else sys.maxsize)
        limit = PROCESSES if 0 < self.processes < len(pids) else 0
        if not limit and self.memory and self.over_memory(pids, now):
            limit = MEMORY
        self.look_at = now + max(LOOK_SECONDS, (time.monotonic() - now) * LOOKING_SHARE)
        return limit

    def moved(self, now: float) -> bool:
        """Return whether the tree may have grown by a part of a limit since its last inspection."""
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
        """Return whether these processes together exceed the memory limit; measured only if an upper bound does."""
        grown = max(0, self.shared - self.shared_before)
        if sum(map(unshared_at_most, pids)) + grown <= self.memory or now < self.measure_at:
            return False
        used = sum(map(unshared, pids)) + (min(grown, shareable(pids)) if grown else 0)
        took = time.monotonic() - now
        self.measure_at = now + took * LOOKING_SHARE
        return used > self.memory


def machine_figures() -> "tuple[int, int, int]":
    """Return the machine's threads, its free bytes, and its shared bytes (memory file systems and shared memory)."""
    found = SystemInformation()
    checked(libc.sysinfo(ctypes.byref(found)))
    return found.threads, found.free * found.unit, found.shared * found.unit


class SystemInformation(ctypes.Structure):
    """The C struct sysinfo."""

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
    """Return the value in kilobytes after `name`, converted to bytes; 0 if there is no such line."""
    return int((lines.partition(name)[2].split(None, 1) or [b"0"])[0]) << 10


def unshared_at_most(pid: int) -> int:
    """Return an upper bound for the anonymous memory of a process in bytes; 0 if it has ended.

    Includes memory that it shares with the processes it was forked from.
    """
    try:
        _, resident, shared, *_ = contents(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def unshared(pid: int) -> int:
    """Return the anonymous memory of a process in bytes, with its share of shared pages.

    For a process that must not be inspected, returns the upper bound.
    """
    try:
        return figure(contents(f"/proc/{pid}/smaps_rollup"), b"Pss_Anon:")
    except OSError:
        return unshared_at_most(pid)


def shareable(pids: "list[int]") -> int:
    """Return the bytes of shared memory that these processes could own: all that they have mapped or opened."""
    sizes: dict[tuple[int, int], int] = {}
    try:
        for pid in pids:
            for found in (mapped_memory(pid), opened_memory(pid)):
                for key, size in found.items():
                    sizes[key] = max(size, sizes.get(key, 0))
    except FileNotFoundError:
        return shareable([pid for pid in pids if alive(pid)])
    except OSError:
        return sys.maxsize  # the process cannot be inspected
    return sum(sizes.values())


def mapped_memory(pid: int) -> "dict[tuple[int, int], int]":
    """Return the shared memory in a process's address space: bytes by device and inode."""
    found: dict[tuple[int, int], int] = {}
    for line in contents(f"/proc/{pid}/maps").splitlines():
        place, _, _, device, inode, *name = line.split(None, 5)
        if name and name[0].startswith((b"/memfd:", b"/SYSV", b"/dev/zero (deleted)")):
            start, _, end = place.partition(b"-")
            major, _, minor = device.partition(b":")
            key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            found[key] = found.get(key, 0) + int(end, 16) - int(start, 16)
    return found


def opened_memory(pid: int) -> "dict[tuple[int, int], int]":
    """Return the memory files that a process has open: bytes by device and inode."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                about = os.stat(path)
                found[about.st_dev, about.st_ino] = about.st_blocks * 512
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def counts_per_namespace() -> bool:
    """Return whether the kernel can limit the number of processes in one namespace.

    For root the limit is the PID namespace's pid_max (Linux 6.14), otherwise RLIMIT_NPROC, which is counted per user
    namespace (5.14).
    """
    return kernel_at_least(6, 14) if os.geteuid() == 0 else kernel_at_least(5, 14)


def step_ahead() -> int:
    """Raise this process's priority above that of the tree, so that a fork bomb cannot starve the monitoring.

    Returns the nice value for the tree instead if this process may not.
    """
    try:
        ahead = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, ahead, os.sched_param(1))
    except OSError:
        return BEHIND
    return 0


class Lease:
    """Until when tools may live: a time in a file that the server writes; without a file (-1) for ever."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.until = sys.maxsize if file < 0 else 0
        """In nanoseconds of CLOCK_MONOTONIC, as it was last read."""

    def over(self) -> bool:
        """Return whether the time has come; reads it again when what was last read has passed."""
        if self.passed() and self.file >= 0:
            self.read()
        return self.passed()

    def passed(self) -> bool:
        """Return whether the time has come that was last read."""
        return time.monotonic_ns() >= self.until

    def read(self) -> None:
        """Read the time; twice, until both agree, because it may be written meanwhile. Raises OSError."""
        before = b""
        while (found := os.pread(self.file, 8, 0)) != before:
            before = found
        self.until = int.from_bytes(found, sys.byteorder)

    def check(self) -> None:
        """Raise OSError if the time has come that was last read."""
        if self.passed():
            raise OSError(errno.ETIME, "the lease is over")

    def leave(self) -> None:
        """Read the time for the last time, and close the file."""
        if self.file >= 0:
            self.read()
            os.close(self.file)


# --- namespaces -------------------------------------------------------------------------------------------------------


def kernel_at_least(*version: int) -> bool:
    """Return whether the kernel has this version or a newer one."""
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= version


def checked(result: int) -> int:
    """Return the result of a C function; raises OSError if it reports failure."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the kernel")
    return result


def enter_pid_namespace(restricted: bool = False) -> bool:
    """Make the next child PID 1 of a new namespace; False if the kernel refuses.

    Unrestricted root needs no user namespace. Other users get one that maps only their own user and group, so programs
    that become another user do not work there, and files of other users appear as owned by the overflow user.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and not restricted:
        return bool(libc.unshare(CLONE_NEWPID) == 0)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        write_file(f"/proc/self/{name}", text)
    return True


def write_file(path: str, text: str) -> None:
    """Write a short text to an existing file. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def arrange_mounts(launch: "dict[str, Any]", namespace: bool) -> None:
    """Set up the mounts of init and all its descendants. Raises OSError if that is required but impossible.

    In tier A a workspace gets `place`, a descriptor of where it is writable.
    """
    restriction, hidden = launch["restrict"], launch["hide"]
    closed = restriction["private"] if restriction is not None and restriction["tier"] == "A" else None
    if not namespace:
        if closed or hidden:
            raise OSError(errno.ENOSYS, "needs a PID namespace")
        return
    try:
        unshare_mounts(bool(closed), bool(hidden))
        mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        if closed or hidden:
            raise
        return  # the outer /proc stays visible
    limit_pids(int(launch["limits"]["processes"]))
    if closed and restriction is not None and restriction["readable"] is not None:
        enter_root(closed, restriction["readable"])
    for path in hidden:
        mask(path)
    if closed and restriction is not None:
        workspace = restriction["workspace"]
        if workspace is not None:
            workspace["place"] = copied_mounts(workspace["root"])
        close_mounts(closed)


def arrange_mounts_or_why_not(launch: "dict[str, Any]", namespace: bool) -> bytes:
    """Set up the mounts; return "stage errno" if that failed, b"" if not."""
    try:
        arrange_mounts(launch, namespace)
    except OSError as error:
        return f"{'hide' if launch['restrict'] is None else 'restrict'} {error.errno or 0}".encode()
    return b""


def unshare_mounts(closed: bool, hiding: bool) -> None:
    """Enter a mount namespace whose changes stay inside, and for tier A the other namespaces too.

    Later mounts outside become visible inside, except in tier A, where they would be writable. If there is nothing to
    hide, only /proc is separated, so that mounts behave for the program as they do outside.
    """
    others = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    checked(libc.unshare(CLONE_NEWNS | (others if closed else 0)))
    if closed:
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    elif hiding:
        mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE)


def enter_root(private: bytes, readable: "list[bytes]") -> None:
    """Make a root directory with nothing in it but these paths, /proc and harmless devices. Raises OSError.

    It is built on the mount point `private`, which exists in it too. Links are copied, everything else is the same
    file as outside; what does not exist is left out.
    """
    mount(b"tmpfs", private, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m,nr_inodes=4k")
    for path in (b"/proc", *DEVICES, *readable):
        show(path, private)
    for folder in (b"/dev/shm", private):
        os.makedirs(private + folder, exist_ok=True)
    for name, target in STANDARD_FILES:
        os.symlink(target, private + name)
    os.chdir(private)
    checked(libc.syscall(NUMBERS[os.uname().machine]["pivot_root"], b".", b"."))
    checked(libc.umount2(b".", MNT_DETACH))
    os.chdir(b"/")


def show(path: bytes, root: bytes) -> None:
    """Make a path appear beneath a new root, with all that is mounted below it. Raises OSError."""
    place = root + path
    if not os.path.lexists(path) or os.path.lexists(place):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    mount(path, place, None, MS_BIND | MS_REC)


def close_mounts(private: bytes) -> None:
    """Make every mount read-only, except for two empty tmpfs: the private directory and shared memory."""
    make_read_only(b"/", AT_RECURSIVE)
    mount_memory(private, PRIVATE_BYTES)
    if os.path.isdir(b"/dev/shm"):
        mount_memory(b"/dev/shm", SHARED_BYTES)


def copied_mounts(path: bytes) -> int:
    """Return a descriptor of a copy of the mounts at and below `path` that is nowhere in the file system."""
    return checked(libc.syscall(NR_OPEN_TREE, AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC))


def mount_memory(path: bytes, size: int) -> None:
    """Mount an empty tmpfs of `size` bytes."""
    mount(b"tmpfs", path, b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={size},nr_inodes={PRIVATE_FILES}".encode())


def mask(path: bytes) -> None:
    """Hide a file or a directory under an empty one; a path that does not exist needs none."""
    if os.path.isdir(path):
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        mount(b"tmpfs", path, b"tmpfs", flags, b"mode=000,size=4k,nr_inodes=2")
    elif os.path.lexists(path):
        mount(b"/dev/null", path, None, MS_BIND)
        make_read_only(path, 0)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    """Mount a file system through the C library. Raises OSError."""
    checked(libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def make_read_only(path: bytes, how: int) -> None:
    """Make a mount read-only. Raises OSError."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    checked(libc.syscall(NR_MOUNT_SETATTR, AT_FDCWD, path, how, ctypes.byref(attributes), ctypes.sizeof(attributes)))


def limit_pids(processes: int) -> None:
    """Limit the processes of this namespace, including those of root, if the kernel has a pid_max per namespace."""
    if processes and os.geteuid() == 0 and kernel_at_least(6, 14):
        try:
            write_file("/proc/sys/kernel/pid_max", str(RESERVED_PIDS + processes))
        except OSError:
            pass  # the tree can be killed without it, too


# --- main: the program ------------------------------------------------------------------------------------------------


def become(call: "Host", host: int, channel: int) -> "NoReturn":
    """Turn this process into the program; if that fails, write "stage errno" to its pipe and end.

    `host`: its pid. `channel`: a socket on which the listener of its filter is given to init, or -1.
    """
    launch, namespace, pipes = call.launch, call.namespace, call.pipes
    report = pipes.report_end
    stage = "session"
    try:
        os.setsid()
        restore_signals()
        stage = "cwd"
        os.chdir(launch["cwd"])
        stage = "limits"
        set_limits(launch["limits"], namespace, launch["mark"])
        stage = "files"
        report, channel = arrange_files(launch["streams"], pipes, channel)
        stage = "restrict"
        restrict(launch["restrict"], () if namespace else (os.getppid(), host), channel)
        stage = "lease"
        call.lease.check()
        stage = "exec"
        if launch["python"]:
            os.close(report)
            run_python(launch["argv"], launch["env"])
        execute(launch["argv"], launch["env"])
    except BaseException as error:  # noqa: BLE001 -- after any error the program has not started
        os.write(report, f"{stage} {getattr(error, 'errno', None) or 0}".encode())
    finally:
        os._exit(127)


def restore_signals() -> None:
    """Reset signals that this process, its parents or the server's starter block or ignore."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_limits(limits: "dict[str, float]", namespace: bool, mark: int) -> None:
    """Limit the resources of one process. The mark is a limit without effect that is kept by every exec."""
    if mark:
        lower(resource.RLIMIT_RTTIME, mark)
    for name, number in LIMITS.items():
        if limits[name]:
            lower(number, int(limits[name]))
    processes = int(limits["processes"])
    if processes:
        counted_per_namespace = namespace and os.geteuid() != 0 and kernel_at_least(5, 14)
        lower(resource.RLIMIT_NPROC, processes if counted_per_namespace else processes + running_threads())


def lower(limit: int, value: int) -> None:
    """Set a limit, never above the server's own."""
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def running_threads() -> int:
    """Return the number of threads on the whole machine: an upper bound for the user's, which RLIMIT_NPROC limits."""
    return int(contents("/proc/loadavg").split()[3].partition(b"/")[2])


def arrange_files(streams: "tuple[int, ...]", pipes: "Pipes", channel: int) -> tuple[int, int]:
    """Keep only the three standard streams, the pipe for errors and `channel`; return the new numbers of both.

    `streams`: stdin and stdout, as far as they are not those of other programs: /dev/null, and the pipe for output. It
    is not the host's /dev/null, which is on a mount that can be changed. A `channel` of -1 is none.
    """
    output, report = pipes.output_end, pipes.report_end
    if channel >= 0:
        channel = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, 5)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number, stream in enumerate(streams or (os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC),)):
        os.dup2(stream, number)
    if report != 3:
        os.dup2(report, 3, inheritable=False)
    if channel >= 0:
        os.dup2(channel, 4, inheritable=False)
    os.closerange(4 if channel < 0 else 5, os.sysconf("SC_OPEN_MAX"))
    return 3, min(channel, 4)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Exec argv[0], searched on the program's own PATH. Raises OSError if there is none."""
    program, failure = argv[0], OSError(errno.ENOENT, "not found")
    folders = [b""] if b"/" in program else env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), argv, env)  # noqa: S606 -- no shell is meant
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                failure = error
    raise failure


def run_python(argv: "list[bytes]", env: "dict[bytes, bytes]") -> "NoReturn":
    """Run argv[0], which is Python source, like `python -I -S -c`, and end this process."""
    status = 1
    try:
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()})
        sys.argv = ["-c", *map(os.fsdecode, argv[1:])]
        exec(compile(argv[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102 -- it is the program
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 -- as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        flush_output()
        os._exit(status & 0xFF)


def flush_output() -> None:
    """Flush the standard streams, as the interpreter does at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass


# --- the restriction of main ------------------------------------------------------------------------------------------

CAPABILITY_VERSION_3, CAP_SETPCAP = 0x20080522, 8
SECUREBITS = 0b11101111
"""NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE on, KEEP_CAPS off, and all of them locked."""


def restrict(section: "dict[str, Any] | None", keepers: "tuple[int, ...]" = (), channel: int = -1) -> None:
    """Apply a restriction to this process, irreversibly. Raises OSError if it cannot be enforced.

    `keepers`: the pids of init and the host if the program shares their PID namespace, else (): it must not be able to
    kill them. `channel`: a socket for the listener of a workspace's system calls; closed.
    """
    if section is None:
        return
    if section["tier"] not in {"A", "B"}:
        raise OSError(errno.ENOSYS, "no such restriction")
    brokered = section["workspace"] is not None
    apart = section["tier"] == "B" and section["readable"] is not None
    program = filters.get((section["tier"], section["abi"], brokered)) if not (keepers or apart) else None
    if program is None:
        machine, tier, abi = os.uname().machine, section["tier"], section["abi"]
        program = seccomp_program(machine, tier, abi, keepers, brokered, apart=apart)
    drop_capabilities()
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    apply_landlock(section)
    if brokered:
        hand_over(write_broker.install(described(program)), channel)
    else:
        apply_seccomp(program)


def hand_over(listener: int, channel: int) -> None:
    """Give a listener to init and wait until it serves; neither it nor the channel stays open here. Raises OSError."""
    sender = socket.socket(fileno=channel)
    sender.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, listener.to_bytes(4, sys.byteorder))])
    os.close(listener)
    if not sender.recv(1):
        raise OSError(errno.EPROTO, "nobody serves it")
    sender.close()


def drop_capabilities() -> None:
    """Drop all capabilities and every way to regain them, root's included.

    Without CAP_SETPCAP the bounding set remains, but then nothing can be regained anyway, because no_new_privs is set
    next.
    """
    if has_setpcap():
        checked(libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))
        capability = 0
        while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
            capability += 1
        if libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
            raise OSError(errno.EPERM, "the bounding set cannot be emptied")
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()))
    if any(capabilities()):
        raise OSError(errno.EPERM, "capabilities are left")


def capabilities() -> "list[int]":
    """Return the effective, permitted and inheritable capabilities: the lower 32 bits of each, then the upper ones."""
    sets = (ctypes.c_uint32 * 6)()
    checked(libc.capget((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), sets))
    return list(sets)


def has_setpcap() -> bool:
    """Return whether this process has CAP_SETPCAP."""
    return bool(capabilities()[0] & 1 << CAP_SETPCAP)


# --- Landlock ---------------------------------------------------------------------------------------------------------

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule for a file can grant, as opposed to a directory."""

LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_ABI = 7
"""The newest version of Landlock whose features are used here."""

TRUNCATION_ABI = 3
"""The first version of Landlock that can restrict the truncation of files."""

SIGNALS_ABI = 6
"""The first version of Landlock that can confine signals to the sandbox."""

DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")
STANDARD_FILES = (
    (b"/dev/fd", b"/proc/self/fd"), (b"/dev/stdin", b"/proc/self/fd/0"), (b"/dev/stdout", b"/proc/self/fd/1"),
    (b"/dev/stderr", b"/proc/self/fd/2"),
)  # fmt: skip
"""The links of /dev to the open files of a process."""


def file_rights(abi: int) -> int:
    """Return all rights to files that this version of Landlock can restrict."""
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return (1 << bits) - 1


def ruleset_attributes(abi: int) -> "list[int]":
    """Return struct landlock_ruleset_attr of this version: files, then TCP, then abstract sockets and signals."""
    return [file_rights(abi), 0b11, 0b11][: 3 if abi >= 6 else 2 if abi >= 4 else 1]


def apply_landlock(section: "dict[str, Any]") -> None:
    """Allow reading anything but protected paths and writing in the private directory only; close the network.

    With `readable` paths nothing else can be read; in tier A there is nothing else. Only DEVICES can be opened: a disk
    would reveal protected files, a terminal the user's input. In tier A masks hide protected directories, so that
    usually no rules for the paths around them are needed.
    """
    abi = min(section["abi"], LANDLOCK_ABI)
    if abi < 1:
        raise OSError(errno.ENOSYS, "no Landlock")
    numbers = ruleset_attributes(abi)
    attributes = (ctypes.c_uint64 * len(numbers))(*numbers)
    ruleset = checked(libc.syscall(NR_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.sizeof(attributes), 0))
    rights = file_rights(abi)
    grant_reading(ruleset, section)
    if section["tier"] == "A":
        grant(ruleset, b"/dev/shm", rights)
    for device in DEVICES:
        grant(ruleset, device, rights & FILE_RIGHTS & ~EXECUTE)
    if not grant(ruleset, section["private"], rights):
        raise OSError(errno.ENOENT, "no private directory")
    checked(libc.syscall(NR_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def grant_reading(ruleset: int, section: "dict[str, Any]") -> None:
    """Allow reading everything that is not protected, or in tier B only what is `readable`, and names in `listable`."""
    tops = [b"/"]
    if section["readable"] is None or section["tier"] == "A":
        grant(ruleset, b"/", READ_DIR)
    else:
        tops = [path for path in section["readable"] if os.path.exists(path) and not os.path.islink(path)]
        for path in around(section["listable"], section["protected"]):
            grant(ruleset, path, READ_DIR)
    for top in tops:
        for path in around(top, [b"/dev", *section["protected"]]):
            grant(ruleset, path, READ)


def around(folder: bytes, protected: list[bytes]) -> "Iterator[bytes]":
    """Yield the fewest paths that cover `folder` without the protected ones; none if it is, or lies in, one of them."""
    if any(within(folder, path) for path in protected):
        return
    if not any(within(path, folder) for path in protected):
        yield folder
        return
    for entry in os.scandir(folder):
        if not entry.is_symlink():
            yield from around(entry.path, protected)


def within(path: bytes, folder: bytes) -> bool:
    """Return whether `path` is `folder` or below it."""
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def grant(ruleset: int, path: bytes, rights: int) -> bool:
    """Allow `rights` below `path`; False if it does not exist or cannot be opened: then access stays denied."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.stat(place).st_mode & 0o170000 != 0o040000:
            rights &= FILE_RIGHTS
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        checked(libc.syscall(NR_LANDLOCK_ADD, ruleset, 1, rule, 0))
    finally:
        os.close(place)
    return True


# --- seccomp ----------------------------------------------------------------------------------------------------------

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
"""Operations of classic BPF on words."""

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN, PRETEND = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x00050000
"""Filter results: the system call fails with this error, or does nothing and reports success."""

UNSUPPORTED, NOTIFY = 0x00050000 | errno.EOPNOTSUPP, 0x7FC00000
"""Filter results: the system call fails with this error, or waits for what the holder of the listener says."""

NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data; an argument takes 8 bytes, the lower half first."""

X32_BIT = 0x40000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

DENIED = """
accept accept4 bind connect listen socket
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp migrate_pages move_pages
io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key bpf perf_event_open userfaultfd fanotify_init
unshare setns mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
mount_setattr open_by_handle_at swapon swapoff acct quotactl quotactl_fd sethostname setdomainname kexec_load
kexec_file_load init_module finit_module delete_module reboot settimeofday clock_settime adjtimex clock_adjtime iopl
ioperm syslog vhangup shmget
"""
"""System calls refused with EPERM regardless of arguments: those for the network, other processes and the machine; and
for shared memory without an owner, which no limit includes."""

DENIED_IN_B = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat setxattr lsetxattr fsetxattr
setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr shmat shmctl semget semop
semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
"""Also refused without namespaces: changes of metadata, which Landlock does not restrict, and memory and queues shared
by name."""

REPORTED = """
creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 symlink symlinkat truncate
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
"""
"""System calls that the broker of a workspace is asked about regardless of arguments. Hard links, pipes, sockets and
devices are not made in a workspace, nor are attributes set by name."""

ATTRIBUTES = "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr"
"""System calls that fail as on a file system without attributes in a workspace of tier B: programs then do without."""

READ_ATTRIBUTES = "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr getxattrat listxattrat"
"""System calls that fail as on a file system without attributes where principals are kept apart in tier B."""

O_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY

X86_64 = {
    "open": 2, "ioctl": 16, "access": 21, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42,
    "accept": 43, "sendto": 44, "bind": 49, "listen": 50, "socketpair": 53, "clone": 56, "kill": 62, "semget": 64,
    "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "fcntl": 72, "truncate": 76,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "unlink": 87, "symlink": 88, "chmod": 90,
    "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103, "rt_sigqueueinfo": 129,
    "utime": 132, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153,
    "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "getxattr": 191, "lgetxattr": 192, "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196,
    "inotify_init": 253, "inotify_init1": 294,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "sched_setaffinity": 203,
    "semtimedop": 220, "clock_settime": 227, "tgkill": 234, "utimes": 235, "mq_open": 240, "mq_unlink": 241,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256,
    "openat": 257, "mkdirat": 258, "fchownat": 260, "futimesat": 261, "unlinkat": 263, "renameat": 264,
    "symlinkat": 266, "fchmodat": 268, "faccessat": 269, "unshare": 272, "move_pages": 279,
    "utimensat": 280, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300,
    "prlimit64": 302, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "renameat2": 316,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
AARCH64 = {
    "getxattr": 8, "lgetxattr": 9, "fgetxattr": 10, "listxattr": 11, "llistxattr": 12, "flistxattr": 13,
    "inotify_init1": 26,
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "mkdirat": 34, "unlinkat": 35,
    "symlinkat": 36, "renameat": 38, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "faccessat": 48,
    "chroot": 51, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "openat": 56, "vhangup": 58,
    "quotactl": 60, "utimensat": 88, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "sethostname": 161, "setdomainname": 162,
    "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188,
    "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195,
    "shmat": 196, "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203,
    "sendto": 206, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225,
    "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242,
    "prlimit64": 261, "fanotify_init": 262, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "sched_setattr": 274,
    "renameat2": 276, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
NUMBERS = {"x86_64": X86_64, "aarch64": AARCH64}
EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "faccessat2": 439, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "getxattrat": 464, "listxattrat": 465,
    "removexattrat": 466, "open_tree_attr": 467,
    "file_setattr": 469,
}  # fmt: skip

NAMESPACE_FLAGS = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
AF_UNIX, SOCK_TYPE_MASK = 1, 0xF
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
STREAM_PAIRS = (1, 5)
"""The allowed types of socket pairs, SOCK_STREAM and SOCK_SEQPACKET: a datagram socket could still send to any
address."""

TERMINAL_INPUT = (0x5412, 0x541C)
"""The ioctls TIOCSTI and TIOCLINUX, which insert input into a terminal."""

SIGNAL_OWNER = (8, 15)
"""Requests that select a process to be signalled: F_SETOWN and F_SETOWN_EX for files, FIOSETOWN and SIOCSPGRP for
sockets."""

SOCKET_OWNER = (0x8901, 0x8902)
LEASES = (1024, 1040)
"""F_SETLEASE and F_SETDELEG, which can block processes outside the sandbox that open the file."""

HARMLESS_IOCTLS = (0x40049409, 0x4020940D, 0xC020660B, 2)
"""Allowed ioctls: FICLONE and FICLONERANGE, which need a file opened for writing; FS_IOC_FIEMAP and FIGETBSZ, which
only read."""

IOCTL_WRITES, IOCTL_READS = 0x40000000, 0x80000000
IOCTL_KINDS = (0x5400, 0x8900)
"""Allowed types of ioctls: those of terminals and of all files, and those of sockets. Of other types only ioctls that
read are allowed: those of file systems change attributes, versions and subvolumes even through a file opened for
reading; the others are for devices."""


def seccomp_program(
    machine: str, tier: str, abi: int, keepers: "tuple[int, ...]" = (), brokered: bool = False, *, apart: bool = False
) -> bytes:
    """Return the filter for this architecture. Raises OSError for one whose system calls are not known here.

    `brokered`: init's broker is asked about what changes the file system. `apart`: what Landlock does not restrict of
    reading is refused, too.
    """
    table = NUMBERS.get(machine)
    if table is None or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, "no system call filter for this architecture")
    numbers = table | EVERYWHERE
    program = header(machine)
    calls = inspected(tier, abi, keepers) | (reported(tier) if brokered else {}) | (unread() if apart else {})
    for name, body in calls.items():
        if name in numbers:
            program += test(EQUAL, numbers[name], 0, len(body)) + body
    denied = [numbers[name] for name in denied_names(tier, abi) if name in numbers]
    for left in range(len(denied), 0, -1):
        program += test(EQUAL, denied[-left], left, 0)
    return b"".join(program + result(ALLOW) + result(REFUSE))


def denied_names(tier: str, abi: int) -> "list[str]":
    """Return the system calls without any allowed use. Landlock handles truncation from version 3 on."""
    names = list[str](DENIED.split())
    if tier == "B":
        names += DENIED_IN_B.split()
        if abi < 3:
            names.append("truncate")
    return names


def header(machine: str) -> "list[bytes]":
    """Kill system calls of another architecture; leave the number of the system call loaded."""
    program = load(ARCHITECTURE) + test(EQUAL, ARCHITECTURES[machine], 1, 0) + result(KILL_PROCESS) + load(NUMBER)
    if machine == "x86_64":
        program += test(AT_LEAST, X32_BIT, 0, 1) + result(UNKNOWN)
    return program


def inspected(tier: str, abi: int, keepers: "tuple[int, ...]" = ()) -> "dict[str, list[bytes]]":
    """Return the system calls that depend on their arguments, with the code that decides."""
    oneself = all_equal((0, 0))
    calls = {
        "clone3": result(UNKNOWN),  # its flags are in memory; the C library then uses clone
        "clone": argument(0) + test(ANY_BIT, NAMESPACE_FLAGS, 0, 1) + result(REFUSE) + result(ALLOW),
        "socketpair": argument(0) + test(EQUAL, AF_UNIX, 1, 0) + result(REFUSE) + pair_kind(),
        # allowed without an address, because event loops wake themselves like this
        "sendto": all_equal((4, 0), (4.5, 0)),
        "prlimit64": oneself,
        "sched_setaffinity": oneself,
        "sched_setscheduler": oneself,
        "sched_setparam": oneself,
        "sched_setattr": oneself,
        "setpriority": all_equal((0, PRIO_PROCESS), (1, 0)),
        "ioprio_set": all_equal((0, IOPRIO_WHO_PROCESS), (1, 0)),
        "fcntl": argument(1) + choice(SIGNAL_OWNER + LEASES, found=REFUSE, other=ALLOW),
        "ioctl": ioctls(tier),
    }
    if tier == "B":
        # allowed for touch, which sets the times of a new file to now: that has no effect
        calls["utimensat"] = all_equal((1, 0), (1.5, 0), (2, 0), (2.5, 0), then=PRETEND)
    if tier == "B" and abi < 3:
        calls["open"] = unless_truncating_reader(1)
        calls["openat"] = unless_truncating_reader(2)
        calls["openat2"] = result(UNKNOWN)  # its flags are in memory; programs then use openat
    if tier == "B" and abi < SIGNALS_ABI and keepers:
        calls |= signals(keepers)
    return calls


def reported(tier: str) -> "dict[str, list[bytes]]":
    """Return the system calls that the broker of a workspace is asked about, with the code that decides."""
    ask = result(NOTIFY)
    calls: dict[str, list[bytes]] = dict.fromkeys(REPORTED.split(), ask)
    calls["open"], calls["openat"] = unless_reading(1), unless_reading(2)
    calls["openat2"] = result(UNKNOWN)  # its flags are in memory; programs then use openat
    for name, number in (("access", 1), ("faccessat", 2), ("faccessat2", 2)):
        calls[name] = argument(number) + test(ANY_BIT, os.W_OK, 0, 1) + ask + result(ALLOW)
    if tier == "B":
        calls |= dict.fromkeys(ATTRIBUTES.split(), result(UNSUPPORTED))
    return calls


def unread() -> "dict[str, list[bytes]]":
    """Refuse what tells of files that Landlock lets nobody read: watching a directory, and attributes."""
    calls: dict[str, list[bytes]] = dict.fromkeys(READ_ATTRIBUTES.split(), result(UNSUPPORTED))
    calls |= dict.fromkeys(("inotify_init", "inotify_init1"), result(UNKNOWN))
    return calls


def unless_reading(flags: int) -> "list[bytes]":
    """Ask the broker about opening unless it is for reading only; `flags`: the number of the argument."""
    program = argument(flags) + mask_word(os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | O_TMPFILE)
    return program + test(EQUAL, os.O_RDONLY, 0, 1) + result(ALLOW) + result(NOTIFY)


def signals(keepers: "tuple[int, ...]") -> "dict[str, list[bytes]]":
    """Refuse signals to these processes and their groups, to all processes, and through pidfds."""
    spared = tuple(number & 0xFFFFFFFF for number in (-1, *keepers, *(-each for each in keepers)))
    first, second = (argument(each) + choice(spared, found=REFUSE, other=ALLOW) for each in (0, 1))
    return {
        "kill": first, "tkill": first, "rt_sigqueueinfo": first, "tgkill": second, "rt_tgsigqueueinfo": second,
        "pidfd_send_signal": result(UNKNOWN),
    }  # fmt: skip


def pair_kind() -> "list[bytes]":
    """Allow socket pairs of streams and packets only."""
    return argument(1) + mask_word(SOCK_TYPE_MASK) + choice(STREAM_PAIRS, found=ALLOW, other=REFUSE)


def ioctls(tier: str) -> "list[bytes]":
    """Allow ioctls without outside effects; refuse those that insert terminal input or send signals."""
    if tier == "A":
        return argument(1) + choice(TERMINAL_INPUT + SOCKET_OWNER, found=REFUSE, other=ALLOW)
    program = argument(1)
    for number in TERMINAL_INPUT + SOCKET_OWNER:
        program += test(EQUAL, number, 0, 1) + result(REFUSE)
    for number in HARMLESS_IOCTLS:
        program += test(EQUAL, number, 0, 1) + result(ALLOW)
    program += test(ANY_BIT, IOCTL_WRITES, 2, 0) + test(ANY_BIT, IOCTL_READS, 0, 1) + result(ALLOW)
    return program + mask_word(0xFF00) + choice(IOCTL_KINDS, found=ALLOW, other=REFUSE)


def unless_truncating_reader(flags: int) -> "list[bytes]":
    """Refuse O_RDONLY with O_TRUNC, which old Landlock misses; `flags`: the number of the argument."""
    truncates = mask_word(os.O_ACCMODE | os.O_TRUNC) + test(EQUAL, os.O_RDONLY | os.O_TRUNC, 0, 1)
    return argument(flags) + truncates + result(REFUSE) + result(ALLOW)


def all_equal(*wanted: "tuple[float, int]", then: int = ALLOW) -> "list[bytes]":
    """Allow only calls with these values of arguments, by number; .5 is the upper half of an argument."""
    program: list[bytes] = []
    for number, value in wanted:
        program += argument(number) + test(EQUAL, value, 1, 0) + result(REFUSE)
    return program + result(then)


def choice(values: "tuple[int, ...]", *, found: int, other: int) -> "list[bytes]":
    """Return BPF code that returns `found` if the loaded word is one of `values`, else `other`."""
    program: list[bytes] = []
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        program += test(EQUAL, value, left, 0)
    return program + result(other) + result(found)


def argument(number: float) -> "list[bytes]":
    """Load the lower half of an argument; .5 is the upper half."""
    return load(ARGUMENTS + int(8 * number))


def load(offset: int) -> "list[bytes]":
    """Load the word at this offset of struct seccomp_data."""
    return [instruction(LOAD, 0, 0, offset)]


def mask_word(bits: int) -> "list[bytes]":
    """Apply a bit mask to the loaded word."""
    return [instruction(AND, 0, 0, bits)]


def test(operation: int, value: int, yes: int, no: int) -> "list[bytes]":
    """Compare the loaded word and skip `yes` or `no` of the next instructions."""
    return [instruction(operation, yes, no, value)]


def result(action: int) -> "list[bytes]":
    """Return the instruction that ends the filter with this action."""
    return [instruction(RETURN, 0, 0, action)]


def instruction(operation: int, yes: int, no: int, value: int) -> bytes:
    """Encode a struct sock_filter."""
    return operation.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)


filters: "dict[tuple[str, int, bool], bytes]" = {}
"""Filters that were built in advance, by tier, version of Landlock, and whether there is a broker: those that protect
no process from signals."""


def build_filters() -> None:
    """Build the seccomp filters for this kernel's version of Landlock in advance."""
    version = libc.syscall(NR_LANDLOCK_CREATE, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    for tier in "AB" if os.uname().machine in NUMBERS and version > 0 else "":
        for brokered in (False, True):
            filters[tier, version, brokered] = seccomp_program(os.uname().machine, tier, version, brokered=brokered)


class Program(ctypes.Structure):
    """The C struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def described(program: bytes) -> Program:
    """Return the C struct of a filter."""
    return Program(len(program) // 8, program)


def apply_seccomp(program: bytes) -> None:
    """Install a filter for this process and its descendants. Raises OSError."""
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described(program)), 0, 0))


# --- init -------------------------------------------------------------------------------------------------------------


class Pipes:
    """The pipes between the three processes; all are closed on exec."""

    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        self.status, self.status_end = os.pipe()
        self.report, self.report_end = os.pipe()
        self.life, self.life_end = os.pipe()
        """Written by the host: the first byte lets init continue, later ones are signals for main; it closes when the
        host ends."""


def close(*files: int) -> None:
    """Close descriptors."""
    for file in files:
        os.close(file)


def run_init(call: "Host") -> "NoReturn":
    """Be the parent of all orphans of main, and report main's wait status to the host in 4 bytes."""
    launch, namespace, pipes = call.launch, call.namespace, call.pipes
    try:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL if namespace else signal.SIGTERM), 0, 0, 0)
        close(pipes.life_end, pipes.output, pipes.status, pipes.report)
        be_first_to_go(call.behind)
        if not namespace:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        refusal = joined_or_why_not(call.groups) or arrange_mounts_or_why_not(launch, namespace)
        if os.read(pipes.life, 1):
            if refusal:
                os.write(pipes.report_end, refusal)
            else:
                call.lease.leave()
                begin(call)
        clear_for_host(call.control)
    finally:
        os._exit(0)


def joined_or_why_not(groups: Groups) -> bytes:
    """Join the control groups; return "stage errno" if that failed, b"" if not."""
    try:
        groups.join()
    except OSError as error:
        return f"group {error.errno or 0}".encode()
    return b""


def be_first_to_go(behind: int) -> None:
    """Make this tree, not the server, the OOM killer's first choice; run with the nice value `behind`."""
    try:
        write_file("/proc/self/oom_score_adj", "1000")
    except OSError:
        pass  # /proc is not writable: the kernel then kills the largest process
    if behind:
        os.nice(behind)


def begin(call: "Host") -> None:
    """Start main, and attend to it until the host has ended. Raises OSError if it was not started."""
    launch, pipes = call.launch, call.pipes
    try:
        broker = make_broker(launch)
        ours, theirs = (None, None) if broker is None else socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        os.write(pipes.report_end, f"restrict {error.errno}".encode())
        raise
    main = fork_main(call, -1 if theirs is None else theirs.fileno())
    close(pipes.output_end, pipes.report_end, *launch["streams"])
    if broker is None or ours is None or theirs is None:
        attend(main, pipes, None)
        return
    theirs.close()
    attend(main, pipes, service_of(broker, ours))


def make_broker(launch: "dict[str, Any]") -> "write_broker.Broker | None":
    """Return the broker of a call with a workspace. Raises OSError."""
    restriction = launch["restrict"]
    if restriction is None or restriction["workspace"] is None:
        return None
    workspace = restriction["workspace"]
    if restriction["tier"] == "A":
        writable = workspace["place"], -1
    else:
        root, private = (os.open(path, write_broker.DIRECTORY) for path in (workspace["root"], restriction["private"]))
        writable = root, private
    broker = write_broker.Broker(workspace, writable, int(launch["limits"]["file_bytes"]))
    broker.register(NUMBERS[os.uname().machine] | EVERYWHERE)
    return broker


def service_of(broker: "write_broker.Broker", channel: "socket.socket") -> "write_broker.Service | None":
    """Return what serves main's changes, and drop all capabilities; None if main did not become the program.

    Raises OSError; then main is not executed.
    """
    received = received_files(channel.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)[1])
    if not received:
        return None
    drop_capabilities()
    service = write_broker.Service(broker, received[0], (signal.SIGCHLD, signal.SIGTERM))
    channel.send(b"g")
    channel.close()
    return service


def attend(main: int, pipes: Pipes, service: "write_broker.Service | None") -> None:
    """Reap children, and report how `main` ended, until the host has ended. In a namespace this process then ends, too.

    Signals for main are sent by its parent, because only the parent knows for certain that the pid is still main's.
    """
    os.set_blocking(pipes.life, False)
    running = True
    while (numbers := wanted(pipes.life)) is not None:
        for number in numbers if running else b"":
            signal_group(main, number)
        if service is None:
            signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        else:
            service.wait()
        for pid, status in reap():
            if pid == main:
                running = False
                os.write(pipes.status_end, status.to_bytes(4, "big"))


def clear_for_host(control: int) -> None:
    """Do `clear` in place of the dead host, and report to the server if it succeeds in time."""
    killed: set[int] = set()
    if clear(killed, CLEAR_SECONDS):
        os.write(control, CLEARED + " ".join(map(str, killed)).encode())
        return
    os.close(control)
    while not clear(killed, CLEAR_SECONDS):
        pass


def fork_main(call: "Host", channel: int) -> int:
    """Fork the process that becomes the program; return its pid. Raises OSError."""
    host = os.getppid()
    try:
        main = os.fork()
    except OSError as error:
        os.write(call.pipes.report_end, f"fork {error.errno}".encode())
        raise
    if main == 0:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        become(call, host, channel)
    return main


def received_files(ancillary: "list[tuple[int, int, bytes]]") -> list[int]:
    """Return the descriptors that came with a message."""
    return [
        int.from_bytes(data[start : start + 4], sys.byteorder)
        for _, _, data in ancillary
        for start in range(0, len(data), 4)
    ]


def wanted(life: int) -> bytes | None:
    """Return the signals that the host requests for main, one byte each; None if the host has ended."""
    numbers = b""
    try:
        while more := os.read(life, CHUNK):
            numbers += more
    except BlockingIOError:
        return numbers
    return None


def signal_group(leader: int, number: int) -> None:
    """Signal a process group; no effect if it has ended or the number is invalid."""
    try:
        os.killpg(leader, number)
    except OSError:
        pass


# --- host -------------------------------------------------------------------------------------------------------------


class Host:
    """One call, from the launch to the exit of its last process."""

    def __init__(self, control: int, launch: "dict[str, Any]", lease: Lease) -> None:
        self.control = control
        self.launch = launch
        self.lease = lease
        self.pipes = Pipes()
        self.poll = select.poll()
        self.init = 0
        self.namespace = False
        self.began = time.monotonic()
        self.wall = float(launch["limits"]["wall_seconds"])
        self.status: int | None = None
        self.drain_until = 0.0
        self.unsent = b""
        self.output_open = True
        self.begun = self.kill_requested = False
        self.limit = 0
        self.behind = 0
        self.killed: set[int] | None = set()

    def run(self) -> None:
        """Run the call. Raises ServerGoneError or NotStartedError; the tree is then dead or reported as leaked."""
        try:
            self.begin()
            self.watch()
        except ServerGoneError:
            self.killed = None
            raise
        finally:
            ended = time.monotonic()
            cleared = self.clear()
        self.send_rest()
        self.send(END + " ".join(map(str, self.result(cleared, ended))).encode())

    def begin(self) -> None:
        """Start init, report it to the server, and let it start main."""
        if self.lease.over():
            self.fail(b"lease %d" % errno.ETIME)
        pipes = self.pipes
        restricted = self.launch["restrict"] is not None
        self.groups = Groups(self.launch["groups"])
        try:
            self.namespace = bool(self.launch["namespace"]) and enter_pid_namespace(restricted)
            self.census = Census(self.launch["limits"], self.namespace, self.groups)
            if self.census.processes and os.geteuid() == 0:  # other users' processes fail to fork at their own limits
                self.behind = step_ahead()
            self.init = self.groups.fork()
        except OSError as error:
            self.fail(f"fork {error.errno}".encode())
        if self.init == 0:
            run_init(self)
        close(pipes.life, pipes.output_end, pipes.status_end, pipes.report_end, *self.launch["streams"])
        os.set_blocking(pipes.output, False)
        os.set_blocking(self.control, False)
        self.send(INIT + f"{self.init} {int(self.namespace)} {int(bool(self.groups.held))}".encode())
        os.write(pipes.life_end, b"g")
        os.set_blocking(pipes.life_end, False)
        for source in (self.control, pipes.report, pipes.status, pipes.output):
            self.poll.register(source, select.POLLIN)

    def fail(self, why: bytes) -> "NoReturn":
        """Report that the program did not start. Raises NotStartedError."""
        self.send(FAILED + why)
        raise NotStartedError

    def watch(self) -> None:
        """Pump output until the tree must be killed: on KILL, at a limit, or when main's output is drained."""
        while not self.over():
            ready = {source for source, _ in self.poll.poll(self.patience())}
            if self.control in ready and self.hear():
                return
            if self.pipes.report in ready:
                self.read_report()
            if self.pipes.status in ready and not self.read_status():
                return
            if self.pipes.output in ready:
                self.pump()

    def over(self) -> bool:
        """Return whether the tree must be killed now; sets the exceeded limit, which the lease is one of."""
        if self.drain_until:
            drained = time.monotonic() >= self.drain_until or not (self.output_open or self.unsent)
            return drained or self.lease.over()
        if self.lease.over():
            self.limit = LEASE
        elif self.wall > 0 and time.monotonic() >= self.began + self.wall:
            self.limit = WALL
        else:
            self.limit = self.census.exceeded(self.init)
        return self.limit > 0

    def patience(self) -> float | None:
        """Return the milliseconds until the next check is due; None if none is."""
        now = time.monotonic()
        dues = [self.drain_until] if self.drain_until else [self.began + self.wall] if self.wall else []
        if (asked := self.census.due()) is not None:
            dues.append(asked)
        if self.lease.file >= 0:
            dues.append(self.lease.until / 1e9)
        return max(0.0, min(dues) - now) * 1000 + 1 if dues else None

    def hear(self) -> bool:
        """Process a frame of the server, or send output that it did not accept before; return whether it was KILL."""
        try:
            frame = os.read(self.control, CHUNK)
        except BlockingIOError:
            self.flush()
        except OSError as error:
            raise ServerGoneError from error
        else:
            self.kill_requested = frame == KILL
            if frame[:1] == SIGNAL:
                self.pass_on(frame[1:])
            elif not self.kill_requested:
                raise ServerGoneError
        return self.kill_requested

    def pass_on(self, number: bytes) -> None:
        """Ask init to signal main's process group; no effect if init has ended or does not read."""
        try:
            os.write(self.pipes.life_end, number)
        except OSError:
            return
        send_signal(self.init, signal.SIGTERM)

    def read_report(self) -> None:
        """Read whether main became the program: either it wrote an error, or exec closed the pipe."""
        self.begun = True
        self.poll.unregister(self.pipes.report)
        why = os.read(self.pipes.report, CHUNK)
        if why:
            self.fail(why)
        self.send(STARTED)

    def read_status(self) -> bool:
        """Read how main ended; False if init has ended."""
        data = os.read(self.pipes.status, 4)
        if not data:
            return False
        self.status = int.from_bytes(data, "big")
        if not self.begun:
            self.read_report()
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        return True

    def pump(self) -> None:
        """Read one chunk of output; the pipe is polled again once the server has accepted it."""
        data = os.read(self.pipes.output, CHUNK)
        self.poll.unregister(self.pipes.output)
        if data:
            self.unsent = OUTPUT + data
            self.flush()
        else:
            self.output_open = False

    def flush(self) -> None:
        """Send the pending chunk, then read on. Until the server accepts it, output stays in the program's pipe."""
        if not self.unsent:
            return
        try:
            os.write(self.control, self.unsent)
        except BlockingIOError:
            self.poll.modify(self.control, select.POLLIN | select.POLLOUT)
        except OSError as error:
            raise ServerGoneError from error
        else:
            self.unsent = b""
            self.poll.modify(self.control, select.POLLIN)
            self.poll.register(self.pipes.output, select.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send a frame, blocking until the server's socket has space."""
        poll = select.poll()
        poll.register(self.control, select.POLLOUT)
        while True:
            poll.poll()
            try:
                os.write(self.control, frame)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ServerGoneError from error
            return

    def clear(self) -> bool:
        """Kill the tree and wait for its end; return False if it does not end in time.

        After KILL the server's time limit applies: when it has passed, the server kills this process.
        """
        if not self.init:
            return True
        if self.killed is not None:
            self.killed.update(snapshot(self.init))
        send_signal(self.init, signal.SIGKILL)
        if not self.namespace and (self.killed is None or len(self.killed) >= SNAPSHOT):
            self.groups.kill()
        if self.namespace:  # the kernel kills the others; a process scan in `clear` would delay that
            signal.sigtimedwait({signal.SIGCHLD}, CLEAR_SECONDS)
        cleared = clear(self.killed, CLEAR_SECONDS)
        while self.kill_requested and not cleared:
            cleared = clear(self.killed, CLEAR_SECONDS)
        if not self.limit and self.groups.starved():
            self.limit = MEMORY
        self.groups.remove()
        return cleared

    def send_rest(self) -> None:
        """Send the output that the dead processes left in the pipe."""
        if self.unsent:
            self.send(self.unsent)
        left = LAST_OUTPUT
        while left > 0 and self.output_open:
            try:
                data = os.read(self.pipes.output, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.send(OUTPUT + data)
            left -= len(data)

    def result(self, cleared: bool, ended: float) -> list[int]:
        """Return the numbers of the END frame."""
        status = int(signal.SIGKILL) if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        milliseconds = int((ended - self.began) * 1000)
        flags = [int(self.kill_requested or self.limit > 0), self.limit, int(not cleared), milliseconds]
        return [max(code, -1), max(-code, 0), *flags, *sorted((self.killed or set()) - {self.init})]


def read_launch(control: int) -> "dict[str, Any]":
    """Receive the launch. Raises ServerGoneError."""
    try:
        length = int.from_bytes(os.read(control, 4), "big")
        data = b""
        while len(data) < length:
            packet = os.read(control, CHUNK)
            if not packet:
                raise ServerGoneError
            data += packet
    except OSError as error:
        raise ServerGoneError from error
    launch: dict[str, Any] = marshal.loads(data)  # noqa: S302 -- written by our parent
    return launch


def serve(control: int, *streams: int, lease: int = -1) -> "NoReturn":
    """Run the call that the server describes on `control`, and end this process.

    `streams`: its stdin, its stdout. `lease`: the file that says until when it may run, or -1.
    """
    os.set_inheritable(control, False)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        Host(control, {**read_launch(control), "streams": streams}, Lease(lease)).run()
    finally:
        while not clear(None, CLEAR_SECONDS):
            pass
        os._exit(0)


# --- fork server ------------------------------------------------------------------------------------------------------


def serve_forks(channel: int, lease: int = -1) -> "NoReturn":
    """Fork a host for each packet on `channel`, which passes its control socket and streams, until the server ends.

    The packet is PROGRAM, or PYTHON for a program that a host runs itself. All hosts have the same lease.
    Other processes of the same user must not be able to inspect or change this one, because all later hosts are copies
    of it.
    """
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    gc.freeze()
    requests = socket.socket(fileno=channel)
    while (request := next_request(requests)) is not None:
        wanted, files = request
        if wanted == PYTHON:
            preload()
        fork_host(channel, lease, *files)
        close(*files)
        if not filters:
            build_filters()  # meanwhile the first call runs
    os._exit(0)


def next_request(requests: "socket.socket") -> "tuple[bytes, list[int]] | None":
    """Return the kind of the next host (PYTHON or PROGRAM) and its descriptors; None if the server has ended."""
    try:
        wanted, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    files = received_files(ancillary)
    return (wanted, files) if files else None


def preload() -> None:
    """Import PRELOADED, once."""
    for name in PRELOADED:
        __import__(name)
    gc.freeze()


def fork_host(channel: int, lease: int, control: int, *streams: int) -> None:
    """Fork a host as a child of the server, which reaps it; report to the server if that fails.

    The host reports its pid before it leaves this process's group; one that ends earlier is reaped as a member of this
    group.
    """
    own = os.getpid()
    try:
        pid = fork_sibling()
    except OSError as error:
        send_failure(control, error.errno or 0)
        return
    if pid == 0:
        try:
            os.close(channel)
            if os.getppid() == own:
                send_failure(control, errno.ENOSYS)
                return
            os.write(control, HOST + str(os.getpid()).encode())
            os.setsid()
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            serve(control, *streams, lease=lease)
        finally:
            os._exit(1)


def fork_sibling() -> int:
    """Fork a process with the same parent as this one. Raises OSError."""
    number = NUMBERS.get(os.uname().machine, {}).get("clone")
    if number is None:
        raise OSError(errno.ENOSYS, "no number of this system call is known here")
    return checked(forking_libc.syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))


def send_failure(control: int, error: int) -> None:
    """Report on a control socket that no host was forked; the server may have closed it."""
    try:
        os.write(control, FAILED + b"host %d" % error)
    except OSError:
        pass


def probe() -> None:
    """Write to stdout whether a PID namespace can be created here: 1 or 0."""
    made = enter_pid_namespace()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    _, status = os.waitpid(child, 0)
    os.write(1, b"1" if made and status == 0 else b"0")


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        probe()
    else:
        lease, *files = map(int, sys.argv[2:])
        if lease >= 0:
            os.set_inheritable(lease, False)
        if sys.argv[1] == "forks":
            serve_forks(files[0], lease)
        serve(*files, lease=lease)
