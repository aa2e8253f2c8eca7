"""Wildcard patterns as git matches them, translated to regular expressions.

`*` and `?` stop at slashes, `**` between slashes does not; `[a-z]`, `[!a]`, `[[:digit:]]` and backslashes as in git.
What git calls malformed matches nothing. Expressions are meant for `fullmatch` with DOTALL.
"""

from __future__ import annotations

import re

NEVER = "(?!)"

SPECIAL = re.compile(r"[*?\[\\]")

CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t\\n\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}

MAX_ALTERNATIVES = 500


class TooManyAlternatives(Exception):
    """The braces of a glob stand for more patterns than anybody means."""


def glob(pattern: str) -> str:
    """The expression of a pattern for whole paths, with `{a,b}` for alternatives; raises TooManyAlternatives."""
    return "|".join(translate(each) for each in alternatives(pattern))


def alternatives(pattern: str) -> list[str]:
    """The patterns that the innermost braces stand for, until there are none; braces without a comma stay."""
    found, waiting = [], [pattern]
    while waiting:
        each = waiting.pop()
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if braces is None:
            found.append(each)
        else:
            waiting += [each[: braces.start()] + part + each[braces.end() :] for part in braces[1].split(",")]
        if len(found) + len(waiting) > MAX_ALTERNATIVES:
            raise TooManyAlternatives
    return found


def translate(pattern: str) -> str:
    """The expression that matches what the pattern does."""
    parts = []
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "*":
            part, position = stars(pattern, position)
        elif letter == "?":
            part, position = "[^/]", position + 1
        elif letter == "[":
            part, position = bracket(pattern, position)
        elif letter == "\\":
            part = re.escape(pattern[position + 1]) if position + 1 < len(pattern) else NEVER
            position += 2
        else:
            part, position = re.escape(letter), position + 1
        parts.append(part)
    return "".join(parts)


def stars(pattern: str, start: int) -> tuple[str, int]:
    """What a run of asterisks matches, and where the pattern goes on."""
    end = start
    while pattern.startswith("*", end):
        end += 1
    opens = start == 0 or pattern[start - 1] == "/"
    closes = end == len(pattern) or pattern.startswith(("/", "\\/"), end)
    if end - start == 1 or not (opens and closes):
        return "[^/]*", end
    if pattern.startswith("/", end):
        return "(?:.*/)?", end + 1
    return ".*", end


def bracket(pattern: str, start: int) -> tuple[str, int]:
    """What a bracket expression matches, and where the pattern goes on. It never matches a slash."""
    position = start + 1
    negated = pattern.startswith(("!", "^"), position)
    position += negated
    members: list[str] = []
    low = ""
    first = position
    while not pattern.startswith("]", position) or position == first:
        if position >= len(pattern):
            return NEVER, position
        letter = pattern[position]
        if letter == "-" and low and position + 1 < len(pattern) and pattern[position + 1] != "]":
            high, position = unescaped(pattern, position + 1)
            members += [f"{re.escape(low)}-{re.escape(high)}"] if low <= high else []
            low = ""
        elif pattern.startswith("[:", position):
            close = pattern.find("]", position + 2)
            if close < 0:
                return NEVER, len(pattern)
            if close == position + 2 or pattern[close - 1] != ":":
                low, position = letter, position + 1
                members.append(re.escape(low))
            else:
                members.append(CLASSES.get(pattern[position + 2 : close - 1], ""))
                if not members[-1]:
                    return NEVER, len(pattern)
                low, position = "", close + 1
        else:
            low, position = unescaped(pattern, position)
            members.append(re.escape(low))
    return among("".join(members), negated), position + 1


def unescaped(pattern: str, position: int) -> tuple[str, int]:
    """The letter here, or behind a backslash here; then the next position, behind the end if a letter is missing."""
    position += pattern.startswith("\\", position)
    return pattern[position : position + 1], position + 1


def among(members: str, negated: bool) -> str:
    if not members:
        return "[^/]" if negated else NEVER
    return f"(?!/)[{'^' if negated else ''}{members}]"
