"""Numbers that the kernel gives meaning to, against two libraries that have nothing to do with ours."""

import ctypes
import os

import landlockpy
import pytest
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

TABLES = {
    "x86_64": (kernel.X86_64, syscalls.X86_64_SYSCALLS, syscalls.AUDIT_ARCH_X86_64),
    "aarch64": (kernel.AARCH64, syscalls.AARCH64_SYSCALLS, syscalls.AUDIT_ARCH_AARCH64),
}
NOT_ON_AARCH64 = set(
    "open chmod chown lchown utime utimes futimesat iopl ioperm creat mkdir rmdir unlink rename symlink access".split()
)
NEWER_THAN_THE_LIBRARY = {"file_setattr"}


@pytest.mark.parametrize("machine", TABLES)
def test_system_calls_have_the_numbers_of_the_architecture(machine: str) -> None:
    ours, theirs, architecture = TABLES[machine]
    known = {**ours, **kernel.EVERYWHERE}
    wrong = {name: number for name, number in known.items() if theirs.get(name, number) != number}
    assert wrong == {}
    assert known.keys() - theirs.keys() <= NEWER_THAN_THE_LIBRARY
    assert syscall_filter.ARCHITECTURES[machine] == architecture


@pytest.mark.parametrize("machine", TABLES)
@pytest.mark.parametrize("tier", "AB")
def test_no_name_in_a_filter_is_unknown(machine: str, tier: str) -> None:
    known = TABLES[machine][0].keys() | kernel.EVERYWHERE.keys()
    named = {*syscall_filter.denied_names(tier, 1), *syscall_filter.inspected(tier, 1), *syscall_filter.reported()}
    assert named - known == (NOT_ON_AARCH64 & named if machine == "aarch64" else set())


def test_what_the_broker_asks_of_the_kernel() -> None:
    assert {name: table["seccomp"] for name, (_, table, _) in TABLES.items()} == reported_calls.NR_SECCOMP
    assert {name: table["renameat2"] for name, (_, table, _) in TABLES.items()} == write_broker.NR_RENAMEAT2
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
