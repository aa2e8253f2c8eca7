"""Runs ripgrep (rg), and reads the lines that it finds.

ripgrep's regular expressions take linear time on every text. It decides what is ignored, as git does; it never runs
git, and reads no settings of its own and no global ones.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MAX_LINE = 500

BEFORE_MATCH = 100

OPTIONS = (
    "--json --no-config --no-ignore-global --no-ignore-dot --hidden --crlf --glob=!.git --threads=4 "
    "--max-filesize=10M --regex-size-limit=10M"
).split()
OUTSIDE = ("--no-require-git", "--no-ignore-parent")
"""Outside of a repository, .gitignore files count from the searched directory down."""


class InvalidSearchError(Exception):
    """ripgrep refuses the pattern or a glob; the text says why."""


class Line(NamedTuple):
    """A line of a file, as it is shown."""

    number: int
    text: str
    matches: bool


class Finding(NamedTuple):
    """The lines found in one file."""

    name: str
    """The path from the searched directory."""
    lines: list[Line]


class Search:
    """One run of ripgrep; it counts the files and directories that cannot be read."""

    def __init__(self, program: str, arguments: Iterable[str], *, directory: str, max_matches: int) -> None:
        """Prepare a run in `directory` that finds at most `max_matches` lines of a file."""
        outside = () if enclosing_repository(directory) is not None else OUTSIDE
        self._command = [program, *OPTIONS, f"--max-count={max_matches}", *outside, *arguments]
        self._directory = directory
        self.unreadable = 0

    @contextmanager
    def findings(self) -> Generator[Iterator[Finding]]:
        """Run ripgrep and give what it finds, file by file; the end of the context ends it.

        Raises InvalidSearchError and OSError.
        """
        errors = os.memfd_create("errors")  # a pipe could fill up, and restricted modes have no place for a file
        try:
            with subprocess.Popen(
                self._command, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            ) as process:
                try:
                    yield self._read(process, errors)
                finally:
                    process.kill()
        finally:
            os.close(errors)

    def _read(self, process: subprocess.Popen[bytes], errors: int) -> Iterator[Finding]:
        name, lines = "", list[Line]()
        for message in process.stdout or ():
            kind, data = (read := json.loads(message))["type"], read["data"]
            if kind == "begin":
                name, lines = os.fsdecode(raw(data["path"])).removeprefix("./"), []
            elif kind in {"match", "context"}:
                lines.append(line_of(data, matches=kind == "match"))
            elif kind == "end" and data["binary_offset"] is None:
                yield Finding(name, lines)
        os.lseek(errors, 0, os.SEEK_SET)
        with open(errors, encoding="utf-8", errors="replace", closefd=False) as told:
            text = told.read()
        if process.wait() not in {0, 1} and (refused := refusal(text)):
            raise InvalidSearchError(refused)
        self.unreadable = sum(line.startswith("rg: ") for line in text.splitlines())


def refusal(errors: str) -> str:
    """Return why ripgrep refused to search at all; "" if it only could not read some files."""
    if errors.startswith("rg: regex parse error:"):
        return errors.rpartition("\nerror: ")[2].partition("\n")[0]
    first = errors.partition("\n")[0].removeprefix("rg: ")
    known = ("error parsing glob", "the literal", "invalid type definition", "compiled regex")
    return first if first.startswith(known) else ""


def raw(field: dict[str, str]) -> bytes:
    """Return the bytes of a field, which is base64 where it is not UTF-8."""
    return field["text"].encode() if "text" in field else base64.b64decode(field["bytes"])


def line_of(data: dict[str, Any], *, matches: bool) -> Line:
    """Return a line as it is shown: cut to MAX_LINE characters, with the start of its match.

    Bytes that are not UTF-8 become U+FFFD.
    """
    line = raw(data["lines"])
    text = line.decode(errors="replace").removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
    start = 0
    if len(text) > MAX_LINE and data["submatches"]:
        match = len(line[: data["submatches"][0]["start"]].decode(errors="replace"))
        start = max(0, match - BEFORE_MATCH) if match > MAX_LINE - BEFORE_MATCH else 0
    part = text[start : start + MAX_LINE]
    return Line(
        data["line_number"], ("…" if start else "") + part + ("…" if start + MAX_LINE < len(text) else ""), matches
    )


def display_name_of(name: str) -> str:
    return name.replace("\n", "\\n").replace("\r", "\\r")


def enclosing_repository(directory: str) -> str | None:
    """Return the nearest directory that contains `.git`, from `directory` upwards; None if there is none.

    As in git, a directory that belongs to another user than `directory` or this process does not count.
    """
    try:
        owners = {os.geteuid(), os.stat(directory).st_uid}
        while True:
            if is_repository(os.path.join(directory, ".git")) and os.stat(directory).st_uid in owners:
                return directory
            if directory == "/":
                return None
            directory = os.path.dirname(directory)
    except OSError:
        return None


def is_repository(path: str) -> bool:
    """Return whether `path`, which ends in `.git`, is a git directory, or a file that names one, as in a worktree."""
    return os.path.isfile(path) or os.path.exists(os.path.join(path, "HEAD"))
