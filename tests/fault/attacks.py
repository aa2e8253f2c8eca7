"""Tries to get out of a sandbox, from inside: `python -I -S attacks.py TARGETS` prints what worked, as JSON.

Self-contained, because it runs where nothing else can be relied on. Every attempt is made in a process of its own, by
a function that does something which must not work, and raises OSError if it did not. TARGETS is JSON from world.py.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

T: dict[str, Any] = {}
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
ATTACKS: dict[str, Callable[[], object]] = {}
USES: dict[str, Callable[[], object]] = {}
CLASSES: dict[str, list[str]] = {}
"""Names of attacks by what they are after."""


def after(what: str) -> None:
    """What the attacks that follow are after."""
    CLASSES[what] = CLASSES.pop(what, [])


def add(name: str, function: Callable[[], object]) -> None:
    assert name not in ATTACKS
    ATTACKS[name] = function
    CLASSES[next(reversed(CLASSES))].append(name)


def attack(function: Callable[[], object]) -> Callable[[], object]:
    add(function.__name__, function)
    return function


def use(function: Callable[[], object]) -> Callable[[], object]:
    USES[function.__name__] = function
    return function


def call(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def syscall(x86: int, arm: int, *arguments: object) -> int:
    return call(libc.syscall(ctypes.c_long(x86 if X86 else arm), *arguments))


def outside(name: str) -> str:
    return os.path.join(T["outside"], name)


def private(name: str) -> str:
    return os.path.join(T["private"] or os.environ["TMPDIR"], name)


def make(path: str) -> str:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return path


# --- files --------------------------------------------------------------------------------------------------------

after("files")


@attack
def write_file() -> None:
    os.write(os.open(outside("victim"), os.O_WRONLY), b"x")


@attack
def append_file() -> None:
    os.open(outside("victim"), os.O_WRONLY | os.O_APPEND)


@attack
def create_file() -> None:
    make(outside(f"made-{os.getpid()}"))


@attack
def truncate_file() -> None:
    os.truncate(outside("victim"), 1)


@attack
def truncate_by_reading() -> None:
    os.open(outside("victim"), os.O_RDONLY | os.O_TRUNC)


@attack
def truncate_by_reading_openat2() -> None:
    how = struct.pack("QQQ", os.O_RDONLY | os.O_TRUNC, 0, 0)
    syscall(437, 437, -100, outside("victim").encode(), how, ctypes.c_size_t(24))


@attack
def remove_file() -> None:
    os.unlink(outside("removable"))


@attack
def remove_directory() -> None:
    os.rmdir(outside("folder"))


@attack
def make_directory() -> None:
    os.mkdir(outside(f"dir-{os.getpid()}"))


@attack
def make_symlink() -> None:
    os.symlink("/etc", outside(f"link-{os.getpid()}"))


@attack
def make_fifo() -> None:
    os.mkfifo(outside(f"fifo-{os.getpid()}"))


@attack
def write_fifo() -> None:
    os.open(outside("fifo"), os.O_WRONLY | os.O_NONBLOCK)


@attack
def reopen_for_writing() -> None:
    reading = os.open(outside("victim"), os.O_RDONLY)
    os.open(f"/proc/self/fd/{reading}", os.O_WRONLY)


@attack
def rename_in() -> None:
    os.rename(outside("movable"), private("moved"))


@attack
def rename_out() -> None:
    os.rename(make(private("mine")), outside(f"moved-{os.getpid()}"))


@attack
def link_in() -> None:
    os.link(outside("victim"), private("linked"))


@attack
def link_out() -> None:
    os.link(make(private("mine-too")), outside(f"linked-{os.getpid()}"))


@attack
def change_mode() -> None:
    os.chmod(outside("victim"), 0o640)


@attack
def change_mode_through_file() -> None:
    os.fchmod(os.open(outside("victim"), os.O_RDONLY), 0o600)


@attack
def change_mode_of_stdin() -> None:
    """To what it is anyway: it is the machine's /dev/null."""
    os.fchmod(0, 0o666)


@attack
def change_owner() -> None:
    os.chown(outside("victim"), os.getuid(), -1)


@attack
def change_times() -> None:
    os.utime(outside("victim"), (1, 1))


@attack
def touch_through_file() -> None:
    """In tier B this is answered, but nothing happens: a new file has the times that touch gives it."""
    file = os.open(outside("victim"), os.O_RDONLY)
    before = os.fstat(file).st_ctime_ns
    os.utime(file)
    if os.fstat(file).st_ctime_ns == before:
        raise OSError(errno.EPERM, "without effect")


@attack
def set_attribute() -> None:
    os.setxattr(outside("victim"), "user.bedrock", b"x")


@attack
def set_attribute_at() -> None:
    value = ctypes.create_string_buffer(b"x")
    arguments = struct.pack("QII", ctypes.addressof(value), 1, 0)
    syscall(463, 463, -100, outside("victim").encode(), 0, b"user.bedrock2", arguments, ctypes.c_size_t(16))


@attack
def change_flags() -> None:
    file = os.open(outside("victim"), os.O_RDONLY)
    flags = ctypes.c_long(0x40)  # FS_NODUMP_FL
    call(libc.ioctl(file, ctypes.c_ulong(0x40086602), ctypes.byref(flags)))


