"""Sets up the namespaces and mounts of a call, in its init process, before the program is started."""

# ruff: noqa: SIM105 -- contextlib.suppress would need one more import for every tool call

import ctypes
import errno
import os

from actors.adapters.sandbox.host import kernel, system_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x8000, 1
MOUNT_ATTR_RDONLY = 1

RESERVED_PIDS = 300
"""The number of pids that the kernel reserves; a namespace's pid_max is this number plus its process limit."""

PRIVATE_BYTES, SHARED_BYTES, PRIVATE_FILES = 1 << 30, 256 << 20, 1 << 18
"""The maximum bytes in the private directory and in /dev/shm, and the maximum number of files in each of them.

These limits exist if the call has namespaces (tier A). Without them (tier B) only the size of each file is limited.
"""


def enter_pid_namespace(restricted: bool = False) -> bool:
    """Make the next child PID 1 of a new namespace; return False if the kernel refuses.

    Unrestricted root needs no user namespace. Other users get one that maps only their own user and group, so programs
    that become another user do not work there, and files of other users appear as owned by the overflow user.
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
    """Set up the mounts of init and all its descendants. Raises OSError if that is required but impossible.

    With namespaces (tier A), this adds the key `place` to the description of the workspace in `launch`: a descriptor of
    the only mount through which the workspace can be changed.
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
    """Set up the mounts; return b"" or, if that failed, the error for the server: the stage and the errno."""
    try:
        arrange_mounts(launch, namespace)
    except OSError as error:
        return f"{'hide' if launch['restrict'] is None else 'restrict'} {error.errno or 0}".encode()
    return b""


def unshare_mounts(closed: bool, hiding: bool) -> None:
    """Enter a new mount namespace; if `closed`, also new network, IPC, host name and cgroup namespaces.

    If `closed`, mounts that are made outside later do not appear inside, because they would be writable. Otherwise they
    appear. If `hiding` paths, mounts that are made inside do not appear outside; else this holds only for mounts on
    /proc.
    """
    others = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
    kernel.checked(kernel.libc.unshare(kernel.CLONE_NEWNS | (others if closed else 0)))
    if closed:
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    elif hiding:
        mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE)


def enter_root(private: bytes, readable: "list[bytes]") -> None:
    """Make a root directory with nothing in it but `readable`, /proc and harmless devices. Raises OSError.

    The new root is built on the mount point `private`, and itself contains an empty directory with the path `private`.
    Symbolic links in `readable` are copied; every other path leads to the same file as outside; paths that do not exist
    are left out.
    """
    mount(b"tmpfs", private, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m,nr_inodes=4k")
    for path in (b"/proc", *DEVICES, *readable):
        show(path, private)
    for folder in (b"/dev/shm", private):
        os.makedirs(private + folder, exist_ok=True)
    for name, target in STANDARD_FILES:
        os.symlink(target, private + name)
    os.chdir(private)
    kernel.checked(kernel.libc.syscall(system_calls.NUMBERS[os.uname().machine]["pivot_root"], b".", b"."))
    kernel.checked(kernel.libc.umount2(b".", MNT_DETACH))
    os.chdir(b"/")


def show(path: bytes, root: bytes) -> None:
    """Make a path appear beneath a new root directory, with all that is mounted below it. Raises OSError."""
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
    """Return a descriptor of a copy of the mounts at and below `path`, which is attached nowhere in the file system."""
    return kernel.checked(
        kernel.libc.syscall(kernel.NR_OPEN_TREE, AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC)
    )


def mount_memory(path: bytes, size: int) -> None:
    """Mount an empty tmpfs of `size` bytes."""
    mount(b"tmpfs", path, b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={size},nr_inodes={PRIVATE_FILES}".encode())


def mask(path: bytes) -> None:
    """Hide a file or a directory under an empty one; a path that does not exist is skipped."""
    if os.path.isdir(path):
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        mount(b"tmpfs", path, b"tmpfs", flags, b"mode=000,size=4k,nr_inodes=2")
    elif os.path.lexists(path):
        mount(b"/dev/null", path, None, MS_BIND)
        make_read_only(path, 0)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    """Mount a file system through the C library. Raises OSError."""
    kernel.checked(kernel.libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def make_read_only(path: bytes, how: int) -> None:
    """Make a mount read-only, and with `how` AT_RECURSIVE all mounts below it. Raises OSError."""
    attributes = kernel.struct_of_words(MOUNT_ATTR_RDONLY, 0, 0, 0)
    kernel.checked(kernel.libc.syscall(kernel.NR_MOUNT_SETATTR, AT_FDCWD, path, how, attributes, len(attributes)))


def limit_pids(processes: int) -> None:
    """Limit the processes of this namespace, including those of root, if the kernel has a pid_max per namespace."""
    if processes and os.geteuid() == 0 and kernel.kernel_at_least(6, 14):
        try:
            kernel.write_file("/proc/sys/kernel/pid_max", str(RESERVED_PIDS + processes))
        except OSError:
            pass  # without the limit the tree can still be killed


DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")
STANDARD_FILES = (
    (b"/dev/fd", b"/proc/self/fd"), (b"/dev/stdin", b"/proc/self/fd/0"), (b"/dev/stdout", b"/proc/self/fd/1"),
    (b"/dev/stderr", b"/proc/self/fd/2"),
)  # fmt: skip
"""The links in /dev to the open files of a process: (path, target)."""
