"""What a .gitignore file says about the names beneath its directory, exactly as git reads it.

Text is bytes taken as Latin-1: git compares bytes.
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from actors.tools.workers import wildmatch

FILE = b".gitignore"

MAX_BYTES = 1 << 20
#: Of a .gitignore; what is larger is not one.


class Rule(NamedTuple):
    """One line."""

    expression: str
    by_name: bool
    #: It is matched with the name alone, not with the path.
    negated: bool
    directories_only: bool


class Ignores:
    """The rules of one file."""

    def __init__(self, content: bytes) -> None:
        self._rules = [
            (rule, re.compile(rule.expression, re.DOTALL)) for rule in map(parsed, lines(content)) if rule is not None
        ]
        self._rules.reverse()
        self._names = union([rule.expression for rule, _ in self._rules if rule.by_name])
        self._paths = union([rule.expression for rule, _ in self._rules if not rule.by_name])

    def verdict(self, path: str, name: str, directory: bool) -> bool | None:
        """Whether the entry is ignored; None if no rule speaks of it. `path` is relative to the file's directory."""
        if not self._names.fullmatch(name) and not self._paths.fullmatch(path):
            return None
        for rule, expression in self._rules:
            if rule.directories_only and not directory:
                continue
            if expression.fullmatch(name if rule.by_name else path):
                return not rule.negated
        return None


def load(directory: bytes) -> Ignores | None:
    """The rules of the directory's own .gitignore; None if there is none that can be read. Links are not followed."""
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


def lines(content: bytes) -> list[str]:
    text = content.removeprefix(b"\xef\xbb\xbf").split(b"\0")[0]
    return [line.removesuffix(b"\r").decode("latin-1") for line in text.split(b"\n")]


def parsed(line: str) -> Rule | None:
    """The rule of a line; None for blanks and comments."""
    if not line or line.startswith("#"):
        return None
    pattern = without_trailing_spaces(line)
    negated = pattern.startswith("!")
    pattern = pattern[negated:]
    directories_only = pattern.endswith("/")
    pattern = pattern[: len(pattern) - directories_only]
    if "/" not in pattern:
        return Rule(wildmatch.translate(pattern), True, negated, directories_only)
    pattern = pattern.removeprefix("/")
    special = wildmatch.SPECIAL.search(pattern)
    plain = special.start() if special else len(pattern)
    # git compares what is before the first wildcard by itself, so that `a**/b` means `a` and then `**/b`.
    expression = re.escape(pattern[:plain]) + wildmatch.translate(pattern[plain:])
    return Rule(expression, False, negated, directories_only)


def without_trailing_spaces(line: str) -> str:
    """The line without the blanks at its end that no backslash protects."""
    end = position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 1
            if position == len(line):
                return line
            end = position + 1
        elif line[position] != " ":
            end = position + 1
        position += 1
    return line[:end]


def union(expressions: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in expressions) or wildmatch.NEVER, re.DOTALL)
