"""Run one program as a tool so that its whole process tree can always be stopped (REQ-BED-005).

Started by `spawn.py` as `python -I -S toolhost.py CONTROL`, single-threaded, in a session of its own, with an empty
environment. Self-contained and sparing with imports, because it starts once per tool call: `json`, `signal`, `socket`
and `typing` would each cost more than everything else it does before the program runs.

Theory of operation. Three processes, each the only child of the one before:

    host   this process. Talks to the server, pumps output, keeps the wall clock, kills.
    init   PID 1 of a new PID namespace where one can be had. Elsewhere a subreaper like the host.
    main   the program, in a session of its own. Its descendants may do what they like: init inherits them.

In a namespace the death of init is the death of everything, by the kernel. Without one, killing init makes the host
inherit all orphans, and `clear` kills and reaps until the kernel says that no child is left. Either way the host is
done only when waitpid answers ECHILD. Who dies, and what follows:

    told to kill, out of time    the host kills init and clears; so it does with too many processes or too much memory
    main ended                   its output is drained, then what it left behind is killed likewise
    the server                   the control socket ends or fails: the host clears
    init                         the status pipe ends: the host clears
    the host                     init is signalled: in a namespace it dies and takes all along, else it clears itself
    host and init, by the tool   only without a namespace: the server finds what is left by its mark or control group

The host must outlive its server to clean up, so it never asks to die with it. PR_SET_PDEATHSIG is used only between
these single-threaded processes, because it fires when the *thread* ends that forked. Main is forked only after the
server was sent INIT: a host that ends without it provably began nothing.

Control socket (AF_UNIX, SOCK_SEQPACKET, so a frame is whole or absent even if its writer is killed):

    server → host   the length of the launch in 4 bytes, then the launch (marshal of a dict: both ends are the same
                    interpreter) in packets; later KILL, or SIGNAL and a number for main's process group
    host → server   one byte of kind, then: INIT "pid namespace grouped", STARTED, FAILED "stage errno", OUTPUT bytes,
                    END "exit signal killed limit leaked milliseconds pid…", CLEARED "pid…" (by init, host dead)

Launch: argv [bytes], cwd bytes, env {bytes: bytes}, stdin fd or -1, limits {name: number, 0 none}, namespace bool,
mark number or 0, groups [(path bytes, controllers text, unified bool, [(file text, content text)])], hide [path
bytes], restrict None or {tier "A" or "B", abi number, private path bytes, protected [path bytes]}.

Limits. Time is the host's to keep. What one process may use is the kernel's (rlimits). How many processes there are,
and how much memory they have together, is the kernel's where the call has control groups (or, for processes, where a
namespace or a user's own limit says it); elsewhere the host counts (Census).

Restriction. What is asked for is kept, or main does not exec (FAILED "restrict …", "hide …"). Everything is applied by
processes of the call itself, so nothing of it outlasts the call, and in this order, because each step needs rights
that the next one takes away:

    host   user and PID namespace; in tier A for root, too: init's capabilities then reach nothing outside
    init   mount namespace, own /proc, pid_max; tier A: also network, IPC and host name namespaces, every mount
           read-only, private tmpfs over the private directory and /dev/shm; masks over what is hidden
    main   capabilities dropped for good, no_new_privs, Landlock, seccomp, exec

Tier A needs all of it, tier B only what main does. Masks hide directories; a file in a directory that others need, too,
gets no rule of Landlock either, so that one which takes its place stays closed. In B nothing is masked, and no
protected path has a rule. Mounts are bound to init's namespace and end with it; none propagates outwards.
"""

# ruff: noqa: SIM105 -- contextlib is one more import at every tool call

import ctypes
import errno
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn
else:
    import _signal as signal

KILL, SIGNAL = b"K", b"N"
INIT, STARTED, FAILED, OUTPUT, END, CLEARED = b"I", b"S", b"X", b"O", b"E", b"C"

WALL, PROCESSES, MEMORY = 1, 2, 3
#: The limits that END can name; 0: none.

CHUNK = 1 << 16
#: Bytes read from the program at once; the largest frame is one more.

DRAIN_SECONDS = 0.2
#: How long output is awaited after main ended; a process left behind may hold the pipe for ever.

CENSUS_SECONDS = 0.05, 0.2, 0.5
#: How often it is asked whether there are too many processes, whether they have too much memory, and whether the
#: kernel has killed one of them for that.

LOOK_SECONDS = 1.0
#: How often the tree is looked at even if the machine's own figures do not move: what takes memory from caches does
#: not move them.

LOOKING_SHARE = 20
#: Looking at large trees and measuring shared memory is slow: it is done at most this part of the time.

BEHIND = 10
#: By how much less a tree counts for the scheduler that its host has to count, and cannot step ahead of.

CLEAR_SECONDS = 3.0
#: How long what a call left behind may take to die before the host reports a leak (and goes on killing).

LAST_OUTPUT = 1 << 20
#: Bytes taken from the pipe after the tree is dead, at most.

SNAPSHOT = 128
#: Processes of a tree that are taken down for the receipt before it is killed, at most.

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 23, 24, 28, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1
LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}
RESERVED_PIDS = 300
#: The kernel never hands out the first pids again, so a namespace's pid_max counts from here.

