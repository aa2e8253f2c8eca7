"""Builds the system call filter (seccomp) for a restricted program."""

import ctypes
import errno
import os
import sys

from actors.adapters.sandbox.host import kernel

# Operation codes of classic BPF instructions, which work on 32-bit words.
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
# Filter results: the system call fails with EPERM, fails with ENOSYS, or does nothing and reports success.
REFUSE, UNKNOWN, PRETEND = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x00050000

# Filter results: the system call fails with EOPNOTSUPP, or is reported to the broker and waits for its answer.
UNSUPPORTED, NOTIFY = 0x00050000 | errno.EOPNOTSUPP, 0x7FC00000

# Offsets in struct seccomp_data; an argument takes 8 bytes, lower half first.
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16

X32_BIT = 0x40000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# System calls that are refused with EPERM whatever their arguments: those that affect the network, other processes or
# the machine; and shmget, because its shared memory belongs to no process, so that no limit includes it.
DENIED = """
accept accept4 bind connect listen socket
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp migrate_pages move_pages
io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key bpf perf_event_open userfaultfd fanotify_init
unshare setns mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
mount_setattr open_by_handle_at swapon swapoff acct quotactl quotactl_fd sethostname setdomainname kexec_load
kexec_file_load init_module finit_module delete_module reboot settimeofday clock_settime adjtimex clock_adjtime iopl
ioperm syslog vhangup shmget
"""

# System calls that are also refused in tier B: they change metadata, which Landlock does not restrict, or use memory or
# queues that are shared by name.
DENIED_IN_B = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat setxattr lsetxattr fsetxattr
setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr shmat shmctl semget semop
semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""

# System calls that the broker carries out in workspace mode. The broker does not make hard links, pipes, sockets,
# devices or extended attributes.
REPORTED = """
creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 symlink symlinkat truncate
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
"""

# In workspace mode, these system calls fail as they would on a file system without extended attributes, which most
# programs ignore. If they failed with EPERM, copying a directory with its mode would fail, too, because programs then
# remove the copy's access control list.
ATTRIBUTES = "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat"

# If `apart` (see seccomp_program), these system calls fail in the same way as those in ATTRIBUTES.
READ_ATTRIBUTES = "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr getxattrat listxattrat"

O_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY

NAMESPACE_FLAGS = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
AF_UNIX, SOCK_TYPE_MASK = 1, 0xF
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
# The allowed types of socket pairs, SOCK_STREAM and SOCK_SEQPACKET; a datagram socket could still send to any address.
STREAM_PAIRS = (1, 5)

# The ioctls TIOCSTI and TIOCLINUX, which insert input into a terminal.
TERMINAL_INPUT = (0x5412, 0x541C)

# The fcntl commands F_SETOWN and F_SETOWN_EX, which choose the process that gets signals about a file. SOCKET_OWNER has
# the ioctls that do the same for sockets.
SIGNAL_OWNER = (8, 15)

SOCKET_OWNER = (0x8901, 0x8902)
# The fcntl commands F_SETLEASE and F_SETDELEG, which can block processes outside the sandbox that open the file.
LEASES = (1024, 1040)

# Allowed ioctls: FICLONE and FICLONERANGE, which need a file opened for writing; FS_IOC_FIEMAP and FIGETBSZ, which only
# read.
HARMLESS_IOCTLS = (0x40049409, 0x4020940D, 0xC020660B, 2)

IOCTL_WRITES, IOCTL_READS = 0x40000000, 0x80000000
# The types of ioctls for terminals, files and sockets. Of other types, only ioctls that read are allowed: others may
# control devices, or change a file system's attributes, versions and subvolumes, even through a file opened for
# reading.
IOCTL_KINDS = (0x5400, 0x8900)


