"""Reads the text of a file to search, line by line."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from actors.adapters.tools.workers.searching.walk import MAX_FILE_BYTES, File

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

SNIFFED = 8 * 1024
"""The bytes at the start of a file that are checked for NUL, which means that the file is binary."""

MAX_LINE = 500
"""Maximum characters shown of a line."""

BEFORE_MATCH = 100
"""Characters shown before the match if the line is cut."""


def content(file: File) -> bytes | None:
    """Return the file's bytes; b"" if it is not text or has grown too large; None if it cannot be read.

    Never blocks: a file that has become a pipe or a device since it was listed is not read.
    """
    try:
        opened = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return taken(opened) if stat.S_ISREG(os.fstat(opened).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(opened)


def taken(opened: int) -> bytes:
    """Return the bytes of an open file; b"" if it is not text or too large. Raises OSError."""
    blocks = []
    size = 0
    while block := os.read(opened, MAX_FILE_BYTES + 1 - size):
        if not size and b"\0" in block[:SNIFFED]:
            return b""
        blocks.append(block)
        size += len(block)
    return b"".join(blocks) if size <= MAX_FILE_BYTES else b""


def decoded(data: bytes) -> str:
    """Decode UTF-8, without a byte order mark. Invalid bytes become U+FFFD, so that the text around them is kept."""
    return data.decode(errors="replace").removeprefix("\ufeff")


def lines(text: str) -> Iterator[str]:
    """Yield each line without its line end (LF or CRLF)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].removesuffix("\r")
        start = end + 1


def shown(line: str, match: re.Match[str] | None = None) -> str:
    """Return the line; if it is longer than MAX_LINE, only MAX_LINE characters of it, with the start of the match."""
    if len(line) <= MAX_LINE:
        return line
    start = max(0, match.start() - BEFORE_MATCH) if match and match.start() > MAX_LINE - BEFORE_MATCH else 0
    part = line[start : start + MAX_LINE]
    return ("…" if start else "") + part + ("…" if start + MAX_LINE < len(line) else "")


def shown_name(name: str) -> str:
    """Return a path with its line breaks escaped."""
    return name.replace("\n", "\\n").replace("\r", "\\r")
