"""System calls, their constants, and access to files of /proc, for a tool host; see toolhost.py."""

import ctypes
import os
import sys

from actors.adapters.sandbox.host import frames

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 23, 24, 28, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

CLONE_PARENT = 0x00008000
CLONE_INTO_CGROUP, NR_CLONE3 = 1 << 33, 435
NR_OPEN_TREE = 428
NR_MOUNT_SETATTR, NR_LANDLOCK_CREATE, NR_LANDLOCK_ADD, NR_LANDLOCK_RESTRICT = 442, 444, 445, 446
"""These system calls, like all that were added after 2019, have the same number on every architecture."""

libc = ctypes.CDLL(None, use_errno=True)
forking_libc = ctypes.PyDLL(None, use_errno=True)
"""The C library, called without releasing the interpreter's lock, so that a forked child also holds the lock."""


def contents(path: "str | bytes") -> bytes:
    """Return the content of a file of /proc or of a control group. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while data := os.read(file, frames.CHUNK):
            found += data
        return found
    finally:
        os.close(file)


def struct_of_words(*words: int) -> bytes:
    """Encode 64-bit words as a C struct."""
    return b"".join(word.to_bytes(8, sys.byteorder) for word in words)


def kernel_at_least(*version: int) -> bool:
    """Return whether the kernel has this version or a newer one."""
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= version


def checked(result: int) -> int:
    """Return the result of a C function; raises OSError if it reports failure."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the kernel")
    return result


def write_file(path: str, text: str) -> None:
    """Write a short text to an existing file. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_ABI = 7
"""The newest version of Landlock whose features are used here."""

TRUNCATION_ABI = 3
"""The first version of Landlock that can restrict the truncation of files."""

SIGNALS_ABI = 6
"""The first version of Landlock that can confine signals to the sandbox."""


def close(*files: int) -> None:
    """Close descriptors."""
    for file in files:
        os.close(file)


def received_files(ancillary: "list[tuple[int, int, bytes]]") -> list[int]:
    """Return the descriptors that a socket message passed as ancillary data."""
    return [
        int.from_bytes(data[start : start + 4], sys.byteorder)
        for _, _, data in ancillary
        for start in range(0, len(data), 4)
    ]
