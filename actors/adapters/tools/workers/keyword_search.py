"""Finds lines that match search terms; reads a JSON object with `search_terms` and `ripgrep` from standard input.

`ripgrep` is the path of the program rg. This program runs in the working directory and searches the git repository
around that directory or, outside a repository, the directory itself. It prints "ok" on a line of its own, then the
findings as a JSON object: `text` is the output that `rg -n -i -C 10` would print, with long lines cut; `remarks` says
what was left out; and `root` is the directory to which paths are relative ("" for the working directory). After an
error, it prints "error" and a text for the model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from actors.adapters.tools.workers.search import (
    Finding,
    InvalidSearchError,
    Line,
    Search,
    display_name_of,
    enclosing_repository,
)

CONTEXT = 10

SEPARATOR = "--\n"

MAX_TERM_BYTES = 64 * 1024
MAX_ALL_BYTES = 128 * 1024
# Maximum matches in one file; the output for more matches would exceed MAX_TERM_BYTES.
MAX_MATCHES = MAX_TERM_BYTES // len("a:1:\n")


class OutputTooLargeError(Exception):
    """Each term, even by itself, finds more than MAX_TERM_BYTES."""


class Term:
    """A search term and its findings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.findings: list[Finding] = []
        self.too_much = False
        self.unreadable = 0

    def look(self, program: str, root: str) -> None:
        """Search for the term; if it is not a valid regular expression, search for it literally. Raises OSError."""
        try:
            self._look(program, root, "-e", self.text)
        except InvalidSearchError:
            self._look(program, root, "--fixed-strings", "-e", self.text)

    def _look(self, program: str, root: str, *pattern: str) -> None:
        arguments = ("--ignore-case", f"--context={CONTEXT}", *pattern, "--", "./")
        search = Search(program, arguments, directory=root, max_matches=MAX_MATCHES)
        size = 0
        with search.findings() as findings:
            for finding in findings:
                size += sum(len(block.encode(errors="replace")) + len(SEPARATOR) for block in blocks([finding]))
                if size > MAX_TERM_BYTES:
                    self.too_much = True
                    self.findings.clear()
                    return
                self.findings.append(finding)
        self.unreadable = search.unreadable


def rendered(terms: list[Term]) -> str:
    files: dict[str, list[Finding]] = {}
    for term in terms:
        for finding in term.findings:
            files.setdefault(finding.name, []).append(finding)
    in_order = sorted(files, key=lambda name: os.fsencode(name).split(b"/"))
    return SEPARATOR.join(block for name in in_order for block in blocks(files[name]))


def blocks(findings: list[Finding]) -> Iterator[str]:
    """Yield runs of adjacent lines in one file: `name:number:text` for matches, `name-number-text` for context."""
    lines: dict[int, Line] = {}
    for line in sorted(line for finding in findings for line in finding.lines):
        # If a line is both a match and context for another term, the match is kept, because its text shows what was
        # found.
        lines[line.number] = max(lines.get(line.number, line), line, key=lambda each: each.matches)
    name = display_name_of(findings[0].name)
    block: list[str] = []
    for number, line in lines.items():
        if block and number - 1 not in lines:
            yield "".join(block)
            block = []
        mark = ":" if line.matches else "-"
        block.append(f"{name}{mark}{number}{mark}{line.text}\n")
    yield "".join(block)


def found(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Search for the terms, most important first. Raises OSError.

    While the terms together find more than MAX_ALL_BYTES, the last term is dropped. Raises OutputTooLargeError if each
    term by itself finds more than MAX_TERM_BYTES.
    """
    here = os.path.realpath(".")
    root = enclosing_repository(here) or here
    terms = [Term(each) for each in dict.fromkeys(asked["search_terms"])]
    for term in terms:
        term.look(asked["ripgrep"], root)
    kept = [term for term in terms if not term.too_much]
    if not kept:
        raise OutputTooLargeError
    limit = MAX_TERM_BYTES // 1024
    remarks = [f"skipped because it finds more than {limit} KiB: {term.text}" for term in terms if term.too_much]
    dropped: list[str] = []
    while len((text := rendered(kept)).encode(errors="replace")) > MAX_ALL_BYTES:
        dropped.insert(0, f"omitted because the terms together find too much: {kept.pop().text}")
    if unreadable := max(term.unreadable for term in terms):
        dropped.append(f"files and directories that could not be read: {unreadable}")
    return {"text": text, "remarks": remarks + dropped, "root": "" if root == here else display_name_of(root)}


def main(_arguments: list[str]) -> None:
    asked = json.load(sys.stdin.buffer)
    try:
        answer = f"ok\n{json.dumps(found(asked), ensure_ascii=False)}"
    except OutputTooLargeError:
        limit = MAX_TERM_BYTES // 1024
        answer = f"error\nEvery term finds more than {limit} KiB; use more specific terms, or search with `include`."
    except (OSError, ValueError) as error:
        answer = f"error\nCannot search here: {getattr(error, 'strerror', None) or error}."
    except MemoryError:
        answer = "error\nThe search needed too much memory; use simpler terms."
    sys.stdout.buffer.write(answer.encode(errors="replace"))