@attack
def write_terminal() -> None:
    os.open(T["terminal"], os.O_WRONLY | os.O_NOCTTY)


@attack
def read_terminal() -> None:
    os.open(T["terminal"], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)


@attack
def type_on_terminal() -> None:
    file = os.open(T["terminal"], os.O_RDONLY | os.O_NOCTTY)
    os.setsid()
    call(libc.ioctl(file, ctypes.c_ulong(0x540E), ctypes.c_long(0)))
    call(libc.ioctl(file, ctypes.c_ulong(0x5412), ctypes.c_char_p(b"x")))


@attack
def write_kernel_setting() -> None:
    os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attack
def write_process_setting() -> None:
    os.open(f"/proc/{T['victim']}/oom_score_adj", os.O_WRONLY)


@attack
def write_shared_memory() -> None:
    os.open(T["memory"], os.O_RDWR)


after("the server's own files")


@attack
def read_protected_file() -> None:
    if not os.read(os.open(T["protected_file"], os.O_RDONLY), 10):
        raise OSError(errno.ENODATA, "empty")


@attack
def read_in_protected_directory() -> None:
    os.open(os.path.join(T["protected_directory"], "secret"), os.O_RDONLY)


@attack
def write_in_protected_directory() -> None:
    make(os.path.join(T["protected_directory"], f"made-{os.getpid()}"))


@attack
def read_protected_through_process() -> None:
    os.open(f"/proc/{T['victim']}/root{T['protected_directory']}/secret", os.O_RDONLY)


@attack
def read_private_of_another_call() -> None:
    os.open(T["other_private"], os.O_RDONLY)


# --- network ------------------------------------------------------------------------------------------------------

after("the network")


def stream(family: int = socket.AF_INET, protocol: int = 0) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, protocol)
    made.settimeout(5)
    return made


@attack
def tcp_connect() -> None:
    stream().connect(("127.0.0.1", T["tcp"]))


@attack
def tcp6_connect() -> None:
    stream(socket.AF_INET6).connect(("::1", T["tcp6"]))


@attack
def tcp_bind() -> None:
    stream().bind(("127.0.0.1", 0))


@attack
def tcp_listen_without_bind() -> None:
    stream().listen()


@attack
def mptcp_connect() -> None:
    stream(protocol=262).connect(("127.0.0.1", T["tcp"]))


@attack
def tcp_fast_open() -> None:
    try:
        stream().sendto(b"x", 0x20000000, ("127.0.0.1", T["tcp"]))
    except BlockingIOError:
        return  # EINPROGRESS: the first packet is on its way


@attack
def udp_send() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", T["udp"]))


@attack
def udp_connect() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", T["udp"]))


@attack
def raw_icmp() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attack
def packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)


@attack
def netlink() -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


@attack
def vsock() -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


@attack
def kernel_crypto() -> None:
    socket.socket(38, socket.SOCK_SEQPACKET)


@attack
def unix_connect() -> None:
    stream(socket.AF_UNIX).connect(T["unix"])


@attack
def unix_datagram() -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", T["unix_datagram"])


@attack
def unix_datagram_from_pair() -> None:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendmsg([b"x"], [], 0, T["unix_datagram"])


@attack
def unix_datagram_from_raw_pair() -> None:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendmsg([b"x"], [], 0, T["unix_datagram"])


@attack
def unix_abstract_connect() -> None:
    stream(socket.AF_UNIX).connect("\0" + T["abstract"])


# --- other processes ----------------------------------------------------------------------------------------------

after("other processes")


@attack
def send_signal() -> None:
    os.kill(T["victim"], signal.SIGCONT)


@attack
def send_signal_by_pidfd() -> None:
    signal.pidfd_send_signal(os.pidfd_open(T["victim"]), signal.SIGCONT)


@attack
def trace_process() -> None:
    call(libc.ptrace(16, T["victim"], None, None))


@attack
def seize_process() -> None:
    call(libc.ptrace(0x4206, T["victim"], None, None))


@attack
def read_memory() -> None:
    data = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(data), 8)
    remote = struct.pack("QQ", ctypes.addressof(data), 8)
    try:
        syscall(310, 270, T["victim"], local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0))
    except OSError as error:
        if error.errno != errno.EFAULT:  # allowed to, but there is nothing at this address
            raise


@attack
def open_memory() -> None:
    os.open(f"/proc/{T['victim']}/mem", os.O_RDONLY)


@attack
def read_environment() -> None:
    os.read(os.open(f"/proc/{T['victim']}/environ", os.O_RDONLY), 10)


@attack
def read_command_line() -> None:
    os.read(os.open(f"/proc/{T['victim']}/cmdline", os.O_RDONLY), 10)


@attack
def take_file_of_process() -> None:
    syscall(438, 438, os.pidfd_open(T["victim"]), 0, 0)


@attack
def limit_process() -> None:
    syscall(302, 261, T["victim"], 4, struct.pack("QQ", 0, 0), None)


@attack
def change_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, T["victim"], 19)


@attack
def change_priority_of_group() -> None:
    os.setpriority(os.PRIO_PGRP, T["victim"], 19)


@attack
def change_io_priority() -> None:
    syscall(251, 30, 1, T["victim"], 3 << 13)


@attack
def change_affinity() -> None:
    os.sched_setaffinity(T["victim"], os.sched_getaffinity(0))


