"""Finds lines in files; reads a JSON object with pattern, path, include, exclude, max_results and ripgrep from stdin.

`ripgrep` is the path of the program rg, "" if there is none. The search runs in a process of its own, so that it can be
killed if a pattern backtracks for ever, the tree is huge or a mount hangs. Prints "ok" or "error" on a line of its own,
then the text for the model. Memory stays bounded in every case.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import warnings
from typing import TYPE_CHECKING, Any

from actors.adapters.tools.workers.searching import literals
from actors.adapters.tools.workers.searching import text_files as texts
from actors.adapters.tools.workers.searching import walk as walking
from actors.adapters.tools.workers.searching.patterns import TooManyAlternativesError
from actors.adapters.tools.workers.searching.prefilter import Candidates
from actors.adapters.tools.workers.searching.walk import File, Walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_TEXT = 120 * 1024
"""Maximum bytes of all lines shown."""

IGNORE_CASE = "(?i)"


class UnsearchableError(Exception):
    """The search is not possible; the text says why."""


class Search:
    """One search through a directory or a file."""

    def __init__(self, asked: Mapping[str, Any], max_entries: int) -> None:
        """Check the request. Raises UnsearchableError, OSError or ValueError if it cannot be fulfilled."""
        self._ripgrep: str = asked["ripgrep"]
        self._pattern = compiled(asked["pattern"])
        path = asked["path"]
        self._root = os.path.realpath(path, strict=True)
        self._shown_root = shown_root(self._root)
        self._limit: int = asked["max_results"]
        found = os.stat(self._root)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise UnsearchableError(f"Cannot search {path}: it is neither a directory nor a regular file.")
        self._single = stat.S_ISREG(found.st_mode)
        if self._single and found.st_size > walking.MAX_FILE_BYTES:
            raise UnsearchableError(f"Cannot search {path}: it is larger than 10 MiB; use bash.")
        globs = {"include": asked["include"], "exclude": asked["exclude"]}
        try:
            self._walk = Walk(self._root, **globs, max_entries=max_entries)
        except TooManyAlternativesError:
            raise UnsearchableError("The braces in `include` or `exclude` stand for too many patterns.") from None
        self._max_entries = max_entries

    def text(self) -> str:
        """Return the matching lines, and remarks on omissions."""
        shown: list[str] = []
        size = 0
        unreadable = 0
        for found in self._found():
            if found is None:
                unreadable += 1
                continue
            size += len(found.encode(errors="replace")) + 1
            if len(shown) == self._limit or size > MAX_TEXT:
                return "\n".join([*shown, limit_notice(len(shown))])
            shown.append(found)
        return "\n".join([*(shown or ["No matches found."]), *self._remarks(unreadable, bool(shown))])

    def _found(self) -> Iterator[str | None]:
        """Yield each matching line as it is shown to the model; None for a file that cannot be read."""
        wanted = candidates(self._pattern.pattern, self._ripgrep)
        for file, data in wanted.contents(self._files()):
            if data is None:
                yield None
                continue
            name = texts.shown_name(os.path.join(self._shown_root, file.name) if file.name else self._shown_root)
            for number, line in enumerate(texts.lines(texts.decoded(data)), 1):
                if match := self._pattern.search(line):
                    yield f"{name}:{number}: {texts.shown(line, match)}"

    def _files(self) -> Iterable[File]:
        return [File(os.fsencode(self._root), "")] if self._single else self._walk.files()

    def _remarks(self, unreadable: int, found: bool) -> list[str]:
        unreadable += self._walk.unreadable
        remarks = []
        if self._walk.stopped:
            remarks.append(f"stopped after {self._max_entries:,} entries: not all was searched; name a narrower path")
        if self._walk.too_large:
            remarks.append(f"files larger than 10 MiB, which were skipped: {self._walk.too_large}")
        if unreadable:
            remarks.append(f"files and directories that could not be read: {unreadable}")
        if not found and re.search(r"\n|(?<!\\)(?:\\\\)*\\n", self._pattern.pattern):
            remarks.append("lines are searched one by one, so a pattern with a line break matches nothing")
        return [f"[{remark}]" for remark in remarks]


def candidates(pattern: str, ripgrep: str) -> Candidates:
    """Return a filter for the files that can contain a match of `pattern`."""
    ignore_case = pattern.startswith(IGNORE_CASE)
    required = literals.required(pattern.removeprefix(IGNORE_CASE), ignore_case=ignore_case)
    return Candidates(required, ripgrep=ripgrep, ignore_case=ignore_case)


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Raises UnsearchableError, which says what is wrong and where."""
    try:
        return re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        hint = "Patterns are Python regular expressions; escape what is meant literally."
        raise UnsearchableError(f"The pattern is not valid: {error.msg}{where}. {hint}") from None
    except (RecursionError, OverflowError, ValueError) as error:
        raise UnsearchableError(f"The pattern is not valid: {error}.") from None


def shown_root(root: str) -> str:
    """Return the prefix of shown paths: "" for the working directory, else a path that read_file accepts."""
    here = os.path.realpath(".")
    if root == here:
        return ""
    return os.path.relpath(root, here) if root.startswith(here.rstrip("/") + "/") else root


def limit_notice(shown: int) -> str:
    """Return the remark that there are more matches."""
    return f"[there are more than these {shown} matches; narrow the pattern or the path, or raise max_results]"


def main(_arguments: list[str], max_entries: int = walking.MAX_ENTRIES) -> None:
    """Perform the search requested on standard input, and print the verdict and the matching lines."""
    warnings.simplefilter("ignore")
    asked = json.load(sys.stdin.buffer)
    try:
        verdict, text = "ok", Search(asked, max_entries).text()
    except UnsearchableError as error:
        verdict, text = "error", str(error)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        verdict, text = "error", f"Cannot search {asked['path']}: {cause}."
    except MemoryError:
        verdict, text = "error", "The search needs too much memory: write a simpler pattern, or narrow the path."
    sys.stdout.buffer.write(f"{verdict}\n{text}\n".encode(errors="replace"))
