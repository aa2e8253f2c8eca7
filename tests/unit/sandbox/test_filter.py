"""The system call filter, run by a small machine for classic BPF: for both architectures, whatever this one is."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.sandbox import toolhost

TABLES = {"x86_64": toolhost.X86_64, "aarch64": toolhost.AARCH64}
KILL, ALLOW, EPERM, ENOSYS, PRETEND = "kill", "allow", "EPERM", "ENOSYS", "pretend"
CLONE_NEWUSER = 0x10000000
WORDS = st.integers(0, 2**64 - 1)


def verdict(machine: str, tier: str, number: int, *arguments: int, abi: int = 7, architecture: int = 0) -> str:
    """What the kernel would do with a system call."""
    program = toolhost.seccomp_program(machine, tier, abi)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    six = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture or toolhost.ARCHITECTURES[machine], 0, *six)
    word, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == toolhost.LOAD:
            (word,) = struct.unpack_from("<I", data, value)
        elif operation == toolhost.AND:
            word &= value
        elif operation == toolhost.RETURN:
            named = {toolhost.ALLOW: ALLOW, toolhost.KILL_PROCESS: KILL, toolhost.PRETEND: PRETEND}
            return named.get(value) or errno.errorcode[value & 0xFFFF]
        else:
            meant = {toolhost.EQUAL: word == value, toolhost.AT_LEAST: word >= value, toolhost.ANY_BIT: word & value}
            at += yes if meant[operation] else no


def number_of(machine: str, name: str) -> int:
    return {**TABLES[machine], **toolhost.EVERYWHERE}[name]


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
    ("A", "fchmod", (3, 0o777), ALLOW),
    ("B", "fchmod", (3, 0o777), EPERM),
    ("A", "utimensat", (3, 0x1000), ALLOW),
    ("B", "utimensat", (3, 0x1000), EPERM),
    ("B", "utimensat", (3, 0, 0x1000), EPERM),
    ("B", "utimensat", (3, 1 << 40), EPERM),
    ("B", "utimensat", (3, 0, 0), PRETEND),
    ("A", "shmget", (1,), ALLOW),
    ("B", "shmget", (1,), EPERM),
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


@pytest.mark.parametrize("tier", "AB")
@given(number=st.integers(0, 2**32 - 1), arguments=st.lists(WORDS, max_size=6), abi=st.integers(1, 9))
def test_every_call_ends_in_a_verdict_and_only_known_ones_are_refused(
    tier: str, number: int, arguments: list[int], abi: int
) -> None:
    for machine, table in TABLES.items():
        said = verdict(machine, tier, number, *arguments, abi=abi)
        known = {*table.values(), *toolhost.EVERYWHERE.values()}
        if machine == "x86_64" and number >= toolhost.X32_BIT:
            assert said == ENOSYS
        elif number not in known:
            assert said == ALLOW
        assert verdict(machine, tier, number, *arguments, abi=abi, architecture=0x40000003) == KILL


@pytest.mark.parametrize("tier", "AB")
def test_what_is_refused_is_refused_whatever_the_arguments(machine: str, tier: str) -> None:
    known = {**TABLES[machine], **toolhost.EVERYWHERE}
    for name in toolhost.denied_names(tier, 7):
        if name in known:
            assert verdict(machine, tier, known[name], 0, 0, 0) == EPERM


def test_another_architecture_has_no_filter() -> None:
    with pytest.raises(OSError, match="architecture"):
        toolhost.seccomp_program("riscv64", "A", 7)


def test_the_filter_is_short_enough_for_its_jumps_and_the_kernel() -> None:
    for machine in TABLES:
        assert len(toolhost.seccomp_program(machine, "B", 1)) // 8 < 400
