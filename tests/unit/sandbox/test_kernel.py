"""What is asked of the kernel: numbers, rights and the filter of system calls."""

import ctypes
import errno
import os
import socket
import struct

import landlockpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landlockpy import _syscall as landlock_calls
from landlockpy import flags as landlock_flags
from seccompy import _syscall as seccomp_calls
from seccompy import bpf, syscalls

from actors.adapters.sandbox.host import (
    confinement,
    kernel,
    reported_calls,
    syscall_filter,
    writable_trees,
    write_broker,
)

NUMBERS = {
    "x86_64": (kernel.X86_64, syscalls.X86_64_SYSCALLS, syscalls.AUDIT_ARCH_X86_64),
    "aarch64": (kernel.AARCH64, syscalls.AARCH64_SYSCALLS, syscalls.AUDIT_ARCH_AARCH64),
}
NOT_ON_AARCH64 = set(
    "open chmod chown lchown utime utimes futimesat iopl ioperm creat mkdir rmdir unlink rename symlink access".split()
)
NEWER_THAN_THE_LIBRARY = {"file_setattr"}


@pytest.mark.parametrize("machine", NUMBERS)
def test_system_calls_have_the_numbers_of_the_architecture(machine: str) -> None:
    ours, theirs, architecture = NUMBERS[machine]
    known = {**ours, **kernel.EVERYWHERE}
    wrong = {name: number for name, number in known.items() if theirs.get(name, number) != number}
    assert wrong == {}
    assert known.keys() - theirs.keys() <= NEWER_THAN_THE_LIBRARY
    assert syscall_filter.ARCHITECTURES[machine] == architecture


@pytest.mark.parametrize("machine", NUMBERS)
@pytest.mark.parametrize("tier", "AB")
def test_no_name_in_a_filter_is_unknown(machine: str, tier: str) -> None:
    known = NUMBERS[machine][0].keys() | kernel.EVERYWHERE.keys()
    named = {*syscall_filter.denied_names(tier, 1), *syscall_filter.inspected(tier, 1), *syscall_filter.reported()}
    assert named - known == (NOT_ON_AARCH64 & named if machine == "aarch64" else set())


def test_what_the_broker_asks_of_the_kernel() -> None:
    assert {name: table["seccomp"] for name, (_, table, _) in NUMBERS.items()} == reported_calls.NR_SECCOMP
    assert {name: table["renameat2"] for name, (_, table, _) in NUMBERS.items()} == write_broker.NR_RENAMEAT2
    assert syscalls.X86_64_SYSCALLS["openat2"] == writable_trees.NR_OPENAT2
    assert syscalls.X86_64_SYSCALLS["open_tree"] == kernel.NR_OPEN_TREE


def test_rights_of_landlock() -> None:
    theirs = landlock_flags.AccessFS
    for name in ("EXECUTE", "WRITE_FILE", "READ_FILE", "READ_DIR", "TRUNCATE", "IOCTL_DEV"):
        assert getattr(confinement, name) == getattr(theirs, name)
    for abi in range(1, kernel.LANDLOCK_ABI + 1):
        numbers = [landlockpy.fs_for_abi(abi), landlockpy.net_for_abi(abi), landlockpy.scope_for_abi(abi)]
        assert confinement.ruleset_attributes(abi) == [int(number) for number in numbers if number]
    newest = confinement.ruleset_attributes(kernel.LANDLOCK_ABI)
    assert ctypes.sizeof(landlock_calls.RulesetAttr) >= 8 * len(newest)
    assert [field[0] for field in landlock_calls.RulesetAttr._fields_][:3] == [
        "handled_access_fs",
        "handled_access_net",
        "scoped",
    ]
    assert ctypes.sizeof(landlock_calls.PathBeneathAttr) == 12
    assert landlock_calls.RULE_PATH_BENEATH == 1


