"""A file that is written as NAME.part, under a lock, and gets its final name only when it is complete."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

PART = ".part"
"""The suffix of incomplete files."""


class BackupError(Exception):
    """A backup or restore failed and changed nothing; the text contains the reason."""


@contextmanager
def part_of(target: Path) -> Generator[Path]:
    """Yield the path of an empty file beside `target`, which the caller fills and renames to `target`.

    The file is removed if the `with` block raises. It is locked during the block; if the process is killed, the lock
    ends, and the next call overwrites the file. Raises BackupError while another process writes the file, and OSError.
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
    """Remove SQLite's log files that a killed process left, because SQLite would apply them to the new database."""
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{part}{suffix}").unlink(missing_ok=True)


def _lock(held: int, part: Path) -> None:
    """Lock the open file `held`, and check that `part` still leads to it, since another process may have renamed it.

    Raises BackupError if another process writes the file.
    """
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), part.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise BackupError(f"another process is writing {part}")
