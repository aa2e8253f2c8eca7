"""Room on the disk that is kept for what frees space.

A deletion has to be written before it frees anything, which a full disk refuses. So a file of some MiB lies in the data
directory while a server runs; it is given up when a deletion finds no room, and made again from what that has freed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from actors.store.engine import FILE, sqlite3

_log = logging.getLogger(__name__)

RESERVE = "reserve"
"""Name of the file in the data directory."""
SIZE = 4 * 1024 * 1024
GIVE_BACK_PAGES = 256
"""Of free pages of the database, given back to the file system in one step."""


class Space:
    """Owns the reserve. Writer's thread, but for its first and its last moment."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE
        self.scarce = True
        """There is no reserve: it was given up, or there is no room for it."""
        self.make()

    def make(self) -> None:
        """Have a reserve, if there is none and there is room for it and as much again."""
        if not self.scarce:
            return
        try:
            found = os.statvfs(self._path.parent)
            if found.f_bavail * found.f_frsize >= 2 * SIZE or self._path.exists():
                self._allocate()
                self.scarce = False
        except OSError as error:
            _log.warning("no room is kept for deletions on a full disk: %s", error.strerror)
            self._path.unlink(missing_ok=True)

    def _allocate(self) -> None:
        made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(made, 0, SIZE)
        finally:
            os.close(made)

    def give_up(self) -> None:
        """Let its room be used."""
        if not self.scarce:
            _log.warning("the disk is full: the room that is kept for deletions is used")
        self.scarce = True
        self._path.unlink(missing_ok=True)

    def log_fits(self, connection: sqlite3.Connection, *, without: int = 0) -> bool:
        """Whether what is in the write-ahead log can be moved into the database, `without` so many of its pages.

        A move that fails half-way leaves a longer database, which has eaten the room, and a log that is no shorter.
        """
        pages, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        growth = (pages - without) * page_size - (self._path.parent / FILE).stat().st_size
        found = os.statvfs(self._path.parent)
        return bool(growth <= 0 or growth <= found.f_bavail * found.f_frsize - SIZE // 2)

    def give_back(self, connection: sqlite3.Connection) -> bool:
        """While there is no reserve: give free pages back to the file system; whether any were."""
        if not self.scarce:
            return False
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if not free or not self.log_fits(connection, without=free):
            return False
        connection.execute(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})").fetchall()
        (left,) = connection.execute("PRAGMA freelist_count").fetchone()
        return bool(left < free)

    def close(self) -> None:
        """Nobody needs it while no server runs."""
        self._path.unlink(missing_ok=True)
