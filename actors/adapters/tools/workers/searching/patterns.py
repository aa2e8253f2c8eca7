"""Patterns as git has them, of .gitignore files and of globs, translated by pathspec.

Matched is always one entry whose directory is known to be wanted, so a pattern must fit the entry itself: what pathspec
finds beneath a directory that fits is not asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ALTERNATIVES = 500


class TooManyAlternatives(Exception):
    """The braces of a glob stand for more patterns than anybody means."""


class Pattern(NamedTuple):
    """One pattern."""

    expression: re.Pattern[str]
    #: Its only group is the slash behind a directory that fits.
    negated: bool

    def fits(self, path: str, directory: bool) -> bool:
        """Whether the entry itself is meant; `path` has no slash at its end."""
        match = self.expression.search(path)
        if match is not None and match.lastindex is None:
            return True
        slashes = self.expression.finditer(path + "/") if directory else ()
        return any(slash.end(slash.lastindex) > len(path) for slash in slashes if slash.lastindex is not None)


def pattern(text: str) -> Pattern | None:
    """The pattern of a line; None for blanks, comments and what is malformed, which matches nothing."""
    # An import takes longer than most searches, and many of them meet no pattern.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415

    try:
        read = GitIgnoreSpecPattern(text)
    except (ValueError, re.error):
        return None
    return None if read.regex is None else Pattern(read.regex, negated=not read.include)


def selector(glob: str) -> Callable[[str], bool]:
    """Whether a path relative to the root fits a glob; raises TooManyAlternatives.

    Without a slash the glob is for the name, with one for the whole path; what ends in a slash is all beneath. Braces
    with commas are alternatives, which git does not have.
    """
    by_path = "/" in glob
    glob = glob.removeprefix("./").removeprefix("/")
    if glob.endswith("/"):
        glob += "**"
    # The slash in front says that it begins here, and that `!` and `#` are letters.
    meant = [each for each in (pattern(f"/{alternative}") for alternative in alternatives(glob)) if each is not None]
    if by_path:
        return lambda path: any(each.fits(path, False) for each in meant)
    return lambda path: any(each.fits(path.rpartition("/")[2], False) for each in meant)


def alternatives(glob: str) -> list[str]:
    """The patterns that the innermost braces stand for, until there are none; braces without a comma stay."""
    found, waiting = [], [glob]
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
