"""Checks that the paths of the open database still lead to the open files.

SQLite keeps using a file that was removed or replaced, and would acknowledge changes that are lost afterwards. So the
inodes are compared before and after every transaction, and every second while nothing is written.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TypeAlias

from actors.ports import StoreUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

_WITHOUT_DATABASE = "if it does not come back, stop the server and restore a backup"
_WITHOUT_LOG = "what was in it is moved into the database; restart the server"

Inode: TypeAlias = "tuple[int, int]"
"""Device number and inode number of a file."""


def inode_of(descriptor: int) -> Inode:
    """Return the inode of an open file. Raises OSError."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def inode_at(path: str | Path) -> Inode | None:
    """Return the inode of the file at a path; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OpenFiles:
    """Checks that the paths of an open database and of its write-ahead log still lead to the open files.

    `check` and `forget_log` are called only by the thread that writes to the database; the other methods are safe to
    call from any thread.
    """

    def __init__(self, path: Path) -> None:
        """Record the inodes. Call this right after opening the database, while its directory is locked."""
        self._path = path
        self._log_path = f"{path}-wal"
        self._database = inode_at(path)
        self._write_ahead_log = inode_at(self._log_path)
        self.missing = ""
        """The path of the file that was removed or replaced; "" if all files are in place."""

    @property
    def database_is_there(self) -> bool:
        """Whether the path still leads to the open database."""
        return self._database is not None and inode_at(self._path) == self._database

    def check(self) -> None:
        """Compare the inodes, and log when a file is found missing and when it is back.

        Raises StoreUnavailableError if a file was removed or replaced.
        """
        was, self.missing = self.missing, self._find_missing()
        if self.missing and not was:
            _log.critical(
                "%s was removed or replaced while the server uses it: nothing is read or written until it is back; %s",
                self.missing,
                _WITHOUT_DATABASE if self.missing == str(self._path) else _WITHOUT_LOG,
            )
        elif was and not self.missing:
            _log.warning("%s is back: the store goes on", was)
        self.refuse_if_missing()

    def refuse_if_missing(self) -> None:
        """Raise StoreUnavailableError if the latest `check` found a file missing."""
        if self.missing:
            raise StoreUnavailableError(f"{self.missing} was removed or replaced")

    def forget_log(self) -> None:
        """Forget the inode of the write-ahead log, since SQLite may create a new log once the connection was closed."""
        self._write_ahead_log = None

    def _find_missing(self) -> str:
        if not self.database_is_there:
            return str(self._path)
        log = inode_at(self._log_path)
        if self._write_ahead_log is None:
            self._write_ahead_log = log
        return "" if log == self._write_ahead_log else self._log_path