@attack
def change_scheduler() -> None:
    os.sched_setscheduler(T["victim"], os.SCHED_BATCH, os.sched_param(0))


@attack
def make_signal_owner() -> None:
    reading, _ = os.pipe()
    call(libc.fcntl(reading, 8, T["victim"]))


@attack
def move_pages() -> None:
    syscall(279, 239, T["victim"], ctypes.c_ulong(0), None, None, None, 0)


@attack
def attach_shared_memory() -> None:
    number = call(libc.shmget(T["sysv"], 0, 0))
    libc.shmat.restype = ctypes.c_long
    call(libc.shmat(number, None, 0))


@attack
def open_message_queue() -> None:
    syscall(240, 180, T["queue"].encode(), os.O_RDWR, 0, None)


# --- the kernel ---------------------------------------------------------------------------------------------------

after("the kernel and the rights")


@attack
def make_user_namespace() -> None:
    call(libc.unshare(0x10000000))


@attack
def make_user_namespace_by_clone() -> None:
    child = syscall(56, 220, ctypes.c_ulong(0x10000000 | signal.SIGCHLD), None, None, None, None)
    if child == 0:
        os._exit(0)


@attack
def make_user_namespace_by_clone3() -> None:
    arguments = struct.pack("Q" * 8, 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    child = syscall(435, 435, arguments, ctypes.c_size_t(64))
    if child == 0:
        os._exit(0)


@attack
def enter_namespace() -> None:
    call(libc.setns(os.open(f"/proc/{T['victim']}/ns/net", os.O_RDONLY), 0))


@attack
def mount_something() -> None:
    target = private("").encode()
    call(libc.mount(b"tmpfs", target, b"tmpfs", ctypes.c_ulong(0), None))
    libc.umount2(target, 2)


@attack
def unmount_what_hides() -> None:
    call(libc.umount2(T["protected_directory"].encode(), 2))


@attack
def remount_writable() -> None:
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    syscall(442, 442, -100, b"/", 0x8000, ctypes.byref(attributes), ctypes.c_size_t(32))


@attack
def change_root() -> None:
    os.chroot("/")


@attack
def io_uring() -> None:
    syscall(425, 425, 1, ctypes.create_string_buffer(120))


@attack
def key_ring() -> None:
    syscall(250, 219, 0, ctypes.c_long(-3), 1, 0, 0)


@attack
def bpf() -> None:
    attributes = struct.pack("IIIIIII", 2, 4, 4, 1, 0, 0, 0) + bytes(100)
    syscall(321, 280, 0, attributes, len(attributes))


@attack
def perf_events() -> None:
    attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6) + bytes(64)
    syscall(298, 241, attributes, 0, -1, -1, ctypes.c_ulong(0))


@attack
def user_fault() -> None:
    syscall(323, 282, 1)


@attack
def open_by_handle() -> None:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    call(libc.name_to_handle_at(-100, outside("victim").encode(), handle, ctypes.byref(mount), 0))
    folder = os.open(T["outside"], os.O_RDONLY)
    syscall(304, 265, folder, handle, os.O_RDONLY)


@attack
def set_host_name() -> None:
    socket.sethostname(socket.gethostname())


@attack
def read_kernel_log() -> None:
    syscall(103, 116, 3, ctypes.create_string_buffer(100), 100)


@attack
def call_as_x32() -> None:
    if not X86:
        raise OSError(errno.ENOSYS, "no such thing")
    child = syscall(0x40000000 | 39, 0)
    if child < 0:
        raise OSError(errno.ENOSYS, "refused")


@attack
def keep_capabilities() -> None:
    sets = (ctypes.c_uint32 * 6)()
    call(libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets))
    if not any(sets):
        raise OSError(errno.EPERM, "none")


@attack
def regain_by_exec() -> None:
    with open("/proc/self/status") as file:
        lines = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    if lines["NoNewPrivs"] == "1":
        raise OSError(errno.EPERM, "no new privileges")


# --- the same by other ways ---------------------------------------------------------------------------------------


def through_link(folder: str) -> str:
    link = private(f"link-{os.getpid()}")
    os.symlink(folder, link)
    return link


def from_inside(folder: str, shown: str) -> str:
    os.chdir(folder)
    return shown


ROUTES: dict[str, Callable[[str], str]] = {
    "dots": lambda folder: f"{folder}/../{os.path.basename(folder)}",
    "own_root": lambda folder: f"/proc/self/root{folder}",
    "thread_root": lambda folder: f"/proc/thread-self/root{folder}",
    "parent_root": lambda folder: f"/proc/{os.getppid()}/root{folder}",
    "directory": lambda folder: f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}",
    "place": lambda folder: f"/proc/self/fd/{os.open(folder, os.O_PATH)}",
    "working_directory": lambda folder: from_inside(folder, "."),
    "own_cwd": lambda folder: from_inside(folder, "/proc/self/cwd"),
    "link": through_link,
}
"""Other names for a directory."""

