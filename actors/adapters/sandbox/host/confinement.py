"""Confines a call: with namespaces and mounts in init; with capabilities, Landlock and seccomp in main."""

import ctypes
import errno
import os
import sys
from contextlib import suppress

from actors.adapters.sandbox.host import kernel, reported_calls, syscall_filter, writable_trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any
else:
    import _socket as socket

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x8000, 1
MOUNT_ATTR_RDONLY = 1

# The number of pids that the kernel reserves; a namespace's pid_max is this number plus the namespace's process limit.
RESERVED_PIDS = 300

# The size limits of the private directory and of /dev/shm, and the maximum number of files in each of them. They apply
# only in tier A; in tier B, only the size of each file is limited.
PRIVATE_BYTES, SHARED_BYTES, PRIVATE_FILES = 1 << 30, 256 << 20, 1 << 18


def enter_pid_namespace(restricted: bool = False) -> bool:
    """Make the next child PID 1 of a new namespace; False if the kernel refuses.

    Unrestricted root needs no user namespace. Other users get one that maps only themselves, so programs cannot become
    another user there, and others' files seem to belong to the overflow user.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and not restricted:
        return bool(kernel.libc.unshare(kernel.CLONE_NEWPID) == 0)
    if kernel.libc.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        kernel.write_file(f"/proc/self/{name}", text)
    return True


def arrange_mounts(launch: "dict[str, Any]", namespace: bool) -> None:
    """Set up the mounts for init and all its descendants. Raises OSError if they are required but impossible.

    In tier A, the workspace section of `launch` gets the key `place`: a descriptor for the only mount through which the
    workspace can be changed.
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
    try:
        arrange_mounts(launch, namespace)
    except OSError as error:
        return f"{'hide' if launch['restrict'] is None else 'restrict'} {error.errno or 0}".encode()
    return b""


def unshare_mounts(closed: bool, hiding: bool) -> None:
    """Enter a new mount namespace and, if `closed`, new network, IPC, host name and cgroup namespaces.

    If `closed`, mounts that are made outside later do not appear inside, where they would be writable. If `hiding`
    paths, mounts made inside do not appear outside; otherwise, only mounts on /proc are kept from appearing outside.
    """
    others = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
    kernel.checked(kernel.libc.unshare(kernel.CLONE_NEWNS | (others if closed else 0)))
    if closed:
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    elif hiding:
        mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE)


def enter_root(private: bytes, readable: "list[bytes]") -> None:
    """Enter a root directory that contains only `readable`, /proc and harmless devices. Raises OSError.

    It is built on the mount point `private`, and contains an empty directory with that path. Symbolic links in
    `readable` are copied; missing paths are left out.
    """
    mount(b"tmpfs", private, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m,nr_inodes=4k")
    for path in (b"/proc", *DEVICES, *readable):
        show(path, private)
    for folder in (b"/dev/shm", private):
        os.makedirs(private + folder, exist_ok=True)
    for name, target in STANDARD_FILES:
        os.symlink(target, private + name)
    os.chdir(private)
    kernel.checked(kernel.libc.syscall(kernel.NUMBERS[os.uname().machine]["pivot_root"], b".", b"."))
    kernel.checked(kernel.libc.umount2(b".", MNT_DETACH))
    os.chdir(b"/")


def show(path: bytes, root: bytes) -> None:
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
    make_read_only(b"/", AT_RECURSIVE)
    mount_memory(private, PRIVATE_BYTES)
    if os.path.isdir(b"/dev/shm"):
        mount_memory(b"/dev/shm", SHARED_BYTES)


def copied_mounts(path: bytes) -> int:
    return kernel.checked(
        kernel.libc.syscall(kernel.NR_OPEN_TREE, AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC)
    )


def mount_memory(path: bytes, size: int) -> None:
    mount(b"tmpfs", path, b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={size},nr_inodes={PRIVATE_FILES}".encode())


def mask(path: bytes) -> None:
    if os.path.isdir(path):
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        mount(b"tmpfs", path, b"tmpfs", flags, b"mode=000,size=4k,nr_inodes=2")
    elif os.path.lexists(path):
        mount(b"/dev/null", path, None, MS_BIND)
        make_read_only(path, 0)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    kernel.checked(kernel.libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def make_read_only(path: bytes, how: int) -> None:
    """Make a mount read-only and, if `how` is AT_RECURSIVE, all mounts below it. Raises OSError."""
    attributes = kernel.struct_of_words(MOUNT_ATTR_RDONLY, 0, 0, 0)
    kernel.checked(kernel.libc.syscall(kernel.NR_MOUNT_SETATTR, AT_FDCWD, path, how, attributes, len(attributes)))


def limit_pids(processes: int) -> None:
    if processes and os.geteuid() == 0 and kernel.kernel_at_least(6, 14):
        with suppress(OSError):  # without the limit, the tree can still be killed
            kernel.write_file("/proc/sys/kernel/pid_max", str(RESERVED_PIDS + processes))


DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")
STANDARD_FILES = (
    (b"/dev/fd", b"/proc/self/fd"), (b"/dev/stdin", b"/proc/self/fd/0"), (b"/dev/stdout", b"/proc/self/fd/1"),
    (b"/dev/stderr", b"/proc/self/fd/2"),
)  # fmt: skip


CAPABILITY_VERSION_3, CAP_SETPCAP = 0x20080522, 8
CapabilityHeader, CapabilitySets = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
# The securebits to set: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE on, KEEP_CAPS off, and all four locked.
SECUREBITS = 0b11101111


def restrict(section: "dict[str, Any] | None", keepers: "tuple[int, ...]" = (), channel: int = -1) -> None:
    """Restrict this process irreversibly. Raises OSError if this cannot be enforced.

    `section` is described in toolhost.py; None means no restriction. `keepers` are the pids of init and host, which a
    program in the same PID namespace must not kill. `channel` is used only in workspace mode: the descriptor for
    reported system calls is sent over it to init, and the channel is then closed.
    """
    if section is None:
        return
    if section["tier"] not in {"A", "B"}:
        raise OSError(errno.ENOSYS, "no such restriction")
    brokered = section["workspace"] is not None
    apart = section["tier"] == "B" and section["readable"] is not None
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
    """Pass `listener` to init over `channel`, wait until init serves it, and close both. Raises OSError."""
    sender = socket.socket(fileno=channel)
    sender.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, listener.to_bytes(4, sys.byteorder))])
    os.close(listener)
    if not sender.recv(1):
        raise OSError(errno.EPROTO, "the broker does not serve it")
    sender.close()


