"""Creates and removes the private directories of restricted tool calls, which can write nowhere else."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

PREFIX = "bedrock-tools-"


class PrivateDirectories:
    """The directory that contains the private directories of this server's calls. Thread-safe.

    It is locked while the server runs; later, another server can recognise and remove it. Its name is unpredictable and
    its owner is checked, so that no other user can replace it.
    """

    def __init__(self, protected: tuple[str, ...] = ()) -> None:
        """Create the directory. Raises OSError if this is impossible outside the `protected` paths."""
        self._parent = _parent(protected)
        _sweep(self._parent)
        self._guard = threading.Lock()  # lets only one call at a time replace a removed directory
        self._path, self._lock = _create(self._parent)

    @property
    def path(self) -> str:
        """The directory's path. Creates a new directory if it was removed or replaced. Raises OSError."""
        with self._guard:
            if self._lock >= 0 and not self._in_place():
                os.close(self._lock)
                self._lock = -1
                self._path, self._lock = _create(self._parent)
            return self._path

    def make(self) -> str:
        return tempfile.mkdtemp(prefix="call-", dir=self.path)

    def close(self) -> None:
        with self._guard:
            if self._lock >= 0:
                if self._in_place():
                    remove(self._path)
                os.close(self._lock)
                self._lock = -1

    def _in_place(self) -> bool:
        held = os.fstat(self._lock)
        try:
            here = os.lstat(self._path)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino)


def remove(path: str) -> None:
    """Remove a directory with hostile content: deeply nested, without permissions, full of links.

    Anything that cannot be removed is left behind. Does not use `shutil.rmtree`, which needs stack and open files for
    each level.
    """
    with suppress(OSError):
        os.rmdir(path)
        return
    if os.path.islink(path):  # chmod would follow this link, although it follows no link below it
        return
    for program in (("chmod", "-R", "u+rwx"), ("rm", "-rf")):
        with suppress(OSError):
            subprocess.run([*program, "--", path], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _parent(protected: tuple[str, ...]) -> str:
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 -- only used through mkdtemp
        real = Path(os.path.realpath(folder))
        if os.access(real, os.W_OK | os.X_OK) and not any(real.is_relative_to(path) for path in protected):
            return str(real)
    raise FileNotFoundError("no usable directory for temporary files")


def _create(parent: str) -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        with suppress(OSError):  # another server removed it as stale before it was locked; try again
            return path, _lock(path)


def _lock(path: str) -> int:
    """Lock a directory; return its descriptor. Raises OSError if it is missing, locked or another user's."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here, held = os.lstat(path), os.fstat(lock)
        if (here.st_ino, held.st_uid, stat.S_IMODE(held.st_mode)) != (held.st_ino, os.geteuid(), stat.S_IRWXU):
            raise PermissionError(path)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _sweep(parent: str) -> None:
    """Remove the directories of this user's killed servers, which are recognised by the missing lock."""
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIX):
            with suppress(OSError):
                _remove_stale(entry.path)


def _remove_stale(path: str) -> None:
    lock = _lock(path)
    try:
        remove(path)
    finally:
        os.close(lock)