PRIVATE_BYTES, SHARED_BYTES, PRIVATE_FILES = 1 << 30, 256 << 20, 1 << 18
#: What the private directory and /dev/shm hold at most in tier A. In tier B only the size of each file is limited.

CLONE_INTO_CGROUP, NR_CLONE3 = 1 << 33, 435
NR_MOUNT_SETATTR, NR_LANDLOCK_CREATE, NR_LANDLOCK_ADD, NR_LANDLOCK_RESTRICT = 442, 444, 445, 446
#: System calls that are newer than 2019 have the same number on every architecture.

libc = ctypes.CDLL(None, use_errno=True)


class ServerGone(Exception):
    """The control socket ended or failed: nobody is interested any more."""


class NotStarted(Exception):
    """The program did not begin; the server has been told why."""


# --- the process tree -------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """The children of `pid`, of all its threads, zombies included; empty if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, contents(f"/proc/{pid}/task/{task}/children").split()))
    except OSError:
        pass  # ended while it was looked at; the caller looks again
    return found


def contents(path: "str | bytes") -> bytes:
    """What a file of /proc or of a control group says. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while data := os.read(file, CHUNK):
            found += data
        return found
    finally:
        os.close(file)


def alive(pid: int) -> bool:
    """Whether `pid` exists and is not a zombie."""
    try:
        return contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def walk(root: int) -> "Iterator[int]":
    """Living processes below `root`, parents first, each as soon as its own children are known.

    Killing them as they come stops the source of a storm before all that it has brought forth is looked at.
    """
    seen = children(root)
    for pid in seen:
        seen.extend(children(pid))
        if alive(pid):
            yield pid


def descendants(root: int) -> list[int]:
    """Living processes below `root`, parents first."""
    return list(walk(root))


def below(root: int, most: int) -> list[int]:
    """Processes below `root`, ended ones too, parents first: all, or of very many at least `most`."""
    seen = children(root)
    for pid in seen:
        if len(seen) >= most:
            break
        seen.extend(children(pid))
    return seen


def snapshot(root: int) -> list[int]:
    """What is to be killed below `root`, for the receipt: all that live, or of very many the first SNAPSHOT.

    The kill waits for it, and a storm grows until then: so many are not looked at one by one.
    """
    seen = below(root, SNAPSHOT)
    return seen[:SNAPSHOT] if len(seen) >= SNAPSHOT else [pid for pid in seen if alive(pid)]


def send_signal(pid: int, number: int) -> None:
    """Signal `pid`; nothing happens if it is gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap() -> "Iterator[tuple[int, int]]":
    """Every child that has ended, with its wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def childless() -> bool:
    """Whether the kernel knows no child of this process, running or ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def clear(killed: "set[int]", seconds: float) -> bool:
    """Kill and reap until no child is left; False if that took longer than `seconds`.

    Adds to `killed` what it kills. Children born meanwhile are found by the next pass, wherever they are: this
    process is their subreaper.
    """
    deadline = time.monotonic() + seconds
    while True:
        kill_all(walk(os.getpid()), killed)
        for _ in reap():
            pass
        if childless():
            return True
        if time.monotonic() > deadline:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, 0.005)


def kill_all(pids: "Iterator[int]", killed: "set[int]") -> None:
    """Kill each with its whole process group: a group dies at once, however fast its members multiply."""
    groups = {os.getpgrp()}
    for pid in pids:
        killed.add(pid)
        try:
            group = os.getpgid(pid)
            if group not in groups:
                groups.add(group)
                os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # gone
        send_signal(pid, signal.SIGKILL)


# --- what the kernel bounds, and what is counted here -----------------------------------------------------------------


class Groups:
    """The control groups of one call. Init joins them before anything else; where that fails, the host counts.

    Joining is done in the ways that do not stop every fork of the machine for a while: in version 2 by being born
    there, in version 1 as a single thread.
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
        """Fork; the child is a member of all, or the host is told so: OSError, and nothing was made."""
        if self.born < 0:
            return os.fork()
        arguments = struct_of_words(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, self.born)
        return checked(ctypes.PyDLL(None, use_errno=True).syscall(NR_CLONE3, arguments, len(arguments)))

    def join(self) -> None:
        """Become a member of those that one is not born into (init)."""
        for file in self.joined:
            os.write(file, b"0")

    def starved(self) -> bool:
        """Whether the kernel has killed one of their processes for want of memory."""
        for folder in self.folders:
            for name in (b"/memory.events", b"/memory.oom_control"):
                try:
                    lines = contents(folder + name).splitlines()
                except OSError:
                    continue
                if any(line.startswith(b"oom_kill ") and not line.endswith(b" 0") for line in lines):
                    return True
        return False

    def remove(self) -> None:
        for folder in self.folders:
            try:
                os.rmdir(folder)
            except OSError:
                pass  # something lives there; the server removes it when that has ended


def struct_of_words(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, sys.byteorder) for word in words)


class Census:
    """Counts what the kernel does not bound: the processes of a tree, and the memory of all of them together.

    The figures of the whole machine are cheap to have. The tree is looked at when they have moved by a good part of a
    limit, and every LOOK_SECONDS. Memory is that which cannot be given back: anonymous, by each process's share of it,
    and shared, as far as the machine has more of it than before the call and the tree could be the one that has it.
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
        """When to ask next; None: never."""
        return self.at if self.processes or self.memory or self.groups.joined else None

    def exceeded(self, root: int) -> int:
        """Which limit the tree below `root` is over, 0 if none."""
        now = time.monotonic()
        if self.due() is None or now < self.at:
            return 0
        self.at = now + self.seconds
        if self.groups.joined and self.groups.starved():
            return MEMORY  # in version 1 the others live on
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
        """Whether the tree may have grown by a part of a limit since it was last looked at."""
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
        """Whether these processes have more memory together than they may; only what may be so is measured."""
        grown = max(0, self.shared - self.shared_before)
        if sum(map(unshared_at_most, pids)) + grown <= self.memory or now < self.measure_at:
            return False
        used = sum(map(unshared, pids)) + (min(grown, shareable(pids)) if grown else 0)
        took = time.monotonic() - now
        self.measure_at = now + took * LOOKING_SHARE
        return used > self.memory


