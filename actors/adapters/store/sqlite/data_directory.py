"""The data directory: its locks, which let only one server at a time use it, and the disk space that it reserves.

A deletion has to be written before it frees any space. On a full disk that write fails, and so do the writes of a
starting server. The data directory therefore contains a reserve file of some MiB, even while no server runs. The file
is removed when a deletion or a start finds no space, and created again once space has been freed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import peewee

from actors.adapters.store.sqlite.engine import FILE, Inode, inode_at, inode_of, sqlite3
from actors.ports import DataDirectoryBusyError, StoreUnusableError

_log = logging.getLogger(__name__)

MARKER = "initialized"  # the name of the file that records that the directory has contained a database
_MARKED = b"""\
This directory has had a database, bedrock.db. If that is missing, the server does not start: restore a backup with
`bedrock restore FILE`, or remove this file to begin with an empty database.
"""
MOVED = "moved"  # the name of the file with the URL of the database to which the conversations were moved
_LOCK_ATTEMPTS = 25
_LOCK_PAUSE = 0.01  # seconds between two attempts to take a lock
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})


class DataDirectory:
    """A data directory that this process keeps locked until `close` or until the process ends.

    One lock is on the directory itself, so that it remains if the lock file is removed; the other is on the file
    `lock`, which contains the process id.
    """

    def __init__(self, path: Path) -> None:
        """Take the locks; create a missing directory, accessible only to its owner.

        Raises DataDirectoryBusyError or StoreUnusableError.
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
        directory, lock_file = self._held
        try:
            _lock(lock_file)
            _lock_directory(directory)
        except BlockingIOError:
            holder = os.pread(lock_file, 32, 0).strip()
            raise DataDirectoryBusyError(self.path, int(holder) if holder.isdigit() else 0) from None
        holder = f"{os.getpid()}\n".encode()
        # The file is truncated only after the write, because on a full disk only the block that the file already has
        # can be written.
        os.pwrite(lock_file, holder, 0)
        os.ftruncate(lock_file, len(holder))
        self._lock_file: Inode = inode_of(lock_file)

    def check_lock_file(self) -> None:
        """Log an error when the lock file is first found removed or replaced. The directory itself remains locked."""
        missed = inode_at(self.path / "lock") != self._lock_file
        if missed and not self._lock_file_missed:
            _log.critical(
                "the lock file %s was removed or replaced while in use; the directory itself is still "
                "locked, so that a second server still cannot start on it",
                self.path / "lock",
            )
        self._lock_file_missed = missed

    def expect(self, database: Path) -> None:
        """Raise StoreUnusableError if the database was moved elsewhere, or is missing although it once existed."""
        refuse_moved(self.path)
        marker = self.path / MARKER
        if marker.exists() and not database.exists():
            raise StoreUnusableError(
                f"{self.path} had a database, but {database.name} is now missing; put it back, restore a backup with "
                f"`bedrock restore FILE`, or remove {marker} to start with an empty one"
            )

    def mark(self) -> None:
        """Record that the directory has contained a database. Raises StoreUnusableError."""
        self._write_once(MARKER, _MARKED)

    def mark_moved(self, where: str) -> None:
        """Record that the conversations are now in the database `where`. Raises StoreUnusableError."""
        text = f"{where}\nThis directory's conversations were moved there. {_back(self.path)}\n"
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
    """Raise StoreUnusableError if a data directory's conversations were moved to another database."""
    try:
        where = (directory / MOVED).read_text(errors="replace").partition("\n")[0]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnusableError(f"{directory / MOVED} cannot be read: {error.strerror}") from error
    raise StoreUnusableError(
        f"the conversations of {directory} were moved to {where}; set `database` to that URL. {_back(directory)}"
    )


def _back(directory: Path) -> str:
    return f"To return to the data as it was before the move, without later changes, remove {directory / MOVED}"


def _lock(lock_file: int) -> None:
    """Lock the file, with retries: a client that tests whether a server is running holds a shared lock for a moment."""
    for _ in range(_LOCK_ATTEMPTS - 1):
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        else:
            return
    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_directory(directory: int) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("this file system cannot lock directories; do not remove the lock file while a server is running")


# --- disk space ----------------------------------------------------------------------------------------------

T = TypeVar("T")


