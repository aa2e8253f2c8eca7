"""Reads a .gitignore file, and decides which paths below its directory are ignored."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.tools.workers.searching import patterns

if TYPE_CHECKING:
    from actors.adapters.tools.workers.searching.patterns import Pattern

FILE = b".gitignore"

MAX_BYTES = 1 << 20
"""Maximum bytes of a .gitignore; a larger file is ignored."""


class Rule(NamedTuple):
    """One rule of a .gitignore file, which is one line of the file."""

    pattern: Pattern
    by_name: bool
    """Whether the pattern is matched against the name alone instead of the path."""


class Ignores:
    """The rules of one .gitignore file."""

    def __init__(self, content: bytes) -> None:
        lines = os.fsdecode(content.removeprefix(b"\xef\xbb\xbf")).split("\n")
        self._rules = [rule for rule in map(parsed, reversed(lines)) if rule is not None]

    def verdict(self, path: str, name: str, directory: bool) -> bool | None:
        """Return whether a path, relative to the .gitignore's directory, is ignored; None if no rule matches."""
        for pattern, by_name in self._rules:
            if pattern.fits(name if by_name else path, directory):
                return not pattern.negated
        return None


def parsed(line: str) -> Rule | None:
    """Return the rule that a line defines; None for a blank line, a comment and a malformed pattern."""
    line = line.removesuffix("\r")
    pattern = patterns.pattern(line)
    return None if pattern is None else Rule(pattern, by_name="/" not in line.rstrip().removesuffix("/"))


def load(directory: bytes) -> Ignores | None:
    """Return the rules of the directory's own .gitignore; None if this is missing, unreadable, a link or too large."""
    try:
        file = os.open(os.path.join(directory, FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        content = bytearray()
        while block := os.read(file, MAX_BYTES + 1 - len(content)):
            content += block
        return Ignores(bytes(content)) if len(content) <= MAX_BYTES else None
    except OSError:
        return None
    finally:
        os.close(file)
