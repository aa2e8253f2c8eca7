"""Open directories without ever being led out of one: by openat2 where the kernel has it, else component by component.

What comes back is a descriptor, O_PATH: whoever works relative to it is not led astray by what others rename meanwhile.
The two ways refuse the same: `..` above the root, and symbolic links that are absolute or lead out of it.
"""

import ctypes
import errno
import os
from contextlib import suppress

OPENAT2 = 437
#: The system call, on every architecture that we know of.

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08

ATTEMPTS = 100
#: How often openat2 may say that somebody renamed what it was passing, before that is an error.

MAX_LINKS = 40
#: As the kernel: symbolic links followed on the way.

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

LINK = DIRECTORY | os.O_NOFOLLOW


class Escapes(Exception):
    """The path leads out of the root."""


class Unsupported(Exception):
    """This kernel, or what guards it, has no openat2."""


class OpenHow(ctypes.Structure):
    """struct open_how."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_directory(root: int, path: str) -> int:
    """A descriptor of the directory `path`, relative to and beneath `root`; raises Escapes or OSError."""
    try:
        return by_openat2(root, path)
    except Unsupported:
        return by_walking(root, path)


def by_openat2(root: int, path: str) -> int:
    """Let the kernel do it; raises Unsupported, Escapes or OSError."""
    how = OpenHow(DIRECTORY, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path or ".")
    failure = errno.EAGAIN
    for _ in range(ATTEMPTS):
        opened = int(_syscall(OPENAT2, root, name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))))
        if opened >= 0:
            return opened
        failure = ctypes.get_errno()
        if failure in (errno.ENOSYS, errno.EPERM):
            raise Unsupported
        if failure == errno.EXDEV:
            raise Escapes
        if failure not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(failure, os.strerror(failure), path)


def by_walking(root: int, path: str) -> int:
    """Go there step by step, never through a link that was not looked at; raises Escapes or OSError.

    `..` goes back to the directory that was passed, not to its parent of the moment: a directory that is moved while
    it is being walked through leads nowhere else.
    """
    passed = [os.open(".", DIRECTORY, dir_fd=root)]
    try:
        _walk(passed, path)
        return passed.pop()
    finally:
        for directory in passed:
            close_quietly(directory)


def close_quietly(directory: int) -> None:
    """Close a descriptor that only served to find something: whether that works says nothing about the work done."""
    with suppress(OSError):
        os.close(directory)


def _walk(passed: list[int], path: str) -> None:
    """Extend `passed`, the directories from the root to here, by what `path` says."""
    if path.startswith("/"):
        raise Escapes
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if len(passed) == 1:
                raise Escapes
            close_quietly(passed.pop())
            continue
        target = _step(passed, name)
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            raise Escapes
        ahead.extend(target.split("/")[::-1])


def _step(passed: list[int], name: str) -> str | None:
    """Enter the directory `name`, or return what it says if it is a symbolic link."""
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
    """What the symbolic link `name` in `directory` says; None if it is none, or gone."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as failed:
        if failed.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