def drop_capabilities() -> None:
    """Drop all capabilities and every way to regain them, even for root.

    Without CAP_SETPCAP, the bounding set remains, but `restrict` then sets no_new_privs, so that nothing can be
    regained.
    """
    if has_setpcap():
        kernel.checked(kernel.libc.prctl(kernel.PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))
        capability = 0
        while kernel.libc.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
            capability += 1
        if kernel.libc.prctl(kernel.PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
            raise OSError(errno.EPERM, "the capability bounding set cannot be cleared")
    kernel.checked(kernel.libc.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    kernel.checked(kernel.libc.capset(CapabilityHeader(CAPABILITY_VERSION_3, 0), CapabilitySets()))
    if any(capabilities()):
        raise OSError(errno.EPERM, "some capabilities remain")


def capabilities() -> "list[int]":
    """The effective, permitted and inheritable capabilities: the lower 32 bits of all three, then the upper."""
    sets = CapabilitySets()
    kernel.checked(kernel.libc.capget(CapabilityHeader(CAPABILITY_VERSION_3, 0), sets))
    return list(sets)


def has_setpcap() -> bool:
    return bool(capabilities()[0] & 1 << CAP_SETPCAP)


EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
# The Landlock rights that a rule for a file can grant; a rule for a directory can grant more.
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def file_rights(abi: int) -> int:
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return (1 << bits) - 1


def ruleset_attributes(abi: int) -> "list[int]":
    """The struct landlock_ruleset_attr for a version of Landlock: file rights, TCP rights, and scopes."""
    return [file_rights(abi), 0b11, 0b11][: 3 if abi >= 6 else 2 if abi >= 4 else 1]


def apply_landlock(section: "dict[str, Any]") -> None:
    """Allow reading all but protected paths, and writing only in the private directory; close the network.

    With `readable`, only those paths can be read. In tier A, other paths do not exist and empty mounts cover protected
    directories, so one rule for the root is usually enough. The only devices that can be opened are DEVICES, because a
    disk would reveal protected files, and a terminal would reveal the user's input.
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
    for device in DEVICES:
        grant(ruleset, device, rights & FILE_RIGHTS & ~EXECUTE)
    if not grant(ruleset, section["private"], rights):
        raise OSError(errno.ENOENT, "the private directory is missing")
    kernel.checked(kernel.libc.syscall(kernel.NR_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def grant_reading(ruleset: int, section: "dict[str, Any]") -> None:
    """Allow reading everything that is not protected.

    If there are `readable` paths and no namespace hides all others, allow reading only those paths and listing the
    directory `listable`.
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
    """Yield the fewest paths that cover `folder` without protected paths; nothing if `folder` is itself protected."""
    if any(writable_trees.within(folder, path) for path in protected):
        return
    if not any(writable_trees.within(path, folder) for path in protected):
        yield folder
        return
    for entry in os.scandir(folder):
        if not entry.is_symlink():
            yield from around(entry.path, protected)


def grant(ruleset: int, path: bytes, rights: int) -> bool:
    """Allow `rights` below `path`; return False if `path` cannot be opened, so that access stays denied."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with kernel.Opened(place):
        if not (add_rule(ruleset, place, rights) or add_rule(ruleset, place, rights & FILE_RIGHTS)):
            raise OSError(errno.EINVAL, "these rights apply to neither a directory nor a file")
    return True


def add_rule(ruleset: int, place: int, rights: int) -> bool:
    """Allow rights below an open directory or to an open file; False if some do not apply to files. Raises OSError."""
    rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
    try:
        kernel.checked(kernel.libc.syscall(kernel.NR_LANDLOCK_ADD, ruleset, 1, rule, 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