def test_system_calls_of_landlock() -> None:
    ours = (kernel.NR_LANDLOCK_CREATE, kernel.NR_LANDLOCK_ADD, kernel.NR_LANDLOCK_RESTRICT)
    assert ours == (landlock_calls.SYS_CREATE_RULESET, landlock_calls.SYS_ADD_RULE, landlock_calls.SYS_RESTRICT_SELF)
    assert syscalls.X86_64_SYSCALLS["mount_setattr"] == kernel.NR_MOUNT_SETATTR
    assert landlock_calls.PR_SET_NO_NEW_PRIVS == kernel.PR_SET_NO_NEW_PRIVS


def test_instructions_and_data_of_seccomp() -> None:
    ours = (
        syscall_filter.LOAD,
        syscall_filter.EQUAL,
        syscall_filter.AT_LEAST,
        syscall_filter.ANY_BIT,
        syscall_filter.AND,
        syscall_filter.RETURN,
    )
    theirs = (bpf.BPF_LD_ABS_W, bpf.BPF_JEQ, bpf.BPF_JGEQ, bpf.BPF_JSET, bpf.BPF_ALU_AND_K, bpf.BPF_RET_K)
    assert ours == theirs
    data = seccomp_calls.SeccompData
    assert (data.nr.offset, data.arch.offset, data.args.offset) == (
        syscall_filter.NUMBER,
        syscall_filter.ARCHITECTURE,
        syscall_filter.ARGUMENTS,
    )
    assert ctypes.sizeof(syscall_filter.Program) == ctypes.sizeof(seccomp_calls.SockFprog)
    assert len(syscall_filter.instruction(syscall_filter.LOAD, 0, 0, 0)) == 8


def test_values_that_python_knows() -> None:
    import fcntl
    import socket
    import termios

    assert syscall_filter.TERMINAL_INPUT[0] == termios.TIOCSTI
    assert syscall_filter.SIGNAL_OWNER[0] == fcntl.F_SETOWN
    assert syscall_filter.STREAM_PAIRS == (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    assert syscall_filter.AF_UNIX == socket.AF_UNIX
    assert syscall_filter.PRIO_PROCESS == os.PRIO_PROCESS


TABLES = {"x86_64": kernel.X86_64, "aarch64": kernel.AARCH64}
KILL, ALLOW, EPERM, ENOSYS, PRETEND = "kill", "allow", "EPERM", "ENOSYS", "pretend"
CLONE_NEWUSER = 0x10000000
WORDS = st.integers(0, 2**64 - 1)

FILE_SYSTEM_IOCTLS = (
    0x40087602,  # FS_IOC_SETVERSION
    0x40047602,  # FS_IOC32_SETVERSION
    0x40086604,  # EXT4_IOC_SETVERSION
    0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x6880,  # HFSPLUS_IOC_BLESS, which does not even say that it writes
    0xC0185879,  # FITRIM
    0xC0045877,  # FIFREEZE
    0x41009432,  # FS_IOC_SETFSLABEL
    0x800C6613 & ~0x80000000 | 0x40000000,  # FS_IOC_SET_ENCRYPTION_POLICY
    0x40806685,  # FS_IOC_ENABLE_VERITY
)
HARMLESS_IOCTLS = (
    0x5401,  # TCGETS
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5451,  # FIOCLEX
    0x40049409,  # FICLONE
    0xC020660B,  # FS_IOC_FIEMAP
    0x80087601,  # FS_IOC_GETVERSION
    0x80047210,  # FAT_IOCTL_GET_ATTRIBUTES
    0x801C581F,  # FS_IOC_FSGETXATTR
    0x2,  # FIGETBSZ
)


def verdict(
    machine: str,
    tier: str,
    number: int,
    *arguments: int,
    abi: int = 7,
    architecture: int = 0,
    keepers: tuple[int, ...] = (),
    brokered: bool = False,
) -> str:
    """What the kernel would do with a system call."""
    program = syscall_filter.seccomp_program(machine, tier, abi, keepers, brokered)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    six = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture or syscall_filter.ARCHITECTURES[machine], 0, *six)
    word, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == syscall_filter.LOAD:
            (word,) = struct.unpack_from("<I", data, value)
        elif operation == syscall_filter.AND:
            word &= value
        elif operation == syscall_filter.RETURN:
            named = {syscall_filter.ALLOW: ALLOW, syscall_filter.KILL_PROCESS: KILL, syscall_filter.PRETEND: PRETEND}
            named[syscall_filter.NOTIFY] = "ask"
            return named.get(value) or errno.errorcode[value & 0xFFFF]
        else:
            meant = {
                syscall_filter.EQUAL: word == value,
                syscall_filter.AT_LEAST: word >= value,
                syscall_filter.ANY_BIT: word & value,
            }
            at += yes if meant[operation] else no


