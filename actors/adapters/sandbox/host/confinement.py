"""Restricts a program: the process that becomes the program drops capabilities and applies Landlock and seccomp."""

import ctypes
import errno
import os
import sys

from actors.adapters.sandbox.broker import reported_calls
from actors.adapters.sandbox.host import kernel, namespaces, syscall_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any
else:
    import _socket as socket

CAPABILITY_VERSION_3, CAP_SETPCAP = 0x20080522, 8
CapabilityHeader, CapabilitySets = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
SECUREBITS = 0b11101111
"""The securebits to set: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, not KEEP_CAPS, and all of them locked."""


def restrict(section: "dict[str, Any] | None", keepers: "tuple[int, ...]" = (), channel: int = -1) -> None:
    """Apply a restriction to this process, irreversibly. Raises OSError if it cannot be enforced.

    `section` describes the restriction (see toolhost.py); None means no restriction. `keepers` are the pids of init and
    the host if the program shares their PID namespace, because it must not be able to kill them; else (). `channel` is
    used in workspace mode only: the socket over which init gets the descriptor that reports system calls. It is closed
    afterwards.
    """
    if section is None:
        return
    if section["tier"] not in {"A", "B"}:
        raise OSError(errno.ENOSYS, "no such restriction")
    brokered = section["workspace"] is not None
    apart = section["tier"] == "B" and section["readable"] is not None
    program = (
        syscall_filter.filters.get((section["tier"], section["abi"], brokered)) if not (keepers or apart) else None
    )
    if program is None:
        machine, tier, abi = os.uname().machine, section["tier"], section["abi"]
        program = syscall_filter.seccomp_program(machine, tier, abi, keepers, brokered, apart=apart)
    drop_capabilities()
    kernel.checked(kernel.libc.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    apply_landlock(section)
    if brokered:
        hand_over(reported_calls.install(syscall_filter.described(program)), channel)
    else:
        syscall_filter.apply_seccomp(program)


def hand_over(listener: int, channel: int) -> None:
    """Pass `listener`, which reports the program's system calls, to init over `channel`; wait until init serves it.

    Closes both descriptors in this process. Raises OSError.
    """
    sender = socket.socket(fileno=channel)
    sender.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, listener.to_bytes(4, sys.byteorder))])
    os.close(listener)
    if not sender.recv(1):
        raise OSError(errno.EPROTO, "nobody serves it")
    sender.close()


def drop_capabilities() -> None:
    """Drop all capabilities and every way to regain them, even for root.

    Without CAP_SETPCAP the bounding set remains, but a program cannot regain capabilities anyway, because `restrict`
    sets no_new_privs next.
    """
    if has_setpcap():
        kernel.checked(kernel.libc.prctl(kernel.PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))
        capability = 0
        while kernel.libc.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
            capability += 1
        if kernel.libc.prctl(kernel.PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
            raise OSError(errno.EPERM, "the bounding set cannot be emptied")
    kernel.checked(kernel.libc.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    kernel.checked(kernel.libc.capset(CapabilityHeader(CAPABILITY_VERSION_3, 0), CapabilitySets()))
    if any(capabilities()):
        raise OSError(errno.EPERM, "capabilities are left")


def capabilities() -> "list[int]":
    """Return the effective, permitted and inheritable capabilities: the lower 32 bits of each, then the upper ones."""
    sets = CapabilitySets()
    kernel.checked(kernel.libc.capget(CapabilityHeader(CAPABILITY_VERSION_3, 0), sets))
    return list(sets)


def has_setpcap() -> bool:
    """Return whether this process has CAP_SETPCAP."""
    return bool(capabilities()[0] & 1 << CAP_SETPCAP)


EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The Landlock rights that a rule for a file can grant; a rule for a directory can grant more."""


def file_rights(abi: int) -> int:
    """Return all rights to files that version `abi` of Landlock can restrict."""
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return (1 << bits) - 1


def ruleset_attributes(abi: int) -> "list[int]":
    """Return struct landlock_ruleset_attr for a version of Landlock: rights to files, to TCP, and scopes."""
    return [file_rights(abi), 0b11, 0b11][: 3 if abi >= 6 else 2 if abi >= 4 else 1]


def apply_landlock(section: "dict[str, Any]") -> None:
    """Allow reading anything but protected paths and writing in the private directory only; close the network.

    If the restriction lists `readable` paths, only these can be read. With namespaces (tier A), other paths do not even
    exist, and empty mounts cover protected directories, so usually one rule for the root directory suffices. The only
    devices that can be opened are namespaces.DEVICES: a disk would reveal protected files, a terminal the user's input.
    """
    abi = min(section["abi"], kernel.LANDLOCK_ABI)
    if abi < 1:
        raise OSError(errno.ENOSYS, "no Landlock")
    attributes = kernel.struct_of_words(*ruleset_attributes(abi))
    ruleset = kernel.checked(kernel.libc.syscall(kernel.NR_LANDLOCK_CREATE, attributes, len(attributes), 0))
    rights = file_rights(abi)
    grant_reading(ruleset, section)
    if section["tier"] == "A":
        grant(ruleset, b"/dev/shm", rights)
    for device in namespaces.DEVICES:
        grant(ruleset, device, rights & FILE_RIGHTS & ~EXECUTE)
    if not grant(ruleset, section["private"], rights):
        raise OSError(errno.ENOENT, "no private directory")
    kernel.checked(kernel.libc.syscall(kernel.NR_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def grant_reading(ruleset: int, section: "dict[str, Any]") -> None:
    """Allow reading everything that is not protected.

    If the restriction lists `readable` paths and no namespace hides other paths, allow reading these paths only, and
    listing the names in the directory `listable`.
    """
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
    """Yield the fewest paths that cover `folder` without the protected ones; none if `folder` itself is protected."""
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
    """Allow `rights` below `path`; return False if `path` cannot be opened: access then stays denied."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not (add_rule(ruleset, place, rights) or add_rule(ruleset, place, rights & FILE_RIGHTS)):
            raise OSError(errno.EINVAL, "neither a directory nor a file can have these rights")
    finally:
        os.close(place)
    return True


def add_rule(ruleset: int, place: int, rights: int) -> bool:
    """Allow `rights` below an open directory, or to an open file; return False if some of them do not apply to files.

    Raises OSError.
    """
    rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
    try:
        kernel.checked(kernel.libc.syscall(kernel.NR_LANDLOCK_ADD, ruleset, 1, rule, 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