def machine_figures() -> "tuple[int, int, int]":
    """Threads of the machine, and bytes of it that are free, and that are shared: in memory file systems and between
    processes."""
    found = SystemInformation()
    checked(libc.sysinfo(ctypes.byref(found)))
    return found.threads, found.free * found.unit, found.shared * found.unit


class SystemInformation(ctypes.Structure):
    """struct sysinfo."""

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
    """The number of kilobytes behind this name, in bytes; 0 if there is none."""
    return int((lines.partition(name)[2].split(None, 1) or [b"0"])[0]) << 10


def unshared_at_most(pid: int) -> int:
    """Bytes of anonymous memory that a process has or shares with those that it was forked from; 0 if it is gone."""
    try:
        _, resident, shared, *_ = contents(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def unshared(pid: int) -> int:
    """The same, of what is shared only its share. For a process that cannot be looked into all counts."""
    try:
        return figure(contents(f"/proc/{pid}/smaps_rollup"), b"Pss_Anon:")
    except OSError:
        return unshared_at_most(pid)


def shareable(pids: "list[int]") -> int:
    """Bytes of shared memory that these processes could have filled: what they have mapped or opened, full or not."""
    sizes: dict[tuple[int, int], int] = {}
    try:
        for pid in pids:
            for found in (mapped_memory(pid), opened_memory(pid)):
                for key, size in found.items():
                    sizes[key] = max(size, sizes.get(key, 0))
    except FileNotFoundError:
        return shareable([pid for pid in pids if alive(pid)])
    except OSError:
        return sys.maxsize  # it hides what it has
    return sum(sizes.values())


def mapped_memory(pid: int) -> "dict[tuple[int, int], int]":
    """Shared memory in a process's address space: bytes by device and inode."""
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
    """Files in memory that a process has open: bytes by device and inode."""
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
    """Whether the kernel bounds the processes of a namespace, by its user's limit, or root's by its pid_max."""
    return kernel_at_least(6, 14) if os.geteuid() == 0 else kernel_at_least(5, 14)


def step_ahead() -> int:
    """Go before the tree that is to be counted, lest it keep this process from doing so. Returns how far behind the
    tree has to stay instead, if this process may not."""
    try:
        ahead = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, ahead, os.sched_param(1))
    except OSError:
        return BEHIND
    return 0


# --- namespaces -------------------------------------------------------------------------------------------------------


def kernel_at_least(*version: int) -> bool:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= version


def checked(result: int) -> int:
    """The result of a C function; OSError if it says that it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the kernel")
    return result


def enter_pid_namespace(restricted: bool = False) -> bool:
    """Let the next child be PID 1 of a new namespace; False if the kernel refuses.

    Unrestricted root needs no user namespace. Anybody else gets one in which only the own user and group exist, so
    programs that become another user do not work there, and files of others seem to belong to nobody.
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
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def arrange_mounts(launch: "dict[str, Any]", namespace: bool) -> None:
    """Give init, and all that it starts, its view of the file system; OSError if it cannot be had but is asked for."""
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
    if closed:
        close_mounts(closed)
    for path in hidden:
        mask(path)


def arrange_mounts_or_why_not(launch: "dict[str, Any]", namespace: bool) -> bytes:
    """As `arrange_mounts`; "stage errno" if it failed, empty if not."""
    try:
        arrange_mounts(launch, namespace)
    except OSError as error:
        return f"{'hide' if launch['restrict'] is None else 'restrict'} {error.errno or 0}".encode()
    return b""


def unshare_mounts(closed: bool, hiding: bool) -> None:
    """Enter a mount namespace whose changes stay inside, and for tier A the other namespaces, too.

    What is mounted outside still shows up inside, but not in tier A, where it could be written to. Without anything
    to hide only /proc is set apart, so that mounts behave for the program as they do outside.
    """
    others = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    checked(libc.unshare(CLONE_NEWNS | (others if closed else 0)))
    if closed:
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    elif hiding:
        mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE)


def close_mounts(private: bytes) -> None:
    """Make every mount read-only but for two empty ones in memory: the private directory and shared memory."""
    make_read_only(b"/", AT_RECURSIVE)
    mount_memory(private, PRIVATE_BYTES)
    if os.path.isdir(b"/dev/shm"):
        mount_memory(b"/dev/shm", SHARED_BYTES)