def number_of(machine: str, name: str) -> int:
    return {**TABLES[machine], **kernel.EVERYWHERE}[name]


@pytest.fixture(params=TABLES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


CALLS = [
    ("AB", "socket", (socket.AF_UNIX, socket.SOCK_STREAM), EPERM),
    ("AB", "connect", (), EPERM),
    ("AB", "socketpair", (socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), ALLOW),
    ("AB", "socketpair", (socket.AF_UNIX, socket.SOCK_SEQPACKET), ALLOW),
    ("AB", "socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK), EPERM),
    ("AB", "socketpair", (socket.AF_UNIX, socket.SOCK_RAW), EPERM),
    ("AB", "socketpair", (socket.AF_INET, socket.SOCK_STREAM), EPERM),
    ("AB", "sendto", (3, 1, 1, 0, 0), ALLOW),
    ("AB", "sendto", (3, 1, 1, 0, 0x1000), EPERM),
    ("AB", "sendto", (3, 1, 1, 0, 1 << 40), EPERM),
    ("AB", "clone", (17,), ALLOW),
    ("AB", "clone", (CLONE_NEWUSER | 17,), EPERM),
    ("AB", "clone3", (), ENOSYS),
    ("AB", "prlimit64", (0, 7), ALLOW),
    ("AB", "prlimit64", (1, 7), EPERM),
    ("AB", "setpriority", (0, 0, 19), ALLOW),
    ("AB", "setpriority", (0, 5, 19), EPERM),
    ("AB", "setpriority", (2, 0, 19), EPERM),
    ("AB", "ioprio_set", (1, 0), ALLOW),
    ("AB", "ioprio_set", (1, 9), EPERM),
    ("AB", "ioctl", (0, 0x5412), EPERM),
    ("AB", "ioctl", (0, 0x5412 | 1 << 32), EPERM),
    ("AB", "ioctl", (0, 0x5401), ALLOW),
    ("A", "ioctl", (3, 0x40086602), ALLOW),
    ("B", "ioctl", (3, 0x40086602), EPERM),
    ("B", "ioctl", (3, 0x80086601), ALLOW),
    ("B", "ioctl", (3, 0x40049409), ALLOW),
    ("B", "ioctl", (3, 0x5000940E), EPERM),
    ("AB", "fcntl", (3, 8, 1), EPERM),
    ("AB", "fcntl", (3, 15, 1), EPERM),
    ("AB", "fcntl", (3, 1), ALLOW),
    ("AB", "fcntl", (3, 1024), EPERM),
    ("AB", "fcntl", (3, 1040), EPERM),
    ("AB", "fcntl", (3, 1025), ALLOW),
    *(("B", "ioctl", (3, number), EPERM) for number in FILE_SYSTEM_IOCTLS),
    *(("B", "ioctl", (3, number), ALLOW) for number in HARMLESS_IOCTLS),
    ("A", "fchmod", (3, 0o777), ALLOW),
    ("B", "fchmod", (3, 0o777), EPERM),
    ("A", "utimensat", (3, 0x1000), ALLOW),
    ("B", "utimensat", (3, 0x1000), EPERM),
    ("B", "utimensat", (3, 0, 0x1000), EPERM),
    ("B", "utimensat", (3, 1 << 40), EPERM),
    ("B", "utimensat", (3, 0, 0), PRETEND),
    ("AB", "shmget", (1,), EPERM),
    ("A", "shmat", (1,), ALLOW),
    ("B", "shmat", (1,), EPERM),
    ("AB", "truncate", (), ALLOW),
    ("AB", "openat2", (), ALLOW),
    ("AB", "io_uring_setup", (), EPERM),
    ("AB", "ptrace", (), EPERM),
    ("AB", "mount", (), EPERM),
]


@pytest.mark.parametrize(("tiers", "name", "arguments", "wanted"), CALLS)
def test_calls(machine: str, tiers: str, name: str, arguments: tuple[int, ...], wanted: str) -> None:
    for tier in tiers:
        assert verdict(machine, tier, number_of(machine, name), *arguments) == wanted


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [(os.O_RDONLY | os.O_TRUNC, EPERM), (os.O_WRONLY | os.O_TRUNC, ALLOW), (os.O_RDONLY | os.O_CLOEXEC, ALLOW)],
)
def test_truncation_is_the_filter_s_task_where_landlock_does_not_know_it(machine: str, flags: int, wanted: str) -> None:
    openat = number_of(machine, "openat")
    assert verdict(machine, "B", openat, 0, 0, flags, abi=2) == wanted
    assert verdict(machine, "B", openat, 0, 0, flags, abi=3) == ALLOW
    assert verdict(machine, "B", number_of(machine, "openat2"), abi=2) == ENOSYS
    assert verdict(machine, "B", number_of(machine, "truncate"), abi=2) == EPERM


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kill", (100,)), ("kill", (-100,)), ("kill", (99,)), ("kill", (-99,)), ("kill", (-1,)), ("tkill", (100,)),
        ("tgkill", (5, 100)), ("tgkill", (100, 99)), ("rt_sigqueueinfo", (99,)), ("rt_tgsigqueueinfo", (7, 99)),
    ],
)  # fmt: skip
def test_those_who_keep_a_tool_are_spared_where_landlock_keeps_no_signals_in(
    machine: str, name: str, arguments: tuple[int, ...]
) -> None:
    words = [each & 2**64 - 1 for each in arguments]
    assert verdict(machine, "B", number_of(machine, name), *words, abi=5, keepers=(100, 99)) == EPERM
    assert verdict(machine, "B", number_of(machine, name), *words, abi=6, keepers=(100, 99)) == ALLOW
    assert verdict(machine, "A", number_of(machine, name), *words, abi=5) == ALLOW
    assert verdict(machine, "B", number_of(machine, name), 0, 101, abi=5, keepers=(100, 99)) == ALLOW
    assert verdict(machine, "B", number_of(machine, "pidfd_send_signal"), abi=5, keepers=(100, 99)) == ENOSYS


