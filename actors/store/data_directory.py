"""The directory that one server, and only one, keeps its data in."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from actors.ports import DataDirectoryBusy, StoreUnusable


class DataDirectory:
    """A directory held by this process until `close`, or until the process is gone."""

    def __init__(self, path: Path) -> None:
        """Create it for its owner only if it is missing, and take its lock.

        Raises DataDirectoryBusy or StoreUnusable.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(f"the data directory {path} cannot be used: {error.strerror}") from error
        try:
            self._take()
        except BaseException:
            os.close(self._lock)
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).strip()
            raise DataDirectoryBusy(self.path, int(holder) if holder.isdigit() else 0) from None
        except OSError as error:
            raise StoreUnusable(f"the data directory {self.path} cannot be locked: {error.strerror}") from error

    def close(self) -> None:
        """Let another process have it. Once."""
        os.close(self._lock)