def mount_memory(path: bytes, size: int) -> None:
    mount(b"tmpfs", path, b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={size},nr_inodes={PRIVATE_FILES}".encode())


def mask(path: bytes) -> None:
    """Put nothing in the place of a file or a directory; what does not exist needs none."""
    if os.path.isdir(path):
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        mount(b"tmpfs", path, b"tmpfs", flags, b"mode=000,size=4k,nr_inodes=2")
    elif os.path.lexists(path):
        mount(b"/dev/null", path, None, MS_BIND)
        make_read_only(path, 0)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    checked(libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def make_read_only(path: bytes, how: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    checked(libc.syscall(NR_MOUNT_SETATTR, AT_FDCWD, path, how, ctypes.byref(attributes), ctypes.sizeof(attributes)))


def limit_pids(processes: int) -> None:
    """Bound the processes of this namespace, root's too, where the kernel keeps pid_max per namespace."""
    if processes and os.geteuid() == 0 and kernel_at_least(6, 14):
        try:
            write_file("/proc/sys/kernel/pid_max", str(RESERVED_PIDS + processes))
        except OSError:
            pass  # the tree can be killed all the same


# --- main: the program ------------------------------------------------------------------------------------------------


def become(launch: "dict[str, Any]", namespace: bool, output: int, report: int, host: int) -> "NoReturn":
    """Turn this process into the program; if that fails, write "stage errno" to `report` and end."""
    stage = "session"
    try:
        os.setsid()
        restore_signals()
        stage = "cwd"
        os.chdir(launch["cwd"])
        stage = "limits"
        set_limits(launch["limits"], namespace, launch["mark"])
        stage = "files"
        report = arrange_files(launch["stdin"], output, report)
        stage = "restrict"
        restrict(launch["restrict"], () if namespace else (os.getppid(), host))
        stage = "exec"
        execute(launch["argv"], launch["env"])
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the program has not begun
        os.write(report, f"{stage} {getattr(error, 'errno', None) or 0}".encode())
    finally:
        os._exit(127)


def restore_signals() -> None:
    """Undo what this process, its parents or whoever started the server block and ignore."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_limits(limits: "dict[str, float]", namespace: bool, mark: int) -> None:
    """Bound what one process may use. The mark is a limit, too: one that means nothing, and that no exec takes off."""
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
    """Set a limit, never above what the server itself has."""
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def running_threads() -> int:
    """Threads on the whole machine: RLIMIT_NPROC counts all of a user, wherever they were started."""
    return int(contents("/proc/loadavg").split()[3].partition(b"/")[2])


def arrange_files(stdin: int, output: int, report: int) -> int:
    """Leave the program its three standard streams and nothing else; returns where `report` is now.

    Without `stdin` the host's own remains: /dev/null.
    """
    if stdin >= 0:
        os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if report != 3:
        os.dup2(report, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Exec argv[0], looked for on the program's own PATH; OSError if there is none."""
    program, failure = argv[0], OSError(errno.ENOENT, "not found")
    folders = [b""] if b"/" in program else env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), argv, env)  # noqa: S606 -- no shell is meant
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                failure = error
    raise failure


# --- the restriction of main ------------------------------------------------------------------------------------------

CAPABILITY_VERSION_3, CAP_SETPCAP = 0x20080522, 8
SECUREBITS = 0b11101111
#: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE on, KEEP_CAPS off, and all of them locked.


def restrict(section: "dict[str, Any] | None", keepers: "tuple[int, ...]" = ()) -> None:
    """Apply a restriction to this process for good; OSError if it cannot be kept.

    `keepers`: init and the host, where they can be seen. They are not to be killed by what they kill.
    """
    if section is None:
        return
    if section["tier"] not in {"A", "B"}:
        raise OSError(errno.ENOSYS, "no such restriction")
    program = seccomp_program(os.uname().machine, section["tier"], section["abi"], keepers)
    drop_capabilities()
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    apply_landlock(section)
    apply_seccomp(program)


def drop_capabilities() -> None:
    """Give up all capabilities and every way to get them back, root's included.

    Without CAP_SETPCAP the bounds stay: then there is nothing that could be regained, as no_new_privs is set next.
    """
    if has_setpcap():
        checked(libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))
        capability = 0
        while libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
            checked(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
            capability += 1
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()))
    if any(capabilities()):
        raise OSError(errno.EPERM, "capabilities are left")


def capabilities() -> "list[int]":
    """Effective, permitted and inheritable capabilities of this process: the lower 32, then the upper ones."""
    sets = (ctypes.c_uint32 * 6)()
    checked(libc.capget((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), sets))
    return list(sets)


def has_setpcap() -> bool:
    return bool(capabilities()[0] & 1 << CAP_SETPCAP)


# --- Landlock ---------------------------------------------------------------------------------------------------------

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
#: What a rule for something that is no directory may grant.

LANDLOCK_ABI = 7
#: The newest version of Landlock that is made use of.

SIGNALS_ABI = 6
#: From this version on Landlock keeps signals in.

DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")


def file_rights(abi: int) -> int:
    """All rights to files that this version of Landlock can take away."""
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return (1 << bits) - 1


def ruleset_attributes(abi: int) -> "list[int]":
    """struct landlock_ruleset_attr as this version knows it: files, then TCP, then abstract sockets and signals."""
    return [file_rights(abi), 0b11, 0b11][: 3 if abi >= 6 else 2 if abi >= 4 else 1]


