"""Reading files that others wrote: it never waits, never reads much, and never leaves where it may read."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNREADABLE = "it cannot be read"


class Refused(Exception):
    """The file is there and is not read; the text says why."""


def beneath(path: str, folder: str) -> bool:
    """Whether a real path is `folder` or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read_start(path: str, limit: int, refusal: Callable[[str], str]) -> tuple[bytes, int]:
    """The first `limit` bytes of a regular file, and how many it has in all.

    `refusal` gets the real path of the file and says why it must not be read, or "". Raises Refused, or
    FileNotFoundError if there is no such file.
    """
    # A path handle has no side effects, whatever it leads to; and what it leads to cannot be exchanged any more.
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        if os.path.lexists(path):
            raise Refused(UNREADABLE) from None
        raise FileNotFoundError(path) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Refused("it is not a regular file")
        here = f"/proc/self/fd/{handle}"
        if why := refusal(os.readlink(here)):
            raise Refused(why)
        return _read(here, limit), about.st_size
    except OSError:
        raise Refused(UNREADABLE) from None
    finally:
        os.close(handle)


def _read(path: str, limit: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < limit and (piece := os.read(file, limit - len(data))):
            data += piece
        return data
    finally:
        os.close(file)
