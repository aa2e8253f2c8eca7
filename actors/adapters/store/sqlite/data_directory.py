"""The data directory and its locks, which let only one server at a time use the directory."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from actors.adapters.store.sqlite.disk import NO_SPACE, disk_is_full
from actors.adapters.store.sqlite.engine import Inode, inode_at, inode_of
from actors.ports import DataDirectoryBusyError, StoreUnusableError

_log = logging.getLogger(__name__)

MARKER = "initialized"  # the name of the file that records that the directory has contained a database
_MARKED = b"""\
This directory has had a database, bedrock.db. If that is missing, the server does not start: restore a backup with
`bedrock restore FILE`, or remove this file to begin with an empty database.
"""
MOVED = "moved"  # the name of the file that records to which database the conversations of this directory were moved
_LOCK_ATTEMPTS = 25
_LOCK_PAUSE = 0.01  # seconds between two attempts to take a lock
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})


class DataDirectory:
    """A data directory that this process keeps locked until `close` or the end of the process.

    There are two locks: one on the directory itself, which still holds if the lock file is removed, and one on the file
    `lock`, which contains the id of the process that holds it.
    """

    def __init__(self, path: Path) -> None:
        """Take the locks. A missing directory is created, accessible only to its owner.

        Raises DataDirectoryBusyError if another process has the locks, or StoreUnusableError.
        """
        self.path = path
        self._held: list[int] = []
        self._lock_file_missed = False
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self._held.append(os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._acquire_lock()
        except OSError as error:
            self.close()
            why = disk_is_full(path) if error.errno in NO_SPACE else error.strerror
            raise StoreUnusableError(f"the data directory {path} cannot be used: {why}") from error
        except BaseException:
            self.close()
            raise

    def _acquire_lock(self) -> None:
        """Take both locks, and write this process's id into the lock file. Raises DataDirectoryBusyError or OSError."""
        directory, lock_file = self._held
        try:
            _lock(lock_file)
            _lock_directory(directory)
        except BlockingIOError:
            holder = os.pread(lock_file, 32, 0).strip()
            raise DataDirectoryBusyError(self.path, int(holder) if holder.isdigit() else 0) from None
        holder = f"{os.getpid()}\n".encode()
        # The file is truncated only after the write: on a full disk, only the block that the file already has can be
        # written.
        os.pwrite(lock_file, holder, 0)
        os.ftruncate(lock_file, len(holder))
        self._lock_file: Inode = inode_of(lock_file)

    def check_lock_file(self) -> None:
        """Log an error when the lock file is first found removed or replaced. The directory itself stays locked."""
        missed = inode_at(self.path / "lock") != self._lock_file
        if missed and not self._lock_file_missed:
            _log.critical(
                "the lock file %s was removed or replaced while the server uses it; the directory itself is still "
                "locked, so no second server starts on it",
                self.path / "lock",
            )
        self._lock_file_missed = missed

    def expect(self, database: Path) -> None:
        """Raise StoreUnusableError if the directory has had a database and the file `database` is missing.

        Also raise it if the conversations were moved to another database.
        """
        refuse_moved(self.path)
        marker = self.path / MARKER
        if marker.exists() and not database.exists():
            raise StoreUnusableError(
                f"{self.path} had a database, and {database.name} is missing now: put it back, restore a backup with "
                f"`bedrock restore FILE`, or remove {marker} to begin with an empty one"
            )

    def mark(self) -> None:
        """Record that the directory has contained a database. Raises StoreUnusableError."""
        self._write_once(MARKER, _MARKED)

    def mark_moved(self, where: str) -> None:
        """Record that the conversations of this directory are now in the database `where`.

        Raises StoreUnusableError.
        """
        text = f"{where}\nThe conversations of this directory were moved there. {_back(self.path)}\n"
        self._write_once(MOVED, text.encode())

    def _write_once(self, name: str, content: bytes) -> None:
        """Write a file and sync it to the disk; do nothing if it exists. Raises StoreUnusableError."""
        file_path = self.path / name
        try:
            if not file_path.exists():
                made = os.open(file_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(made, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(made)
                os.fsync(self._held[0])
        except OSError as error:
            raise StoreUnusableError(f"{file_path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Release the locks. Call this only once."""
        for held in self._held:
            os.close(held)


def refuse_moved(directory: Path) -> None:
    """Raise StoreUnusableError if the conversations of a data directory were moved to another database."""
    try:
        where = (directory / MOVED).read_text(errors="replace").partition("\n")[0]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnusableError(f"{directory / MOVED} cannot be read: {error.strerror}") from error
    raise StoreUnusableError(
        f"the conversations of {directory} were moved to {where}: say so with the setting database. {_back(directory)}"
    )


def _back(directory: Path) -> str:
    return f"To return to the data before the move, without later additions, remove {directory / MOVED}"


def _lock(lock_file: int) -> None:
    """Lock the file exclusively, retrying for a short time.

    Retries are needed because a client that tests whether a server runs holds a shared lock for a moment. Raises
    BlockingIOError if another server has the lock.
    """
    for _ in range(_LOCK_ATTEMPTS - 1):
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)  # a client may be testing the lock
        else:
            return
    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_directory(directory: int) -> None:
    """Lock the directory, if the file system supports that. Raises BlockingIOError if another process has the lock."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("this file system cannot lock a directory: never remove the lock file while a server runs")