def seccomp_program(
    machine: str, tier: str, abi: int, keepers: "tuple[int, ...]" = (), brokered: bool = False, *, apart: bool = False
) -> bytes:
    """The filter for an architecture. Raises OSError if its system call numbers are unknown.

    `tier` is the tier of the sandbox, `abi` the version of Landlock; `keepers` are pids that must not be signalled.
    With `brokered`, file system changes are reported to the broker in init (write_broker.py). With `apart`, ways of
    reading that Landlock does not restrict are refused, too, which keeps principals apart.
    """
    table = kernel.NUMBERS.get(machine)
    if table is None or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, "no system call filter for this architecture")
    numbers = table | kernel.EVERYWHERE
    program = header(machine)
    calls = inspected(tier, abi, keepers) | (reported() if brokered else {}) | (unread() if apart else {})
    for name, body in calls.items():
        if name in numbers:
            program += test(EQUAL, numbers[name], 0, len(body)) + body
    denied = [numbers[name] for name in denied_names(tier, abi) if name in numbers]
    for left in range(len(denied), 0, -1):
        program += test(EQUAL, denied[-left], left, 0)
    return b"".join(program + result(ALLOW) + result(REFUSE))


def denied_names(tier: str, abi: int) -> "list[str]":
    """The system calls that are always refused; includes `truncate` if Landlock (version `abi`) cannot restrict it."""
    names = list[str](DENIED.split())
    if tier == "B":
        names += DENIED_IN_B.split()
        if abi < 3:
            names.append("truncate")
    return names


def header(machine: str) -> "list[bytes]":
    """BPF code that loads the call's number, and kills a process that makes system calls of another architecture."""
    program = load(ARCHITECTURE) + test(EQUAL, ARCHITECTURES[machine], 1, 0) + result(KILL_PROCESS) + load(NUMBER)
    if machine == "x86_64":
        program += test(AT_LEAST, X32_BIT, 0, 1) + result(UNKNOWN)
    return program


