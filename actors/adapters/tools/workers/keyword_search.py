"""Finds lines that match search terms; reads a JSON object with search_terms and ripgrep from standard input.

`ripgrep` is the path of the program rg, "" if there is none. The worker runs in the working directory and searches the
git repository around this directory or, outside of a repository, the directory itself. It prints "ok" on a line of its
own, then its findings as a JSON object: remarks, and what `rg -n -i -C 10` would print of the files that the tool
search covers, with long lines cut. After an error it prints "error", and a text for the model.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.adapters.tools.workers.searching import literals
from actors.adapters.tools.workers.searching import text_files as texts
from actors.adapters.tools.workers.searching import walk as walking
from actors.adapters.tools.workers.searching.findings import Findings
from actors.adapters.tools.workers.searching.prefilter import Candidates
from actors.adapters.tools.workers.searching.walk import File, Walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTEXT = 10
"""Lines of context shown before and after a match."""

SEPARATOR = "--\n"

MAX_TERM_BYTES = 64 * 1024
MAX_ALL_BYTES = 128 * 1024


class OutputTooLargeError(Exception):
    """Each of the terms alone finds more than MAX_TERM_BYTES."""


class FileMatches(NamedTuple):
    """The matches of a term in one file."""

    name: str
    matches: list[int]
    """Line numbers, from 0, ascending."""
    lines: dict[int, str]
    """The matching lines and their context, by number."""


class Term:
    """A search term and its matches."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.pattern = re.compile(text, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError, ValueError):
            self.pattern = re.compile(re.escape(text), re.IGNORECASE)
        self.parts: dict[str, FileMatches] = {}
        self.size = 0

    @property
    def too_much(self) -> bool:
        """Return whether the matches of this term exceed the size limit."""
        return self.size > MAX_TERM_BYTES

    def look_at(self, name: str, text: str) -> None:
        """Record the matches in a file.

        Once all matches of this term together exceed the size limit, they are dropped, and no further match is
        recorded.
        """
        if self.too_much:
            return
        matches = []
        least = self.size
        for number, line in enumerate(texts.lines(text)):
            if least <= MAX_TERM_BYTES and self.pattern.search(line):
                matches.append(number)
                least += len(name) + len(texts.shown(line))
        if matches:
            self._keep(FileMatches(name, matches, around(matches, text)) if least <= MAX_TERM_BYTES else None)

    def _keep(self, part: FileMatches | None) -> None:
        """Add the matches in one file; None means that this term's matches exceed the size limit."""
        if part is not None:
            self.parts[part.name] = part
            self.size += sum(len(block.encode(errors="replace")) + len(SEPARATOR) for block in blocks([part]))
        if part is None or self.too_much:
            self.size = MAX_TERM_BYTES + 1
            self.parts.clear()


def around(matches: list[int], text: str) -> dict[int, str]:
    """Return the matching lines and their context by line number, shortened for display."""
    wanted = surroundings(matches)
    return {number: texts.shown(line) for number, line in enumerate(texts.lines(text)) if number in wanted}


def surroundings(matches: list[int]) -> set[int]:
    """Return the numbers of the matching lines and their context."""
    return {line for number in matches for line in range(number - CONTEXT, number + CONTEXT + 1)}


def rendered(terms: list[Term]) -> str:
    """Return the matches of all terms, file by file, in the order in which the walk visits the files."""
    files = sorted({name for term in terms for name in term.parts}, key=walk_order)
    found = ([term.parts[name] for term in terms if name in term.parts] for name in files)
    return SEPARATOR.join(block for parts in found for block in blocks(parts))


def walk_order(name: str) -> list[bytes]:
    """Return the sort key of a path, which orders files as the walk visits them."""
    return os.fsencode(name).split(b"/")


