"""Opens directories without ever leaving a root directory: by openat2 where available, else component by component.

The results are O_PATH descriptors, because operations relative to such a descriptor are not affected by concurrent
renames. Both ways refuse the same paths: `..` above the root, and symbolic links that are absolute or lead out of the
root.
"""

import ctypes
import errno
import os
from contextlib import suppress

OPENAT2 = 437
"""The number of the system call openat2, the same on all architectures."""

RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)
RENAME_NOREPLACE = 1

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08

ATTEMPTS = 100
"""Maximum number of tries of openat2, which fails with EAGAIN while a directory on the path is being renamed."""

MAX_LINKS = 40
"""Maximum number of symbolic links that are followed, as in the kernel."""

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

LINK = DIRECTORY | os.O_NOFOLLOW


class PathEscapesError(Exception):
    """The path leads out of the root directory."""


class UnsupportedFileError(Exception):
    """The kernel, or a sandbox around this process, does not provide openat2."""


class OpenHow(ctypes.Structure):
    """The C struct open_how."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_directory(root: int, path: str) -> int:
    """Return a descriptor of the directory `path`, relative to and below `root`. Raises PathEscapesError or OSError."""
    try:
        return by_openat2(root, path)
    except UnsupportedFileError:
        return by_walking(root, path)


def by_openat2(root: int, path: str) -> int:
    """Open the directory with openat2. Raises UnsupportedFileError, PathEscapesError or OSError."""
    how = OpenHow(DIRECTORY, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path or ".")
    failure = errno.EAGAIN
    for _ in range(ATTEMPTS):
        opened = int(_syscall(OPENAT2, root, name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))))
        if opened >= 0:
            return opened
        failure = ctypes.get_errno()
        if failure in (errno.ENOSYS, errno.EPERM):
            raise UnsupportedFileError
        if failure == errno.EXDEV:
            raise PathEscapesError
        if failure not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(failure, os.strerror(failure), path)


def rename_new(directory: int, old: str, new: str) -> None:
    """Rename `old` to `new`, both in `directory`. Raises FileExistsError if `new` exists, or another OSError."""
    names = os.fsencode(old), os.fsencode(new)
    if _syscall(RENAMEAT2, directory, names[0], directory, names[1], RENAME_NOREPLACE) == 0:
        return
    failure = ctypes.get_errno()
    if failure not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(failure, os.strerror(failure), new)
    with suppress(FileNotFoundError):  # the file system, such as NFS, cannot do both in one step
        os.stat(new, dir_fd=directory, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def by_walking(root: int, path: str) -> int:
    """Open the directory component by component, never through an unchecked link. Raises PathEscapesError or OSError.

    `..` returns to the directory through which the walk came, not to the current parent, so moving a directory during
    the walk cannot lead elsewhere.
    """
    passed = [os.open(".", DIRECTORY, dir_fd=root)]
    try:
        _walk(passed, path)
        return passed.pop()
    finally:
        for directory in passed:
            close_quietly(directory)


def close_quietly(directory: int) -> None:
    """Close a descriptor that was only used to find a path; ignore a failure, which does not affect the result."""
    with suppress(OSError):
        os.close(directory)


def _walk(passed: list[int], path: str) -> None:
    """Resolve `path` from the last directory in `passed`, which lists the open directories from the root on.

    `passed` is updated: its last directory is then the one that `path` names.
    """
    if path.startswith("/"):
        raise PathEscapesError
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if len(passed) == 1:
                raise PathEscapesError
            close_quietly(passed.pop())
            continue
        target = _step(passed, name)
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            raise PathEscapesError
        ahead.extend(target.split("/")[::-1])


def _step(passed: list[int], name: str) -> str | None:
    """Enter the directory `name` and return None, or return the target if `name` is a symbolic link. Raises OSError."""
    try:
        passed.append(os.open(name, LINK, dir_fd=passed[-1]))
    except OSError as failed:
        if failed.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return link_target(name, passed[-1]) or _raise(failed)
    return None


def _raise(failed: OSError) -> str:
    raise failed


def link_target(name: str, directory: int) -> str | None:
    """Return the target of the symbolic link `name` in `directory`; None if it is no link or does not exist."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as failed:
        if failed.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