CHANGES: dict[str, Callable[[str, str], object]] = {
    "write": lambda at, _: os.open(f"{at}/victim", os.O_WRONLY),
    "append": lambda at, _: os.open(f"{at}/victim", os.O_WRONLY | os.O_APPEND),
    "create": lambda at, _: make(f"{at}/made-{os.getpid()}"),
    "truncate": lambda at, _: os.truncate(f"{at}/victim", 1),
    "truncate_by_reading": lambda at, _: os.open(f"{at}/victim", os.O_RDONLY | os.O_TRUNC),
    "remove": lambda at, route: os.unlink(f"{at}/removable-{route}"),
    "remove_directory": lambda at, route: os.rmdir(f"{at}/folder-{route}"),
    "make_directory": lambda at, _: os.mkdir(f"{at}/dir-{os.getpid()}"),
    "make_symlink": lambda at, _: os.symlink("/etc", f"{at}/link-{os.getpid()}"),
    "make_fifo": lambda at, _: os.mkfifo(f"{at}/fifo-{os.getpid()}"),
    "rename": lambda at, route: os.rename(f"{at}/movable-{route}", f"{at}/renamed-{route}"),
    "link": lambda at, _: os.link(f"{at}/victim", f"{at}/linked-{os.getpid()}"),
    "change_mode": lambda at, _: os.chmod(f"{at}/victim", 0o640),
    "change_owner": lambda at, _: os.chown(f"{at}/victim", os.getuid(), -1),
    "change_times": lambda at, _: os.utime(f"{at}/victim", (1, 1)),
}
"""What is done in that directory; some need a file of their own for each way there."""


def by_route(change: Callable[[str, str], object], folder: str, route: str) -> Callable[[], object]:
    return lambda: change(ROUTES[route](T[folder]), route)


def read_secret(at: str, _: str) -> None:
    if not os.read(os.open(f"{at}/secret", os.O_RDONLY), 10):
        raise OSError(errno.ENODATA, "empty")


def list_secrets(at: str, _: str) -> None:
    if not os.listdir(at):
        raise OSError(errno.ENODATA, "empty")


for route in ROUTES:
    after("files")
    for named, change in CHANGES.items():
        add(f"{named}_by_{route}", by_route(change, "outside", route))
    after("the server's own files")
    add(f"read_secret_by_{route}", by_route(read_secret, "protected_directory", route))
    add(f"list_secrets_by_{route}", by_route(list_secrets, "protected_directory", route))


@attack
def read_server_token() -> None:
    os.open(os.path.join(T["protected_directory"], "token"), os.O_RDONLY)


@attack
def connect_to_server() -> None:
    stream(socket.AF_UNIX).connect(os.path.join(T["protected_directory"], "socket"))


after("the network")


def any_socket(family: int, kind: int) -> Callable[[], object]:
    return lambda: call(libc.socket(family, kind, 0))