def inspected(tier: str, abi: int, keepers: "tuple[int, ...]" = ()) -> "dict[str, list[bytes]]":
    """The system calls that are allowed only with certain arguments, each with the BPF code that checks them."""
    oneself = all_equal((0, 0))
    calls = {
        "clone3": result(UNKNOWN),  # a filter cannot read its flags in memory; the C library then uses clone
        "clone": argument(0) + test(ANY_BIT, NAMESPACE_FLAGS, 0, 1) + result(REFUSE) + result(ALLOW),
        "socketpair": argument(0) + test(EQUAL, AF_UNIX, 1, 0) + result(REFUSE) + pair_kind(),
        # allowed only without an address, which is how event loops wake themselves
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
        # The program `touch` sets the times of a file that it has created to now; pretend that this succeeds.
        calls["utimensat"] = all_equal((1, 0), (1.5, 0), (2, 0), (2.5, 0), then=PRETEND)
    if tier == "B" and abi < 3:
        calls["open"] = unless_truncating_reader(1)
        calls["openat"] = unless_truncating_reader(2)
        calls["openat2"] = result(UNKNOWN)  # a filter cannot read its flags in memory; programs then use openat
    if tier == "B" and abi < kernel.SIGNALS_ABI and keepers:
        calls |= signals(keepers)
    return calls


def reported() -> "dict[str, list[bytes]]":
    """The system calls that change files, each with code that reports it, allows it (if it only reads) or fails it."""
    ask = result(NOTIFY)
    calls: dict[str, list[bytes]] = dict.fromkeys(REPORTED.split(), ask)
    calls["open"], calls["openat"] = unless_reading(1), unless_reading(2)
    calls["openat2"] = result(UNKNOWN)  # a filter cannot read its flags in memory; programs then use openat
    for name, number in (("access", 1), ("faccessat", 2), ("faccessat2", 2)):
        calls[name] = argument(number) + test(ANY_BIT, os.W_OK, 0, 1) + ask + result(ALLOW)
    return calls | dict.fromkeys(ATTRIBUTES.split(), result(UNSUPPORTED))


def unread() -> "dict[str, list[bytes]]":
    """Code that refuses to watch directories or read extended attributes, because that would reveal hidden files."""
    calls: dict[str, list[bytes]] = dict.fromkeys(READ_ATTRIBUTES.split(), result(UNSUPPORTED))
    calls |= dict.fromkeys(("inotify_init", "inotify_init1"), result(UNKNOWN))
    return calls


def unless_reading(flags: int) -> "list[bytes]":
    """Code that reports an attempt to open a file, unless it is opened only for reading.

    `flags` is the number of the argument with the open flags.
    """
    program = argument(flags) + mask_word(os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | O_TMPFILE)
    return program + test(EQUAL, os.O_RDONLY, 0, 1) + result(ALLOW) + result(NOTIFY)


def signals(keepers: "tuple[int, ...]") -> "dict[str, list[bytes]]":
    """Code that refuses signals to `keepers`, to their process groups, to pid -1, and by pidfd."""
    spared = tuple(number & 0xFFFFFFFF for number in (-1, *keepers, *(-each for each in keepers)))
    first, second = (argument(each) + choice(spared, found=REFUSE, other=ALLOW) for each in (0, 1))
    return {
        "kill": first, "tkill": first, "rt_sigqueueinfo": first, "tgkill": second, "rt_tgsigqueueinfo": second,
        "pidfd_send_signal": result(UNKNOWN),
    }  # fmt: skip


def pair_kind() -> "list[bytes]":
    return argument(1) + mask_word(SOCK_TYPE_MASK) + choice(STREAM_PAIRS, found=ALLOW, other=REFUSE)


def ioctls(tier: str) -> "list[bytes]":
    """Code that refuses TERMINAL_INPUT and SOCKET_OWNER and, in tier B, ioctls with effects outside the sandbox."""
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
    """Code that refuses O_RDONLY together with O_TRUNC, which Landlock allows before version 3.

    `flags` is the number of the argument with the open flags.
    """
    truncates = mask_word(os.O_ACCMODE | os.O_TRUNC) + test(EQUAL, os.O_RDONLY | os.O_TRUNC, 0, 1)
    return argument(flags) + truncates + result(REFUSE) + result(ALLOW)


def all_equal(*wanted: "tuple[float, int]", then: int = ALLOW) -> "list[bytes]":
    """Code that returns `then` if all these arguments have these values, and otherwise refuses the call.

    The lower half of argument n is denoted by n, the upper half by n.5.
    """
    program: list[bytes] = []
    for number, value in wanted:
        program += argument(number) + test(EQUAL, value, 1, 0) + result(REFUSE)
    return program + result(then)


def choice(values: "tuple[int, ...]", *, found: int, other: int) -> "list[bytes]":
    program: list[bytes] = []
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        program += test(EQUAL, value, left, 0)
    return program + result(other) + result(found)


def argument(number: float) -> "list[bytes]":
    """BPF code that loads half of an argument: the lower half for a number n, the upper half for n.5."""
    return load(ARGUMENTS + int(8 * number))


def load(offset: int) -> "list[bytes]":
    return [instruction(LOAD, 0, 0, offset)]


def mask_word(bits: int) -> "list[bytes]":
    return [instruction(AND, 0, 0, bits)]


def test(operation: int, value: int, yes: int, no: int) -> "list[bytes]":
    """Code that compares the loaded word, and skips `yes` or `no` instructions."""
    return [instruction(operation, yes, no, value)]


def result(action: int) -> "list[bytes]":
    return [instruction(RETURN, 0, 0, action)]


def instruction(operation: int, yes: int, no: int, value: int) -> bytes:
    return operation.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def described(program: bytes) -> Program:
    return Program(len(program) // 8, program)


def apply_seccomp(program: bytes) -> None:
    kernel.checked(
        kernel.libc.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.byref(described(program)), 0, 0)
    )