@pytest.mark.parametrize("tier", "AB")
@given(number=st.integers(0, 2**32 - 1), arguments=st.lists(WORDS, max_size=6), abi=st.integers(1, 9))
def test_every_call_ends_in_a_verdict_and_only_known_ones_are_refused(
    tier: str, number: int, arguments: list[int], abi: int
) -> None:
    for machine, table in TABLES.items():
        said = verdict(machine, tier, number, *arguments, abi=abi)
        known = {*table.values(), *kernel.EVERYWHERE.values()}
        if machine == "x86_64" and number >= syscall_filter.X32_BIT:
            assert said == ENOSYS
        elif number not in known:
            assert said == ALLOW
        assert verdict(machine, tier, number, *arguments, abi=abi, architecture=0x40000003) == KILL


@pytest.mark.parametrize("tier", "AB")
def test_what_is_refused_is_refused_whatever_the_arguments(machine: str, tier: str) -> None:
    known = {**TABLES[machine], **kernel.EVERYWHERE}
    for name in syscall_filter.denied_names(tier, 7):
        if name in known:
            assert verdict(machine, tier, known[name], 0, 0, 0) == EPERM


def test_another_architecture_has_no_filter() -> None:
    with pytest.raises(OSError, match="architecture"):
        syscall_filter.seccomp_program("riscv64", "A", 7)


def test_the_filter_is_short_enough_for_its_jumps_and_the_kernel() -> None:
    for machine in TABLES:
        assert len(syscall_filter.seccomp_program(machine, "B", 1)) // 8 < 400