for family in range(1, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        add(f"socket_of_family_{family}_type_{int(kind)}", any_socket(family, int(kind)))


after("files")

FILE_IOCTLS = {
    "version": 0x40087602, "version_32": 0x40047602, "version_of_ext4": 0x40086604, "flags_32": 0x40046602,
    "attributes_of_fat": 0x40047211, "extended_flags": 0x401C5820, "blessing_of_hfs": 0x6880, "verity": 0x40806685,
    "encryption": 0x400C6613,
}  # fmt: skip
"""Requests of file systems that change a file which is open for reading only. None that concerns a whole file system:
without a sandbox, root would be served."""


def by_ioctl(request: int) -> Callable[[], object]:
    def change() -> None:
        file = os.open(outside("victim"), os.O_RDONLY)
        call(libc.ioctl(file, ctypes.c_ulong(request), ctypes.create_string_buffer(struct.pack("Q", 1), 256)))

    return change


for named, request in FILE_IOCTLS.items():
    add(f"set_by_ioctl_{named}", by_ioctl(request))


@attack
def take_lease() -> None:
    """Whoever opens the file for writing waits until it is given back."""
    fcntl.fcntl(os.open(outside("victim"), os.O_RDONLY), 1024, fcntl.F_RDLCK)


@attack
def take_delegation() -> None:
    file = os.open(outside("victim"), os.O_RDONLY)
    call(libc.fcntl(file, 1040, ctypes.create_string_buffer(struct.pack("IHH", 0, fcntl.F_RDLCK, 0))))


@attack
def lock_file() -> None:
    fcntl.flock(os.open(outside("victim"), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


@attack
def lock_file_for_reading() -> None:
    fcntl.lockf(os.open(outside("victim"), os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


@attack
def read_fifo() -> None:
    """What is read is gone for whom it was meant."""
    os.read(os.open(outside("full-fifo"), os.O_RDONLY | os.O_NONBLOCK), 1)


after("other processes")


def keepers() -> tuple[int, int]:
    """This call's init and its tool host, as far as they can be seen."""
    pids = [os.getppid()]
    for _ in range(2):
        with open(f"/proc/{pids[-1]}/stat") as file:
            pids.append(int(file.read().rpartition(")")[2].split()[1]))
        if not pids[-1]:
            raise OSError(errno.ESRCH, "not to be seen")
    if pids[1] == 1:
        raise OSError(errno.ESRCH, "its init is the first of a namespace, and takes no signals from it")
    return pids[1], pids[2]


def queue(pid: int) -> bytes:
    return struct.pack("iiiiii", signal.SIGCONT, 0, -1, 0, os.getpid(), os.getuid()) + bytes(104)


WAYS_TO_SIGNAL: dict[str, Callable[[int], object]] = {
    "kill": lambda pid: os.kill(pid, signal.SIGCONT),
    "tkill": lambda pid: syscall(200, 130, pid, signal.SIGCONT),
    "tgkill": lambda pid: syscall(234, 131, pid, pid, signal.SIGCONT),
    "group": lambda pid: os.killpg(os.getpgid(pid), signal.SIGCONT),
    "queue": lambda pid: syscall(129, 138, pid, signal.SIGCONT, queue(pid)),
    "thread_queue": lambda pid: syscall(297, 240, pid, pid, signal.SIGCONT, queue(pid)),
    "pidfd": lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT),
    "proc": lambda pid: signal.pidfd_send_signal(os.open(f"/proc/{pid}", os.O_RDONLY), signal.SIGCONT),
}


def to_keeper(way: Callable[[int], object], which: int) -> Callable[[], object]:
    return lambda: way(keepers()[which])


for named, way in WAYS_TO_SIGNAL.items():
    add(f"signal_init_by_{named}", to_keeper(way, 0))
    add(f"signal_tool_host_by_{named}", to_keeper(way, 1))


# --- storms -------------------------------------------------------------------------------------------------------
#
# Each is a call of its own that is to be ended, or refused, before it has done what it tries. All have an end: what no
# limit stops costs 400 processes or megabytes for a moment, and works.

PROCESSES, MEGABYTES = 80, 192
"""Limits of the call."""

STORMS: dict[str, Callable[[], object]] = {}


def storm(function: Callable[[], object]) -> Callable[[], object]:
    STORMS[function.__name__] = function
    return function


def fill(write: Callable[[bytes], object], megabytes: int = 400) -> None:
    for _ in range(megabytes):
        write(bytes(range(256)) * 4096)


def children(count: int, work: Callable[[], object], seconds: float) -> None:
    """Let so many children do it; return when all have, and they have lived that long."""
    reading, writing = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            work()
            os.write(writing, b"!")
            time.sleep(seconds)
            os._exit(0)
    for _ in range(count):
        os.read(reading, 1)
    time.sleep(seconds)


@storm
def fork_many() -> None:
    children(400, lambda: None, 2)


@storm
def fork_many_into_sessions() -> None:
    children(400, os.setsid, 2)


@storm
def fill_memory_in_children() -> None:
    kept: list[bytes] = []
    children(5, lambda: fill(kept.append, 80), 3)


@storm
def fill_shared_memory() -> None:
    memory = mmap.mmap(-1, 400 << 20)
    children(1, lambda: fill(memory.write), 0)
    time.sleep(3)


@storm
def fill_files_in_memory() -> None:
    file = os.memfd_create("x")
    fill(lambda data: os.write(file, data))
    time.sleep(3)


@storm
def fill_system_v_memory() -> None:
    number = call(libc.shmget(0, ctypes.c_size_t(400 << 20), 0o1600))
    libc.shmat.restype = ctypes.c_void_p
    try:
        place = libc.shmat(number, None, 0)
        libc.memset(ctypes.c_void_p(place), 1, ctypes.c_size_t(400 << 20))
        time.sleep(3)
    finally:
        libc.shmctl(number, 0, None)


# --- beneath a workspace ------------------------------------------------------------------------------------------

after("what a workspace protects")

RENAME_EXCHANGE = 2
RACES = 3000
"""How often an attempt is repeated against a thread, for as many milliseconds at most; TARGETS may name fewer."""
FS_IOC_SETFLAGS, FS_NODUMP, FICLONE = 0x40086602, 0x40, 0x40049409

PROTECTED = {
    "git_config": ".git/config",
    "git_hook": ".git/hooks/pre-commit",
    "nested_git": "nested/.git/config",
    "upper_case_git": "upper/.GIT/config",
    "git_file": "worktree/.git",
    "bare": "bare.git/config",
    "envrc": ".envrc",
    "vscode": ".vscode/tasks.json",
    "idea": "nested/.idea/workspace.xml",
    "program": "node_modules/.bin/tool",
    "hard_link_out": "hard-out",
    "hard_link_git": "hard-git",
    "link_to_git": "git-link/config",
    "own_data": "own/data/token",
}
"""Files that stay as they are, by a name for them."""

FOLDERS = (
    ".git/hooks", ".git/objects", ".git/refs/heads", "nested/.git", "nested/.idea", "upper/.GIT", "worktree",
    "bare.git/objects", "bare.git/refs", ".vscode", "node_modules/.bin", "own/data", "kit/objects", "kit/refs",
    "empty", "tools/.bin", "moved/sub/.git", "free",
)  # fmt: skip


def lay_out(folder: str, outside: str) -> None:
    """Fill one copy; `outside`: a file that one of the hard links is of."""
    for name in FOLDERS:
        os.makedirs(f"{folder}/{name}")
    for name in (*PROTECTED.values(), ".git/HEAD", "bare.git/HEAD", "moved/sub/.git/config", "free/file", "free/HEAD"):
        if not name.startswith(("hard-", "git-link")):
            with open(f"{folder}/{name}", "w") as file:
                file.write("content")
    os.link(outside, f"{folder}/hard-out")
    os.link(f"{folder}/.git/config", f"{folder}/hard-git")
    os.symlink(".git", f"{folder}/git-link")
    os.symlink(os.path.dirname(outside), f"{folder}/dir-out")
    os.symlink(outside, f"{folder}/file-out")
    os.symlink(f"{outside}-new", f"{folder}/dangling-out")
    os.symlink("free/.envrc", f"{folder}/dangling")


def at(copy: str, name: str) -> str:
    return os.path.join(T["workspace"], copy, name)


def exchange(one: str, other: str) -> None:
    number = ctypes.c_long(316 if X86 else 276)
    call(libc.syscall(number, -100, one.encode(), -100, other.encode(), RENAME_EXCHANGE))


def changed(path: str, change: Callable[[], object]) -> None:
    """Raise OSError if the file is as it was, whatever the change claims."""
    before = os.stat(path)
    change()
    after = os.stat(path)
    if (before.st_ctime_ns, before.st_ino) == (after.st_ctime_ns, after.st_ino):
        raise OSError(errno.EPERM, "without effect")


def write_to(path: str) -> None:
    os.write(os.open(path, os.O_WRONLY), b"x")


def map_shared(path: str) -> None:
    with open(path, "r+b") as file:
        mmap.mmap(file.fileno(), 0)[0:1] = b"x"


def replace(path: str) -> None:
    os.rename(make(f"{os.path.dirname(os.path.dirname(path))}/mine-{os.getpid()}"), path)


OPERATIONS: dict[str, Callable[[str], object]] = {
    "write": write_to,
    "append": lambda path: os.write(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"x"),
    "truncate": lambda path: changed(path, lambda: os.truncate(path, 1)),
    "truncate_reading": lambda path: changed(path, lambda: os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "map": map_shared,
    "change_mode": lambda path: changed(path, lambda: os.chmod(path, 0o755)),
    "change_times": lambda path: changed(path, lambda: os.utime(path, (1, 1))),
    "reopen": lambda path: os.open(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", os.O_RDWR),
    "change_mode_open": lambda path: changed(path, lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o700)),
}
"""What is tried with each of PROTECTED, by name."""

OF_NAMES: dict[str, Callable[[str], object]] = {
    "remove": os.unlink,
    "move_away": lambda path: os.rename(path, f"{path}-moved"),
    "replace": replace,
    "exchange": lambda path: exchange(make(f"{path}-mine"), path),
}
"""Likewise, but only with those whose name is protected: another name of a file can go."""

NAMED = tuple(name for name in PROTECTED if not name.startswith(("hard_link", "link_to")))


def races(attempt: Callable[[], object], meanwhile: Callable[[], object], done: Callable[[], bool]) -> None:
    """Repeat an attempt while a thread does something else; raise OSError if it never worked."""
    ended = False

    def go_on() -> None:
        while not ended:
            try:
                for _ in range(random.randint(1, 2)):  # in step with the attempts, each of them would meet the same
                    meanwhile()
            except OSError:
                time.sleep(0)

    threading.Thread(target=go_on, daemon=True).start()
    rounds = T.get("races", RACES)
    until = time.monotonic() + rounds / 1000
    try:
        for _ in range(rounds):
            with suppress(OSError):
                attempt()
            if done():
                return
            if time.monotonic() > until:
                break
    finally:
        ended = True
    raise OSError(errno.EPERM, "never")


def others() -> dict[str, Callable[[], object]]:
    return {
        **{f"make_{key}": make_new(path) for key, path in new_names().items()},
        "make_repository": lambda: make(at("special", "kit/HEAD")),
        "move_into_repository": lambda: os.rename(at("special", "free/HEAD"), at("kit2", "kit/HEAD")),
        "link_into_repository": lambda: os.symlink("x", at("kit3", "kit/HEAD")),
        "move_what_contains_git": lambda: os.rename(at("special", "moved"), at("special", "moved2")),
        "move_git": lambda: os.rename(at("moves", ".git"), at("moves", "git")),
        "move_above_programs": lambda: os.rename(at("special", "tools"), at("free", "free/node_modules")),
        "move_above_own_data": lambda: os.rename(at("special", "own"), at("special", "own2")),
        "close_above_own_data": lambda: os.chmod(at("kit2", "own"), 0o700 | 0o7),
        "follow_file_out": lambda: write_to(at("special", "file-out")),
        "follow_directory_out": lambda: make(at("special", f"dir-out/made-{os.getpid()}")),
        "follow_dangling_out": lambda: make(at("special", "dangling-out")),
        "follow_dangling_to_name": lambda: make(at("special", "dangling")),
        "above_itself": lambda: make(os.path.join(T["workspace"], f"../made-{os.getpid()}")),
        "move_out": move_out,
        "move_in": lambda: os.rename(f"{T['outside']}/movable-workspace", at("special", "in")),
        "move_itself": lambda: os.rename(T["workspace_2"], T["workspace_2"] + "-moved"),
        "remove_itself": lambda: os.rmdir(T["workspace_3"]),
        "link_git": lambda: link_git(".git/HEAD", "alias"),
        "link_out": lambda: link_git("free/file", f"{T['outside']}/linked-{os.getpid()}"),
        "set_user_id": lambda: set_user_id(lambda path: os.chmod(path, 0o4755)),
        "set_user_id_of_open_file": lambda: set_user_id(lambda path: os.fchmod(os.open(path, os.O_RDWR), 0o4755)),
        "make_with_user_id": lambda: set_user_id(make_with_user_id, "-2"),
        "make_fifo_in_git": lambda: os.mkfifo(at("special", ".git/fifo")),
        "listen_in_workspace": listen,
        "from_inside_git": from_inside_git,
        "beneath_open_git": beneath_open,
        "unnamed_file_into_git": unnamed_into,
        "clone_into_git": clone_into,
        "flags_of_git": set_flags,
        "copy_range_into_git": copy_range,
        "openat2_git": openat2,
        "through_files_of_init": through_init,
        "through_root_of_init": lambda: write_to(f"/proc/{os.getppid()}/root" + at("special", ".git/config")),
        "change_path_while_opening": change_path,
        "turn_link_while_writing": turn_link,
        "swap_directory_while_writing": swap_directory,
        "name_after_repository_while_moving": complete_while_moving,
    }  # fmt: skip


def new_names() -> dict[str, str]:
    return {
        "git": "empty/.git",
        "git_upper_case": "empty/.GiT",
        "git_invisible": "empty/.g\u200cit",
        "git_full_width": "empty/.\uff47it",
        "git_in_circle": "free/.\u24bcit",
        "envrc": "empty/.envrc",
        "vscode": "empty/.vscode",
        "idea": "free/.idea",
        "programs": "node_modules/pkg/node_modules/.bin",
    }


def make_new(name: str) -> Callable[[], object]:
    def attempt() -> None:
        path = at("special", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path)

    return attempt


def move_out() -> None:
    os.rename(make(at("special", "mine")), f"{T['outside']}/moved-{os.getpid()}")


def link_git(name: str, other: str) -> None:
    alias = at("special", other)
    os.link(at("special", name), alias)
    write_to(alias)


def set_user_id(change: Callable[[str], object], suffix: str = "") -> None:
    path = make(at("special", f"mine-{os.getpid()}"))
    change(path)
    if not os.stat(path + suffix).st_mode & 0o4000:
        raise OSError(errno.EPERM, "without effect")


def make_with_user_id(path: str) -> None:
    os.open(f"{path}-2", os.O_CREAT | os.O_WRONLY, 0o4755)


def listen() -> None:
    socket.socket(socket.AF_UNIX).bind(at("special", "s"))


def from_inside_git() -> None:
    os.chdir(at("special", ".git"))
    write_to("config")


def beneath_open() -> None:
    folder = os.open(at("special", ".git"), os.O_RDONLY)
    os.open("config", os.O_WRONLY, dir_fd=folder)


def unnamed_into() -> None:
    file = os.open(at("special", ".git"), os.O_WRONLY | os.O_TMPFILE)
    made = at("special", ".git/made").encode()
    call(libc.linkat(-100, f"/proc/self/fd/{file}".encode(), -100, made, 0x400))  # AT_SYMLINK_FOLLOW


def clone_into() -> None:
    """Copy through a file that is open for reading only: what needs no right to open is asked of the kernel."""
    source = os.open(at("special", "free/file"), os.O_RDONLY)
    try:
        fcntl.ioctl(os.open(at("special", ".git/config"), os.O_RDWR), FICLONE, source)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY}:
            raise


def set_flags() -> None:
    file = os.open(at("special", ".git/config"), os.O_RDONLY)
    fcntl.ioctl(file, FS_IOC_SETFLAGS, struct.pack("l", FS_NODUMP))


def copy_range() -> None:
    source = os.open(at("special", "free/file"), os.O_RDONLY)
    os.copy_file_range(source, os.open(at("special", ".git/config"), os.O_WRONLY), 4)


def through_init() -> None:
    """Whoever keeps the call has the place where the workspace is writable."""
    for number in range(3, 40):
        for keeper in (1, os.getppid()):
            with suppress(OSError):
                os.close(os.open(f"/proc/{keeper}/fd/{number}/special/free/through", os.O_CREAT | os.O_WRONLY))
                return
    raise OSError(errno.EACCES, "by none")


def openat2() -> None:
    how = struct.pack("QQQ", os.O_WRONLY, 0, 0)
    path = at("special", ".git/config").encode()
    call(libc.syscall(ctypes.c_long(437), -100, path, how, ctypes.c_size_t(24)))


def change_path() -> None:
    """Change the path in memory while the system call is judged."""
    fine, wanted = (at("races", name).encode() for name in ("free/file-1", ".git/hooks/x"))
    path = ctypes.create_string_buffer(max(len(fine), len(wanted)) + 1)
    values = [fine, wanted]

    def flip() -> None:
        values.reverse()
        path.value = values[0]

    def attempt() -> None:
        file = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        if file >= 0:
            os.close(file)

    races(attempt, flip, lambda: os.path.exists(wanted))


def turn_link() -> None:
    """Turn a link between a directory and .git while a file beneath it is made."""
    link, other = at("races", "turned"), at("races", "turning")
    goals = [at("races", "free"), at("races", ".git")]

    def turn() -> None:
        goals.reverse()
        os.symlink(goals[0], other)
        os.rename(other, link)

    def attempt() -> None:
        os.close(os.open(f"{link}/turned-made", os.O_CREAT | os.O_WRONLY, 0o600))

    races(attempt, turn, lambda: os.path.exists(at("races", ".git/turned-made")))


def swap_directory() -> None:
    """Exchange a directory and a link out of the workspace while a file beneath it is made."""
    folder, link = at("races", "swapped"), at("races", "swap")
    os.mkdir(folder)
    os.symlink(T["outside"], link)
    made = f"swapped-{os.getpid()}"

    def attempt() -> None:
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY, 0o600))

    races(attempt, lambda: exchange(folder, link), lambda: os.path.exists(f"{T['outside']}/{made}"))


def complete_while_moving() -> None:
    """Move a directory to a name that only a thread makes a protected one with what it puts in."""
    source, target = at("races", "pkg"), at("races", "empty/node_modules")
    os.mkdir(source)

    def fill() -> None:
        os.mkdir(f"{source}/.bin")

    def attempt() -> None:
        os.rename(source, target)

    def back() -> bool:
        if os.path.exists(f"{target}/.bin"):
            return True
        if os.path.exists(target):
            os.rename(target, source)
        if os.path.exists(f"{source}/.bin"):
            os.rmdir(f"{source}/.bin")
        return False

    races(attempt, fill, back)


def on_target(operation: Callable[[str], object], copy: str, name: str) -> Callable[[], object]:
    return lambda: operation(at(copy, PROTECTED[name]))


for verb, operation in OPERATIONS.items():
    for named in PROTECTED:
        add(f"workspace_{verb}_{named}", on_target(operation, verb, named))
for verb, operation in OF_NAMES.items():
    for named in NAMED:
        add(f"workspace_{verb}_{named}", on_target(operation, verb, named))
for named, attempt in others().items():
    add(f"workspace_{named}", attempt)

COPIES = (*OPERATIONS, *OF_NAMES, "special", "moves", "free", "races", "kit2", "kit3", "uses")
"""The copies that `lay_out` fills."""

WORKSPACE_USES: dict[str, Callable[[], object]] = {}
"""What works beneath a workspace, and nowhere else."""


def workspace_use(function: Callable[[], object]) -> Callable[[], object]:
    WORKSPACE_USES[function.__name__] = function
    return function


@workspace_use
def edit_in_workspace() -> None:
    path = make(at("uses", "file"))
    with open(path, "r+") as file:
        file.write("text")
        file.truncate(2)
    os.rename(path, at("uses", "other"))
    os.unlink(at("uses", "other"))


@workspace_use
def make_directories_in_workspace() -> None:
    os.makedirs(at("uses", "a/b"))
    os.symlink("b", at("uses", "a/link"))
    os.rename(at("uses", "a"), at("uses", "c"))
    make(at("uses", "c/link/file"))
    os.unlink(at("uses", "c/b/file"))
    os.unlink(at("uses", "c/link"))
    os.rmdir(at("uses", "c/b"))
    os.rmdir(at("uses", "c"))


@workspace_use
def change_what_is_known_of_files_in_workspace() -> None:
    path = make(at("uses", "mode"))
    os.chmod(path, 0o700)
    os.utime(path, (1, 1))
    os.utime(os.open(path, os.O_RDWR))
    os.fchmod(os.open(path, os.O_WRONLY), 0o600)
    os.truncate(path, 100)
    os.unlink(path)
    os.chmod(at("uses", "free"), 0o755)


@workspace_use
def lock_and_map_in_workspace() -> None:
    file = os.open(at("uses", "mapped"), os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 100)
    mmap.mmap(file, 100)[0:1] = b"x"
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.unlink(at("uses", "mapped"))


# --- what must go on working --------------------------------------------------------------------------------------


@use
def write_private_file() -> None:
    os.mkdir(private("a"))
    with open(private("a/file"), "w") as file:
        file.write("x")
    os.rename(private("a/file"), private("a/other"))
    os.link(private("a/other"), private("a/link"))
    with open(private("a/link"), "w") as file:
        file.write("y")
    os.unlink(private("a/other"))


@use
def move_private_file() -> None:
    os.mkdir(private("b"))
    os.rename(make(private("b/file")), private("moved-file"))


@use
def truncate_private_file() -> None:
    os.truncate(make(private("long")), 0)


@use
def write_null() -> None:
    with open("/dev/null", "wb") as file:
        file.write(b"x")


@use
def read_anywhere() -> None:
    with open("/etc/passwd") as file:
        file.read()
    with open(outside("victim")) as file:
        file.read()


@use
def socket_pair() -> None:
    first, second = socket.socketpair()
    first.sendall(b"x")
    second.recv(1)


@use
def own_limits() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, 0, 19)


@use
def signal_own_child() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@use
def touch_new_private_file() -> None:
    os.utime(os.open(private("touched"), os.O_CREAT | os.O_WRONLY))


@use
def change_mode_of_private_file() -> None:
    os.chmod(make(private("mine")), 0o700)


@use
def share_memory() -> None:
    path = f"/dev/shm/bedrock-{os.getpid()}"
    make(path)
    os.unlink(path)


def outcome(attempt: Callable[[], object]) -> str:
    """Make an attempt in a process of its own: "OPEN", or the name of the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            attempt()
            said = "OPEN"
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, str(error))
        except BaseException as error:  # noqa: BLE001 -- an attack that is wrong proves nothing
            said = f"BROKEN {error!r}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return said or f"signal {os.WTERMSIG(status)}"


if __name__ == "__main__":
    T.update(json.loads(sys.argv[1]))
    if sys.argv[2:]:
        STORMS[sys.argv[2]]()
    else:
        found = {name: outcome(function) for name, function in (ATTACKS | USES | WORKSPACE_USES).items()}
        sys.stdout.write(json.dumps(found))
