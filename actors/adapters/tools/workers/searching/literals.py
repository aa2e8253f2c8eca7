"""Which texts a line must contain so that a pattern can match it at all: what a search may look for first.

Found without knowing much of regular expressions: what is not understood is given up, never guessed.
"""

from __future__ import annotations

import re

FOLDED = frozenset("iIkKsS")
#: ASCII letters that match others than their own two cases when case is ignored (U+0131, U+212A, U+017F).

SINGLE = frozenset("dDwWsSbBAZaftnrv")
#: Letters that make an escape of exactly two characters.

GROUP = re.compile(r"\((?:\?(?::|=|!|<|P<))?(?!\?)")
CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
COUNT = re.compile(r"\{\d*,?\d*\}")

MIN_LENGTH = 2

PLAIN, OPTIONAL, OTHER = "plain ", "optional", "other"


class NotUnderstood(Exception):
    """The pattern has something that may change the meaning of the rest."""


def required(pattern: str, *, ignore_case: bool = False) -> tuple[str, ...]:
    """ASCII texts one of which every line has that the pattern matches; () if nothing can be said.

    With `ignore_case` the texts are in lower case, and mean letters of either.
    """
    try:
        branches = [max(runs, key=len, default="") for runs in branch_runs(pattern, FOLDED if ignore_case else ())]
    except NotUnderstood:
        return ()
    if min(map(len, branches)) < MIN_LENGTH:
        return ()
    return tuple(dict.fromkeys(each.lower() if ignore_case else each for each in branches))


def branch_runs(pattern: str, foreign: frozenset[str] | tuple[()]) -> list[list[str]]:
    """For every alternative the runs of plain characters that it cannot do without; raises NotUnderstood."""
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
    """What is next, and what follows it; raises NotUnderstood.

    PLAIN and a character that stands for itself, "(", ")", "|", OPTIONAL (the character before it may be missing), or
    OTHER.
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
    """What a backslash and this letter are; raises NotUnderstood if more letters may belong to them."""
    if letter in SINGLE:
        return OTHER
    if not letter.isascii() or letter.isalnum():
        raise NotUnderstood
    return itself(letter)


def itself(letter: str) -> str:
    return PLAIN + letter if letter.isascii() and letter.isprintable() else OTHER


def after(construct: re.Pattern[str], pattern: str, position: int) -> int:
    found = construct.match(pattern, position)
    if found is None:
        raise NotUnderstood
    return found.end()
