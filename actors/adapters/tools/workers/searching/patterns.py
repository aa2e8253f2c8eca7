"""Translates patterns in git's syntax, from .gitignore files and globs, with the library pathspec.

A pattern must match a file or directory itself. pathspec also matches everything below a matching directory; those
matches are not used, because a walk does not enter ignored directories anyway.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ALTERNATIVES = 500


class TooManyAlternativesError(Exception):
    """The braces of a glob expand to too many patterns."""


class Pattern(NamedTuple):
    """A pattern in git's syntax, translated to a regular expression."""

    expression: re.Pattern[str]
    """The translated pattern. Its only group matches the slash after a matching directory."""
    negated: bool

    def fits(self, path: str, directory: bool) -> bool:
        """Return whether the pattern matches `path` itself and not only a directory above it.

        `path` has no trailing slash, even if it is a directory.
        """
        match = self.expression.search(path)
        if match is not None and match.lastindex is None:
            return True
        slashes = self.expression.finditer(path + "/") if directory else ()
        return any(slash.end(slash.lastindex) > len(path) for slash in slashes if slash.lastindex is not None)


def pattern(text: str) -> Pattern | None:
    """Return the pattern that a .gitignore line defines; None for a blank line, a comment and a malformed pattern."""
    # pathspec is imported late: the import takes longer than most searches, and many of them need no pattern.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415

    try:
        read = GitIgnoreSpecPattern(text)
    except (ValueError, re.error):
        return None
    return None if read.regex is None else Pattern(read.regex, negated=not read.include)


def selector(glob: str) -> Callable[[str], bool]:
    """Return a function that tests whether a path relative to the root matches a glob.

    A glob without slash is matched against the name, one with a slash against the whole path; a trailing slash matches
    everything below. Braces with commas are alternatives, which git does not have. Raises TooManyAlternativesError.
    """
    by_path = "/" in glob
    glob = glob.removeprefix("./").removeprefix("/")
    if glob.endswith("/"):
        glob += "**"
    # A leading slash anchors the pattern and makes `!` and `#` ordinary characters.
    meant = [each for each in (pattern(f"/{alternative}") for alternative in alternatives(glob)) if each is not None]
    if by_path:
        return lambda path: any(each.fits(path, False) for each in meant)
    return lambda path: any(each.fits(path.rpartition("/")[2], False) for each in meant)


def alternatives(glob: str) -> list[str]:
    """Expand the braces of a glob; braces without a comma stay. Raises TooManyAlternativesError."""
    found, waiting = [], [glob]
    while waiting:
        each = waiting.pop()
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if braces is None:
            found.append(each)
        else:
            waiting += [each[: braces.start()] + part + each[braces.end() :] for part in braces[1].split(",")]
        if len(found) + len(waiting) > MAX_ALTERNATIVES:
            raise TooManyAlternativesError
    return found
