"""Reads files that another user may have written: without blocking, bounded, and within allowed directories only."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNREADABLE = "it cannot be read"


class ReadRefusedError(Exception):
    """The file exists but must not be read; the text says why."""


def is_inside(path: str, folder: str) -> bool:
    """Return whether a real path is `folder` or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read_start(path: str, limit: int, refusal: Callable[[str], str]) -> tuple[bytes, int]:
    """Return the first `limit` bytes of a regular file, and its size in bytes.

    `refusal` gets the real path of the file and returns why it must not be read, or "". Raises FileNotFoundError if
    there is no such file, and ReadRefusedError if it must not or cannot be read. If it must not be read, the error's
    text is only what `refusal` returned.
    """
    # Opening with O_PATH has no effect on the file: a FIFO does not block, a device is not touched. A file checked
    # through this handle cannot be replaced by another one before it is read.
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        if os.path.lexists(path):
            raise ReadRefusedError(refusal(os.path.realpath(path)) or UNREADABLE) from None
        raise FileNotFoundError(path) from None
    try:
        here = f"/proc/self/fd/{handle}"
        if why := refusal(os.readlink(here)):
            raise ReadRefusedError(why)
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ReadRefusedError("it is not a regular file")
        return _read(here, limit), about.st_size
    except OSError:
        raise ReadRefusedError(UNREADABLE) from None
    finally:
        os.close(handle)


def _read(path: str, limit: int) -> bytes:
    # The file is known to be regular; the flags ensure that opening it never blocks.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < limit and (part := os.read(file, limit - len(data))):
            data += part
        return data
    finally:
        os.close(file)
