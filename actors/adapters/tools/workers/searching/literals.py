"""Derives texts from a regular expression such that every line that matches contains at least one of them.

A fast search for these texts excludes most files before the exact search. Only a part of the syntax of regular
expressions is supported; other syntax disables this optimisation.
"""

from __future__ import annotations

import re

FOLDED = frozenset("iIkKsS")
"""ASCII letters that also match non-ASCII letters when case is ignored (U+0131, U+212A, U+017F)."""

SINGLE = frozenset("dDwWsSbBAZaftnrv")
"""The letters that, after a backslash, complete an escape of exactly two characters."""

GROUP = re.compile(r"\((?:\?(?::|=|!|<|P<))?(?!\?)")
CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
COUNT = re.compile(r"\{\d*,?\d*\}")

MIN_LENGTH = 2

PLAIN, OPTIONAL, OTHER = "plain ", "optional", "other"


class UnsupportedPatternError(Exception):
    """The pattern contains syntax that is not supported and may change the meaning of the rest."""


def required(pattern: str, *, ignore_case: bool = False) -> tuple[str, ...]:
    """Return ASCII texts such that every matching line contains at least one of them; () if none can be derived.

    With `ignore_case`, the texts are in lower case and stand for letters of either case.
    """
    try:
        branches = [max(runs, key=len, default="") for runs in branch_runs(pattern, FOLDED if ignore_case else ())]
    except UnsupportedPatternError:
        return ()
    if min(map(len, branches)) < MIN_LENGTH:
        return ()
    return tuple(dict.fromkeys(each.lower() if ignore_case else each for each in branches))


def branch_runs(pattern: str, foreign: frozenset[str] | tuple[()]) -> list[list[str]]:
    """Return, for every alternative of the pattern, the literal texts (runs) that each of its matches contains.

    A character in `foreign` is not part of any run, and ends the run before it. Raises UnsupportedPatternError.
    """
    branches: list[list[str]] = [[""]]
    depth = position = 0
    while position < len(pattern):
        kind, position = token(pattern, position)
        runs = branches[-1]
        depth += (kind == "(") - (kind == ")")
        if depth or kind == ")":
            runs.append("")
        elif kind == "|":
            branches.append([""])
        elif kind == OPTIONAL:
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif kind.startswith(PLAIN) and kind[-1] not in foreign:
            runs[-1] += kind[-1]
        else:
            runs.append("")
    return branches


def token(pattern: str, position: int) -> tuple[str, int]:
    """Return the kind of the next token and the position after it. Raises UnsupportedPatternError.

    Kinds: PLAIN and a character that stands for itself, "(", ")", "|", OPTIONAL (the preceding character may be
    missing), or OTHER.
    """
    letter = pattern[position]
    if letter == "\\":
        return escape(pattern[position + 1 : position + 2]), position + 2
    if letter == "(":
        return letter, after(GROUP, pattern, position)
    if letter == "[":
        return OTHER, after(CLASS, pattern, position)
    if letter == "{" and (count := COUNT.match(pattern, position)):
        return OPTIONAL, count.end()
    if letter in "*?":
        return OPTIONAL, position + 1
    if letter in ")|":
        return letter, position + 1
    return OTHER if letter in ".^$+" else itself(letter), position + 1


def escape(letter: str) -> str:
    """Return the kind of token that a backslash and `letter` form.

    Raises UnsupportedPatternError if more characters may belong to the escape.
    """
    if letter in SINGLE:
        return OTHER
    if not letter.isascii() or letter.isalnum():
        raise UnsupportedPatternError
    return itself(letter)


def itself(letter: str) -> str:
    """Return the kind of token for a character that stands for itself."""
    return PLAIN + letter if letter.isascii() and letter.isprintable() else OTHER


def after(construct: re.Pattern[str], pattern: str, position: int) -> int:
    """Return the end of the match of `construct` at `position`. Raises UnsupportedPatternError if there is no match."""
    found = construct.match(pattern, position)
    if found is None:
        raise UnsupportedPatternError
    return found.end()
