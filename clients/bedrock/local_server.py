"""Finds the server on the same machine: the names of the files that server and client share, and safety checks.

Imports only the standard library, since the server uses this module as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where no server runs
    fcntl = None  # type: ignore[assignment]

ADDRESS_FILE = "address"
"""Name of a file in the data directory, present while a server runs; contains `unix:` and the path of its socket."""
GATEWAY_FILE = "gateway"
"""Name of a file in the data directory, present while a server with a gateway runs; contains the gateway's URL."""
LOCK_FILE = "lock"
"""Name of a file in the data directory, locked by the running server; contains its process id."""
TOKEN_FILE = "token"  # noqa: S105 -- the name of a file, not a secret
"""Name of a file in the data directory; contains the bearer token that every call must carry."""
LONGEST_SOCKET_PATH = 107
"""Maximum bytes of a socket's path: Linux allows 108 with the terminating zero."""


class NotPrivateError(Exception):
    """A file or directory is not safe to use, because others may read or write it; the message says what to do."""


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a server on this machine keeps its files. Raises ValueError if BEDROCK_DATA_DIR is relative."""
    if chosen := environ.get("BEDROCK_DATA_DIR"):
        try:
            return absolute_path(chosen)
        except ValueError as error:
            raise ValueError(f"BEDROCK_DATA_DIR: {error}") from None
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return (xdg_directory("XDG_STATE_HOME", environ) or home / ".local" / "state") / "bedrock"


def xdg_directory(variable: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The directory that an XDG variable names; None if it is unset or relative, as the specification requires."""
    path = Path(environ.get(variable, ""))
    return path if path.is_absolute() else None


def absolute_path(text: str) -> Path:
    """A path with `~` expanded. Raises ValueError for a relative path: the server may run in another directory."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # the path begins with ``~name``, and that user does not exist
        path = Path(text)
    if not path.is_absolute():
        raise ValueError(f"must be an absolute path, or begin with ~ (it is {text!r})")
    return path


def check_private(directory: Path) -> None:
    """Raise NotPrivateError unless only this user can enter a directory; OSError if the path is not a directory."""
    check_owner(directory)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o022:
        raise NotPrivateError(
            f"others may have put files into {directory} (mode {mode:04o}): check its contents, remove what is not "
            f"yours, then chmod 700 {directory}"
        )
    if mode & 0o077:
        raise NotPrivateError(f"others can access {directory} (mode {mode:04o}): chmod 700 {directory}")


def check_owner(directory: Path) -> None:
    """Raise NotPrivateError unless this user owns a directory and any link to it; OSError if it is not a directory."""
    if not hasattr(os, "geteuid"):
        raise NotPrivateError("this system has no file owners to check; give the address of a server")
    user = os.geteuid()
    link, found = directory.lstat(), directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    if found.st_uid != user:
        raise NotPrivateError(
            f"{directory} belongs to uid {found.st_uid}, but this process runs as uid {user}; "
            f"use a directory of your own, or run as that user"
        )
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, user):
        raise NotPrivateError(f"{directory} is a symbolic link owned by uid {link.st_uid}; use its target instead")


def check_socket(path: Path) -> None:
    """Raise NotPrivateError unless only this user can listen on the Unix socket `path`; OSError if it is missing."""
    check_owner(path.parent)
    if (mode := stat.S_IMODE(path.parent.stat().st_mode)) & 0o077:  # e.g. /tmp, where everybody can write
        raise NotPrivateError(f"others can access {path.parent} (mode {mode:04o}), which holds the socket {path.name}")
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} is not a socket of this user")


def check_entries(directory: Path) -> None:
    """Raise NotPrivateError if another user may have put a file into a directory before it was closed to others.

    Such a file is a symbolic link, has a hard link elsewhere, belongs to another user, or can be written by others. A
    pipe or a device is refused, too: opening it could block.
    """
    files: dict[Path, os.stat_result] = {}
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # a running server has removed it since
            if not stat.S_ISDIR((found := path.lstat()).st_mode):  # such as lost+found
                _check_file(path, found)
                files[path] = found
    names = Counter(found.st_ino for found in files.values())
    for path, found in files.items():
        if stat.S_ISREG(found.st_mode) and found.st_nlink > names[found.st_ino]:
            raise NotPrivateError(f"{path} has another hard link elsewhere; inspect that file, and remove it")


def open_believed(path: Path, *, named: bool = False) -> int:
    """Open a regular file that only this user can have written. Never blocks.

    A file that an operator has `named`, such as a certificate, may also belong to root, or be reached by a symbolic
    link of either user. Raises NotPrivateError or OSError.
    """
    if stat.S_ISLNK((link := path.lstat()).st_mode):
        _check_file(path, link, named=named)
    descriptor = open_regular(path, follow=named)
    try:
        _check_file(path, os.fstat(descriptor), named=named)
    except NotPrivateError:
        os.close(descriptor)
        raise
    return descriptor


def read_believed(path: Path, *, named: bool = False, most: int = -1) -> bytes:
    """The content of a file, or its first `most` bytes. Raises the errors of `open_believed`."""
    with os.fdopen(open_believed(path, named=named), "rb") as file:
        return file.read(most)


def _check_file(path: Path, found: os.stat_result, *, named: bool = False) -> None:
    if not hasattr(os, "geteuid"):  # on Windows, where the mode says nothing about others
        return
    user, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    if found.st_uid != user and not (named and found.st_uid == 0):
        planted = f"check what else others have put into {path.parent}, and remove it"
        advice = "use a file of your own" if named else planted
        raise NotPrivateError(f"{path} belongs to uid {found.st_uid}, but this process runs as uid {user}; {advice}")
    if stat.S_ISLNK(found.st_mode) and not named:
        raise NotPrivateError(f"{path} is a symbolic link, which is not followed; check where it leads, and remove it")
    if stat.S_IFMT(found.st_mode) in (stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK):
        raise NotPrivateError(f"{path} is neither a file nor a socket; inspect it, and remove it")
    if stat.S_ISREG(found.st_mode) and mode & 0o022:
        rights = "go-w" if named else "600"
        raise NotPrivateError(
            f"others can write to {path} (mode {mode:04o}): check its contents, then chmod {rights} {path}"
        )


def open_regular(path: Path, *, follow: bool = True) -> int:
    """Open a regular file, without blocking on a FIFO. Raises OSError, also for a link that must not be followed."""
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def server_process(data_dir: Path) -> int:
    """The pid of the server that uses a data directory, possibly still starting or stopping; 0 if none runs."""
    with suppress(OSError, ValueError, NotPrivateError):
        descriptor = open_believed(data_dir / LOCK_FILE)
        try:
            process = int(os.read(descriptor, 32))
            os.kill(process, 0)  # checked first, so that the lock is tried only if a server probably holds it
            if process > 0 and _is_locked(descriptor):
                return process
        finally:
            os.close(descriptor)
    return 0


def _is_locked(descriptor: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
