"""Reads and writes files with secrets in the data directory. Several programs of the same user may change a file."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from server.auth.local_token import TokenUnusableError, open_secret, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

MAX_FILE_BYTES = 16 << 20


class PrivateFile:
    """A JSON file that only its owner can read.

    The methods do blocking I/O, and raise TokenUnusableError if that fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def shown(self) -> str:
        """The path of the file, for messages."""
        return str(self.path)

    def read(self) -> bytes | None:
        """Return the content; None if there is no file.

        Raises TokenUnusableError if the file cannot be read, or if other users can read it or may have written it.
        """
        try:
            with os.fdopen(open_secret(self.path), "rb") as file:
                return file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TokenUnusableError(f"{self.path} cannot be read: {error.strerror}") from None

    def version(self) -> tuple[int, ...]:
        """Return a value that changes whenever the file or its permissions change. Costs one system call."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return ()
        return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size

    @contextmanager
    def changing(self) -> Generator[None]:
        """Lock the file against changes by other programs while the `with` block runs.

        Readers never wait for the lock.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TokenUnusableError(f"{lock} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by the result of `change(content)`, while holding the lock.

        If the result is None, the file is left unchanged.
        """
        with self.changing():
            content = change(self.read())
            if content is not None:
                self.write(content)

    def write(self, json: bytes) -> None:
        """Replace the content atomically. Call this within `changing`."""
        write_private(self.path, msgspec.json.format(json).decode() + "\n")