def blocks(parts: list[FileMatches]) -> Iterator[str]:
    """Yield runs of adjacent lines of one file: `name:number:text` for matches, `name-number-text` for context."""
    lines = {number: line for part in parts for number, line in part.lines.items()}
    matches = {number for part in parts for number in part.matches}
    name = texts.shown_name(parts[0].name)
    block: list[str] = []
    previous = -1
    for number in sorted(lines):
        if block and number != previous + 1:
            yield "".join(block)
            block = []
        mark = ":" if number in matches else "-"
        block.append(f"{name}{mark}{number + 1}{mark}{lines[number]}\n")
        previous = number
    yield "".join(block)


class KeywordSearch:
    """A search for several terms, of which the most important one comes first."""

    def __init__(self, asked: Mapping[str, Any], max_entries: int) -> None:
        here = os.path.realpath(".")
        repository = walking.enclosing_repository(os.fsencode(here.rstrip("/")))
        self.root = here if repository is None else os.fsdecode(repository) or "/"
        self.elsewhere = self.root != here
        self.terms = [Term(each) for each in dict.fromkeys(asked["search_terms"])]
        self._ripgrep: str = asked["ripgrep"]
        self._walk = Walk(self.root, max_entries=max_entries)
        self._max_entries = max_entries
        self._unreadable = 0

    def findings(self) -> Findings:
        """Run the search. While all terms together find more than MAX_ALL_BYTES, drop the last one of them.

        Raises OutputTooLargeError if every term by itself finds more than MAX_TERM_BYTES.
        """
        self._look()
        kept = [term for term in self.terms if not term.too_much]
        if not kept:
            raise OutputTooLargeError
        dropped = []
        text = rendered(kept)
        while len(text.encode(errors="replace")) > MAX_ALL_BYTES:
            dropped.append(kept.pop())
            text = rendered(kept)
        return Findings(text, self._remarks(dropped), texts.shown_name(self.root) if self.elsewhere else "")

    def _look(self) -> None:
        for file, data in self._contents():
            if data is None:
                self._unreadable += 1
                continue
            text = texts.decoded(data)
            for term in self.terms:
                term.look_at(file.name, text)

    def _contents(self) -> Iterator[tuple[File, bytes | None]]:
        required = [literals.required(term.pattern.pattern, ignore_case=True) for term in self.terms]
        wanted = tuple(dict.fromkeys(each for some in required for each in some)) if all(required) else ()
        candidates = Candidates(wanted, ripgrep=self._ripgrep, ignore_case=True)
        return candidates.contents(self._walk.files())

    def _remarks(self, dropped: list[Term]) -> list[str]:
        limit = MAX_TERM_BYTES // 1024
        remarks = [f"skipped, as it finds more than {limit} KiB: {term.text}" for term in self.terms if term.too_much]
        remarks += [f"left out, as all together find too much: {term.text}" for term in reversed(dropped)]
        if self._walk.stopped:
            remarks.append(f"stopped after {self._max_entries:,} entries: not all was searched")
        if unreadable := self._unreadable + self._walk.unreadable:
            remarks.append(f"files and directories that could not be read: {unreadable}")
        return remarks


def main(_arguments: list[str], max_entries: int = walking.MAX_ENTRIES) -> None:
    """Search for the terms of the request on standard input, and print the verdict and the findings."""
    warnings.simplefilter("ignore")
    asked = json.load(sys.stdin.buffer)
    try:
        found = json.dumps(KeywordSearch(asked, max_entries).findings()._asdict(), ensure_ascii=False)
        answer = f"ok\n{found}"
    except OutputTooLargeError:
        limit = MAX_TERM_BYTES // 1024
        answer = f"error\nEvery term finds more than {limit} KiB: use more specific terms, or search with `include`."
    except (OSError, ValueError) as error:
        answer = f"error\nCannot search here: {getattr(error, 'strerror', None) or error}."
    except MemoryError:
        answer = "error\nThe search needs too much memory: use simpler terms."
    sys.stdout.buffer.write(answer.encode(errors="replace"))