RESERVE = "reserve"  # the name of the reserve file in the data directory
SIZE = 4 * 1024 * 1024
ENOUGH_BYTES = 2 * SIZE  # free bytes that a server needs to work again after the disk was full
# Bytes that a starting server writes: the index of a write-ahead log of some hundred MiB, and a few small files.
START_BYTES = 1024 * 1024
GIVE_BACK_PAGES = 256  # number of free database pages returned to the file system in one step


NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
# SQLite's error messages if it cannot extend the index of the write-ahead log; they can have other causes, too.
_MAYBE_FULL = ("disk i/o error", "unable to open database file")


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def is_want_of_room(error: BaseException, directory: Path) -> bool:
    """Whether a full disk caused an error. SQLite often reports a full disk as an I/O error."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, (sqlite3.OperationalError, peewee.OperationalError)):
            if "disk is full" in text:
                return True
            if text in _MAYBE_FULL and free_bytes(directory) < START_BYTES:
                return True
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return True
        cause = cause.__cause__
    return False


def disk_is_full(directory: Path) -> str:
    """An error message that tells users that the disk is full and what to do."""
    return f"the disk is full; free at least {ENOUGH_BYTES >> 20} MiB on the file system of {directory}, and try again"


class DiskReserve:
    """Creates and releases the reserve file, on the writing thread or while the store is opened or closed."""

    def __init__(self, directory: Path) -> None:
        """Create the object, but not the file (see `make`). This process must have locked the data directory."""
        self._path = directory / RESERVE
        # Whether the reserve file may be missing or incomplete.
        #
        # True until `make` has created or found a complete file, and again after `release`.
        self.scarce = True
        self._released = False

    def open_with(self, opening: Callable[[], T]) -> T:
        """Call `opening`; if the disk is full, remove the reserve file and call it again.

        Raises what `opening` raises, or StoreUnusableError with advice.
        """
        directory = self._path.parent
        if free_bytes(directory) < START_BYTES:
            self.release()
        try:
            return opening()
        except StoreUnusableError as error:
            if not is_want_of_room(error, directory):
                raise
            if not self._path.exists():
                raise StoreUnusableError(disk_is_full(directory)) from error
        self.release()
        return self.open_with(opening)

    def make(self) -> None:
        """Create the reserve file unless it exists or the disk has no room for twice its size. A failure is logged."""
        if not self.scarce:
            return
        try:
            whole = self._path.exists() and self._path.stat().st_size >= SIZE
            if whole or free_bytes(self._path.parent) >= 2 * SIZE:
                self._allocate(SIZE)
                self.scarce = self._released = False
        except OSError as error:
            _log.warning("cannot reserve disk space for deletions on a full disk: %s", error.strerror)
            self._remove()

    def _allocate(self, size: int) -> None:
        made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(made, 0, size)
        finally:
            os.close(made)

    def release(self) -> None:
        """Remove the reserve file, so that its space can be used. Does nothing if there is none."""
        if self._path.exists():
            _log.warning("the disk is full; using the space reserved for deletions and starts")
            self._released = True
        self.scarce = True
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):  # raised if the file system has become read-only
            self._path.unlink()

    def log_fits(self, connection: sqlite3.Connection, *, without: int = 0) -> bool:
        """Whether the disk has space to checkpoint the write-ahead log, which can make the database file grow.

        Assumes that `without` free pages are given back to the file system first. A checkpoint that fails half-way
        makes the shortage worse: the database file has grown, and the log has not shrunk.
        """
        pages, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        growth = (pages - without) * page_size - (self._path.parent / FILE).stat().st_size
        return bool(growth <= 0 or growth <= free_bytes(self._path.parent) - SIZE // 2)

    def give_back(self, connection: sqlite3.Connection) -> bool:
        """Return up to GIVE_BACK_PAGES free pages to the file system; False if none were returned.

        Does nothing while the reserve file is in place.
        """
        if not self.scarce:
            return False
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if not free or not self.log_fits(connection, without=free):
            return False
        connection.execute(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})").fetchall()
        (left,) = connection.execute("PRAGMA freelist_count").fetchone()
        return bool(left < free)

    def close(self) -> None:
        """If the reserve file was released, create a new one for the next start, smaller if the disk is nearly full."""
        if not self._released:
            return
        try:
            size = min(SIZE, free_bytes(self._path.parent) // 4096 * 4096)
            if size:
                self._allocate(size)
        except OSError as error:
            _log.warning("cannot reserve disk space for the next start: %s", error.strerror)
            self._remove()
