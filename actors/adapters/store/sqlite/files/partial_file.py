"""A file that gets its name only when it is complete: until then it is NAME.part, held by a lock."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

PART = ".part"
"""Ends the name of what is not complete."""


class BackupFailed(Exception):
    """A backup or a restore that was not made, and changed nothing; the text says why."""


@contextmanager
def part_of(target: Path) -> Generator[Path]:
    """An empty file beside `target`, to be renamed to it when it is complete, and removed if that fails.

    The lock on it goes with the process: what a killed one left is taken over. Raises BackupFailed while another
    process writes it, OSError.
    """
    part = target.with_name(target.name + PART)
    held = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(held, part)
        try:
            os.fchmod(held, 0o600)
            os.ftruncate(held, 0)
            _remove_logs_of(part)
            yield part
        except BaseException:
            _remove_logs_of(part)
            part.unlink(missing_ok=True)
            raise
    finally:
        os.close(held)


def _remove_logs_of(part: Path) -> None:
    """SQLite would take what a killed process left for the changes of the next database of the name."""
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{part}{suffix}").unlink(missing_ok=True)


def _lock(held: int, part: Path) -> None:
    """Whoever had the lock before may have renamed the file: then it is not this name's any more."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), part.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise BackupFailed(f"another process is writing {part}")