def apply_landlock(section: "dict[str, Any]") -> None:
    """Read anywhere but in what is protected, write in the private directory only, reach no one outside.

    Of devices only the harmless ones can be opened: a disk would show what is protected, a terminal what is typed.
    In tier A masks hide what is protected but for single files, so there is mostly no search for what is around it.
    """
    abi = min(section["abi"], LANDLOCK_ABI)
    if abi < 1:
        raise OSError(errno.ENOSYS, "no Landlock")
    numbers = ruleset_attributes(abi)
    attributes = (ctypes.c_uint64 * len(numbers))(*numbers)
    ruleset = checked(libc.syscall(NR_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.sizeof(attributes), 0))
    rights = file_rights(abi)
    grant(ruleset, b"/", READ_DIR)
    for path in around(b"/", [b"/dev", *section["protected"]]):
        grant(ruleset, path, READ)
    if section["tier"] == "A":
        grant(ruleset, b"/dev/shm", rights)
    for device in DEVICES:
        grant(ruleset, device, rights & FILE_RIGHTS & ~EXECUTE)
    if not grant(ruleset, section["private"], rights):
        raise OSError(errno.ENOENT, "no private directory")
    checked(libc.syscall(NR_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def around(folder: bytes, protected: list[bytes]) -> "Iterator[bytes]":
    """The fewest paths that hold all of `folder` but what is protected. Links lead to one of them or to nothing."""
    if not any(within(path, folder) for path in protected):
        yield folder
        return
    for entry in os.scandir(folder):
        if entry.path not in protected and not entry.is_symlink():
            yield from around(entry.path, protected)


def within(path: bytes, folder: bytes) -> bool:
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def grant(ruleset: int, path: bytes, rights: int) -> bool:
    """Allow this beneath `path`; False if there is no such thing, or none that may be looked at: it stays closed."""
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
#: Operations of classic BPF on words.

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN, PRETEND = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x00050000
#: The system call fails with this error, or does nothing and says that it did.

NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
#: Where struct seccomp_data has them; an argument takes 8 bytes, the lower half first.

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
#: Refused with EPERM whatever their arguments: the network, other processes, the machine; and memory that is nobody's,
#: and so counts for nobody.

DENIED_IN_B = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat setxattr lsetxattr fsetxattr
setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr shmat shmctl semget semop
semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
#: Likewise without namespaces: metadata, which Landlock leaves alone, and memory and queues shared by name.

X86_64 = {
    "open": 2, "ioctl": 16, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43,
    "sendto": 44, "bind": 49, "listen": 50, "socketpair": 53, "clone": 56, "kill": 62, "semget": 64, "semop": 65,
    "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "fcntl": 72, "truncate": 76, "chmod": 90,
    "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103, "rt_sigqueueinfo": 129,
    "utime": 132, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153,
    "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "sched_setaffinity": 203,
    "semtimedop": 220, "clock_settime": 227, "tgkill": 234, "utimes": 235, "mq_open": 240, "mq_unlink": 241,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256,
    "openat": 257, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "move_pages": 279,
    "utimensat": 280, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300,
    "prlimit64": 302, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
AARCH64 = {
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45,
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
    "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "process_mrelease": 448,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip

NAMESPACE_FLAGS = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
AF_UNIX, SOCK_TYPE_MASK = 1, 0xF
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
STREAM_PAIRS = (1, 5)
#: SOCK_STREAM and SOCK_SEQPACKET; a datagram socket could still send to anybody.

TERMINAL_INPUT = (0x5412, 0x541C)
#: TIOCSTI and TIOCLINUX type on a terminal that they were given.

SIGNAL_OWNER = (8, 15)
#: F_SETOWN and F_SETOWN_EX name a process to be signalled; FIOSETOWN and SIOCSPGRP do so for sockets.

SOCKET_OWNER = (0x8901, 0x8902)
LEASES = (1024, 1040)
#: F_SETLEASE and F_SETDELEG hold up whoever opens the file, outside, too.

HARMLESS_IOCTLS = (0x40049409, 0x4020940D, 0xC020660B, 2)
#: FICLONE and FICLONERANGE, which need a file opened for writing; FS_IOC_FIEMAP and FIGETBSZ, which read.

IOCTL_WRITES, IOCTL_READS = 0x40000000, 0x80000000
IOCTL_KINDS = (0x5400, 0x8900)
#: Terminals and what all files have; sockets. Others that do more than read belong to file systems, which let
#: attributes, versions and subvolumes be changed through a file opened for reading, or to devices.


def seccomp_program(machine: str, tier: str, abi: int, keepers: "tuple[int, ...]" = ()) -> bytes:
    """The filter for this architecture; OSError for one whose system calls are not known here."""
    table = {"x86_64": X86_64, "aarch64": AARCH64}.get(machine)
    if table is None or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, "no system call filter for this architecture")
    numbers = table | EVERYWHERE
    program = header(machine)
    for name, body in inspected(tier, abi, keepers).items():
        if name in numbers:
            program += test(EQUAL, numbers[name], 0, len(body)) + body
    denied = [numbers[name] for name in denied_names(tier, abi) if name in numbers]
    for left in range(len(denied), 0, -1):
        program += test(EQUAL, denied[-left], left, 0)
    return b"".join(program + result(ALLOW) + result(REFUSE))


def denied_names(tier: str, abi: int) -> "list[str]":
    """System calls without an allowed use. Landlock knows truncation from version 3 on."""
    names = list[str](DENIED.split())
    if tier == "B":
        names += DENIED_IN_B.split()
        if abi < 3:
            names.append("truncate")
    return names


def header(machine: str) -> "list[bytes]":
    """End what calls the kernel as another architecture; leave the number of the system call to look at."""
    program = load(ARCHITECTURE) + test(EQUAL, ARCHITECTURES[machine], 1, 0) + result(KILL_PROCESS) + load(NUMBER)
    if machine == "x86_64":
        program += test(AT_LEAST, X32_BIT, 0, 1) + result(UNKNOWN)
    return program


def inspected(tier: str, abi: int, keepers: "tuple[int, ...]" = ()) -> "dict[str, list[bytes]]":
    """System calls that depend on their arguments, with what decides."""
    oneself = all_equal((0, 0))
    calls = {
        "clone3": result(UNKNOWN),  # its flags are in memory; the C library then takes clone
        "clone": argument(0) + test(ANY_BIT, NAMESPACE_FLAGS, 0, 1) + result(REFUSE) + result(ALLOW),
        "socketpair": argument(0) + test(EQUAL, AF_UNIX, 1, 0) + result(REFUSE) + pair_kind(),
        "sendto": all_equal((4, 0), (4.5, 0)),  # without an address, as loops wake themselves
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
        # touch sets the times of a file that it has just made to now: these are its times already
        calls["utimensat"] = all_equal((1, 0), (1.5, 0), (2, 0), (2.5, 0), then=PRETEND)
    if tier == "B" and abi < 3:
        calls["open"] = unless_truncating_reader(1)
        calls["openat"] = unless_truncating_reader(2)
        calls["openat2"] = result(UNKNOWN)  # its flags are in memory; programs then take openat
    if tier == "B" and abi < SIGNALS_ABI and keepers:
        calls |= signals(keepers)
    return calls


def signals(keepers: "tuple[int, ...]") -> "dict[str, list[bytes]]":
    """Spare these processes and their groups; nobody may signal all that there are, nor those that files stand for."""
    spared = tuple(number & 0xFFFFFFFF for number in (-1, *keepers, *(-each for each in keepers)))
    first, second = (argument(each) + choice(spared, found=REFUSE, other=ALLOW) for each in (0, 1))
    return {
        "kill": first, "tkill": first, "rt_sigqueueinfo": first, "tgkill": second, "rt_tgsigqueueinfo": second,
        "pidfd_send_signal": result(UNKNOWN),
    }  # fmt: skip


def pair_kind() -> "list[bytes]":
    return argument(1) + mask_word(SOCK_TYPE_MASK) + choice(STREAM_PAIRS, found=ALLOW, other=REFUSE)


def ioctls(tier: str) -> "list[bytes]":
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
    """Refuse O_RDONLY with O_TRUNC, which old Landlock does not see; `flags`: which argument."""
    truncates = mask_word(os.O_ACCMODE | os.O_TRUNC) + test(EQUAL, os.O_RDONLY | os.O_TRUNC, 0, 1)
    return argument(flags) + truncates + result(REFUSE) + result(ALLOW)


def all_equal(*wanted: "tuple[float, int]", then: int = ALLOW) -> "list[bytes]":
    """Allow only what has these arguments, by their number; .5 is the upper half of one."""
    program: list[bytes] = []
    for number, value in wanted:
        program += argument(number) + test(EQUAL, value, 1, 0) + result(REFUSE)
    return program + result(then)


def choice(values: "tuple[int, ...]", *, found: int, other: int) -> "list[bytes]":
    """The first result if the loaded word is one of these, else the other."""
    program: list[bytes] = []
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        program += test(EQUAL, value, left, 0)
    return program + result(other) + result(found)


def argument(number: float) -> "list[bytes]":
    return load(ARGUMENTS + int(8 * number))


def load(offset: int) -> "list[bytes]":
    return [instruction(LOAD, 0, 0, offset)]


def mask_word(bits: int) -> "list[bytes]":
    return [instruction(AND, 0, 0, bits)]


def test(operation: int, value: int, yes: int, no: int) -> "list[bytes]":
    """Skip so many of the next instructions."""
    return [instruction(operation, yes, no, value)]


def result(action: int) -> "list[bytes]":
    return [instruction(RETURN, 0, 0, action)]


def instruction(operation: int, yes: int, no: int, value: int) -> bytes:
    """struct sock_filter."""
    return operation.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def apply_seccomp(program: bytes) -> None:
    described = Program(len(program) // 8, program)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0))


# --- init -------------------------------------------------------------------------------------------------------------


class Pipes:
    """What connects the three processes; all are closed on exec."""

    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        self.status, self.status_end = os.pipe()
        self.report, self.report_end = os.pipe()
        self.life, self.life_end = os.pipe()
        #: Held by the host: one byte lets init go on, later ones are signals for main, and its end is the host's.


def close(*files: int) -> None:
    for file in files:
        os.close(file)


def run_init(call: "Host") -> "NoReturn":
    """Be the parent of all that main abandons; tell the host how main ended, in 4 bytes."""
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
                attend(fork_main(launch, namespace, pipes), pipes)
        clear_for_host(call.control)
    finally:
        os._exit(0)


def joined_or_why_not(groups: Groups) -> bytes:
    """Join the control groups; "stage errno" if that failed, empty if not."""
    try:
        groups.join()
    except OSError as error:
        return f"group {error.errno or 0}".encode()
    return b""


def be_first_to_go(behind: int) -> None:
    """Have the kernel take this tree, never the server, when the machine has no memory left; wait behind the host."""
    try:
        write_file("/proc/self/oom_score_adj", "1000")
    except OSError:
        pass  # no /proc to write to: the largest process goes
    if behind:
        os.nice(behind)


def attend(main: int, pipes: Pipes) -> None:
    """Reap, and tell how `main` ended, until the host is gone. In a namespace that is the end of this process too.

    Signals for main are passed on by its parent, because only that knows for certain that the pid is still main's.
    """
    close(pipes.output_end, pipes.report_end)
    os.set_blocking(pipes.life, False)
    running = True
    while (numbers := wanted(pipes.life)) is not None:
        for number in numbers if running else b"":
            signal_group(main, number)
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        for pid, status in reap():
            if pid == main:
                running = False
                os.write(pipes.status_end, status.to_bytes(4, "big"))


def clear_for_host(control: int) -> None:
    """Clear in the dead host's stead, and tell the server if that succeeds in the bound."""
    killed: set[int] = set()
    if clear(killed, CLEAR_SECONDS):
        os.write(control, CLEARED + " ".join(map(str, killed)).encode())
        return
    os.close(control)
    while not clear(killed, CLEAR_SECONDS):
        pass


def fork_main(launch: "dict[str, Any]", namespace: bool, pipes: Pipes) -> int:
    host = os.getppid()
    try:
        main = os.fork()
    except OSError as error:
        os.write(pipes.report_end, f"fork {error.errno}".encode())
        raise
    if main == 0:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        become(launch, namespace, pipes.output_end, pipes.report_end, host)
    return main


def wanted(life: int) -> bytes | None:
    """The signals that the host wants main to get, a byte each; None if the host is gone."""
    numbers = b""
    try:
        while more := os.read(life, CHUNK):
            numbers += more
    except BlockingIOError:
        return numbers
    return None


def signal_group(leader: int, number: int) -> None:
    """Signal a process group; nothing happens if it is gone or the number is none."""
    try:
        os.killpg(leader, number)
    except OSError:
        pass


# --- host -------------------------------------------------------------------------------------------------------------


class Host:
    """One call: from the launch to the death of the last of its processes."""

    def __init__(self, control: int, launch: "dict[str, Any]") -> None:
        self.control = control
        self.launch = launch
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
        self.begun = self.told = False
        self.limit = 0
        self.behind = 0
        self.killed: set[int] = set()

    def run(self) -> None:
        """Raises ServerGone or NotStarted; whatever happens, the tree is dead or reported as leaked."""
        try:
            self.begin()
            self.watch()
        finally:
            ended = time.monotonic()
            cleared = self.clear()
        self.send_rest()
        self.send(END + " ".join(map(str, self.result(cleared, ended))).encode())

    def begin(self) -> None:
        """Start init, tell the server of it, and let it start main."""
        pipes = self.pipes
        restricted = self.launch["restrict"] is not None
        self.groups = Groups(self.launch["groups"])
        try:
            self.namespace = bool(self.launch["namespace"]) and enter_pid_namespace(restricted)
            self.census = Census(self.launch["limits"], self.namespace, self.groups)
            if self.census.processes and os.geteuid() == 0:  # others' forks fail at a limit, if a larger one
                self.behind = step_ahead()
            self.init = self.groups.fork()
        except OSError as error:
            self.fail(f"fork {error.errno}".encode())
        if self.init == 0:
            run_init(self)
        close(pipes.life, pipes.output_end, pipes.status_end, pipes.report_end)
        os.set_blocking(pipes.output, False)
        os.set_blocking(self.control, False)
        self.send(INIT + f"{self.init} {int(self.namespace)} {int(bool(self.groups.held))}".encode())
        os.write(pipes.life_end, b"g")
        os.set_blocking(pipes.life_end, False)
        for source in (self.control, pipes.report, pipes.status, pipes.output):
            self.poll.register(source, select.POLLIN)

    def fail(self, why: bytes) -> "NoReturn":
        self.send(FAILED + why)
        raise NotStarted

    def watch(self) -> None:
        """Pump until the tree is to be killed: told to, out of time, or main ended and its output was drained."""
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
        if self.drain_until:
            return time.monotonic() >= self.drain_until or not (self.output_open or self.unsent)
        if self.wall > 0 and time.monotonic() >= self.began + self.wall:
            self.limit = WALL
        else:
            self.limit = self.census.exceeded(self.init)
        return self.limit > 0

    def patience(self) -> float | None:
        """Milliseconds until something is due."""
        now = time.monotonic()
        dues = [self.drain_until] if self.drain_until else [self.began + self.wall] if self.wall else []
        if (asked := self.census.due()) is not None:
            dues.append(asked)
        return max(0.0, min(dues) - now) * 1000 + 1 if dues else None

    def hear(self) -> bool:
        """Take what the server says, and send it what it did not take before; True if it wants the kill."""
        try:
            frame = os.read(self.control, CHUNK)
        except BlockingIOError:
            self.flush()
        except OSError as error:
            raise ServerGone from error
        else:
            self.told = frame == KILL
            if frame[:1] == SIGNAL:
                self.pass_on(frame[1:])
            elif not self.told:
                raise ServerGone
        return self.told

    def pass_on(self, number: bytes) -> None:
        """Let init signal main's process group; nothing happens if it is gone or does not listen."""
        try:
            os.write(self.pipes.life_end, number)
        except OSError:
            return
        send_signal(self.init, signal.SIGTERM)

    def read_report(self) -> None:
        """Learn whether main became the program: it said why not, or exec closed the pipe."""
        self.begun = True
        self.poll.unregister(self.pipes.report)
        why = os.read(self.pipes.report, CHUNK)
        if why:
            self.fail(why)
        self.send(STARTED)

    def read_status(self) -> bool:
        """Take how main ended; False if init is gone."""
        data = os.read(self.pipes.status, 4)
        if not data:
            return False
        self.status = int.from_bytes(data, "big")
        if not self.begun:
            self.read_report()
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        return True

    def pump(self) -> None:
        data = os.read(self.pipes.output, CHUNK)
        self.poll.unregister(self.pipes.output)
        if data:
            self.unsent = OUTPUT + data
            self.flush()
        else:
            self.output_open = False

    def flush(self) -> None:
        """Send what waits, then read on; while the server does not take it, output is left in the program's pipe."""
        if not self.unsent:
            return
        try:
            os.write(self.control, self.unsent)
        except BlockingIOError:
            self.poll.modify(self.control, select.POLLIN | select.POLLOUT)
        except OSError as error:
            raise ServerGone from error
        else:
            self.unsent = b""
            self.poll.modify(self.control, select.POLLIN)
            self.poll.register(self.pipes.output, select.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send a frame, however long the server takes to make room."""
        poll = select.poll()
        poll.register(self.control, select.POLLOUT)
        while True:
            poll.poll()
            try:
                os.write(self.control, frame)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ServerGone from error
            return

    def clear(self) -> bool:
        """Kill the tree and wait for its end; False if it is not over in the bound.

        After a kill the bound is the server's, which gives this process up.
        """
        if not self.init:
            return True
        self.killed.update(snapshot(self.init))
        send_signal(self.init, signal.SIGKILL)
        if self.namespace:  # the kernel kills the others; looking at them as they die would hold it up
            signal.sigtimedwait({signal.SIGCHLD}, CLEAR_SECONDS)
        cleared = clear(self.killed, CLEAR_SECONDS)
        while self.told and not cleared:
            cleared = clear(self.killed, CLEAR_SECONDS)
        self.killed.discard(self.init)
        if not self.limit and self.groups.starved():
            self.limit = MEMORY
        self.groups.remove()
        return cleared

    def send_rest(self) -> None:
        """Send the output that the dead left in the pipe."""
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
        status = int(signal.SIGKILL) if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        milliseconds = int((ended - self.began) * 1000)
        flags = [int(self.told or self.limit > 0), self.limit, int(not cleared), milliseconds]
        return [max(code, -1), max(-code, 0), *flags, *sorted(self.killed)]


def read_launch(control: int) -> "dict[str, Any]":
    """Receive the launch; raises ServerGone."""
    try:
        length = int.from_bytes(os.read(control, 4), "big")
        data = b""
        while len(data) < length:
            packet = os.read(control, CHUNK)
            if not packet:
                raise ServerGone
            data += packet
    except OSError as error:
        raise ServerGone from error
    launch: dict[str, Any] = marshal.loads(data)  # noqa: S302 -- written by our parent
    return launch


def serve(control: int) -> "NoReturn":
    """Run the call that the server describes on `control`, and end."""
    os.set_inheritable(control, False)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        Host(control, read_launch(control)).run()
    finally:
        while not clear(set(), CLEAR_SECONDS):
            pass
        os._exit(0)


def probe() -> None:
    """Say on stdout whether a PID namespace can be made here: 1 or 0."""
    made = enter_pid_namespace()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    _, status = os.waitpid(child, 0)
    os.write(1, b"1" if made and status == 0 else b"0")


KEPT = b"kept"


def check(mode: str, secret: str, outside: str) -> None:
    """Try to get out of what this process is held by, and say on stdout what worked: nothing is KEPT."""
    tries: list[tuple[str, Callable[[], object]]]
    tries = [("protected files can be read", lambda: os.open(secret, os.O_RDONLY))]
    if mode == "restricted":
        inside = os.path.join(os.environ["TMPDIR"], "inside")
        folder = os.path.dirname(outside)
        os.close(os.open(inside, os.O_CREAT | os.O_WRONLY))
        tries += [
            ("files can be written anywhere", lambda: os.open(outside, os.O_CREAT | os.O_WRONLY)),
            ("modes can be changed anywhere", lambda: os.chmod(folder, 0o700)),
            ("the network can be reached", lambda: checked(libc.socket(2, 1, 0))),
            ("namespaces can be made", lambda: checked(libc.unshare(CLONE_NEWUSER))),
        ]
    found = [what for what, attempt in tries if succeeds(attempt)]
    os.write(1, "; ".join(found).encode() or KEPT)


def succeeds(attempt: "Callable[[], object]") -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        probe()
    elif sys.argv[1] == "check":
        check(*sys.argv[2:])
    else:
        serve(int(sys.argv[1]))
