"""The program behind the search tool: runs ripgrep (rg) to find lines in files.

ripgrep's regular expressions take linear time on every text. Like git, ripgrep ignores the files that .gitignore files
name, but it never runs git, and here it reads neither its own settings nor global ones.

The program reads a JSON object with pattern, path, include, exclude, max_results and ripgrep (the path of rg) from
stdin. It is a separate process, so that it can be killed if the tree is huge or a mount hangs. It prints "ok" or
"error" on a line of its own, then the text for the model. Memory stays bounded in every case.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

MAX_LINE = 500

BEFORE_MATCH = 100

OPTIONS = (
    "--json --no-config --no-ignore-global --no-ignore-dot --hidden --crlf --glob=!.git --threads=4 "
    "--max-filesize=10M --regex-size-limit=10M"
).split()
# Options for searches outside a repository, where .gitignore files apply from the searched directory down.
OUTSIDE = ("--no-require-git", "--no-ignore-parent")


class InvalidSearchError(Exception):
    """ripgrep refuses the pattern or a glob; the message says why."""


class Line(NamedTuple):
    """A line of a file as it is shown."""

    number: int
    text: str
    matches: bool


class Finding(NamedTuple):
    name: str
    """The file's path relative to the searched directory."""
    lines: list[Line]


class Search:
    """One run of ripgrep, which counts the files and directories that cannot be read."""

    def __init__(self, program: str, arguments: Iterable[str], *, directory: str, max_matches: int) -> None:
        """Prepare a run in `directory` that finds at most `max_matches` lines in each file."""
        outside = () if enclosing_repository(directory) is not None else OUTSIDE
        self._command = [program, *OPTIONS, f"--max-count={max_matches}", *outside, *arguments]
        self._directory = directory
        self.unreadable = 0

    @contextmanager
    def findings(self) -> Generator[Iterator[Finding]]:
        """Run ripgrep and yield an iterator over what it finds, file by file.

        Raises InvalidSearchError and OSError.
        """
        errors = os.memfd_create("errors")  # a pipe could fill up; restricted modes have no place for a file
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
    """Why ripgrep refused to search at all; "" if it merely could not read some files."""
    if errors.startswith("rg: regex parse error:"):
        return errors.rpartition("\nerror: ")[2].partition("\n")[0]
    first = errors.partition("\n")[0].removeprefix("rg: ")
    known = ("error parsing glob", "the literal", "invalid type definition", "compiled regex")
    return first if first.startswith(known) else ""


def raw(field: dict[str, str]) -> bytes:
    """The bytes of a field of ripgrep's output; bytes that are not UTF-8 are in base64."""
    return field["text"].encode() if "text" in field else base64.b64decode(field["bytes"])


def line_of(data: dict[str, Any], *, matches: bool) -> Line:
    """A line cut to MAX_LINE characters around the start of its match; invalid UTF-8 becomes U+FFFD."""
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
    """The nearest directory, from `directory` upwards, that contains `.git`; None if there is none.

    As in git, another user's `.git` does not count.
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
    """Whether `path`, which ends in `.git`, is a git directory or (as in a worktree) a file that names one."""
    return os.path.isfile(path) or os.path.exists(os.path.join(path, "HEAD"))


MAX_FILE_BYTES = 10 << 20
MAX_TEXT = 120 * 1024

SYNTAX = "Patterns are Rust regular expressions, without look-around or backreferences; escape literal characters."


class UnsearchableError(Exception):
    """The search is not possible; the message says why."""


class LineSearch:
    """One search through a directory or a file."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Check the request. Raises UnsearchableError, OSError or ValueError if the search is impossible."""
        path = asked["path"]
        root = os.path.realpath(path, strict=True)
        found = os.stat(root)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise UnsearchableError(f"Cannot search {path}: it is neither a directory nor a regular file.")
        single = stat.S_ISREG(found.st_mode)
        if single and found.st_size > MAX_FILE_BYTES:
            raise UnsearchableError(f"Cannot search {path}: it is larger than 10 MiB; use bash.")
        directory, target = os.path.split(root) if single else (root, "")
        self._limit: int = asked["max_results"]
        self._display_root = display_root(directory)
        globs = () if single else (*included(asked["include"]), *excluded(asked["exclude"]))
        arguments = ("--sort=path", *globs, "-e", asked["pattern"], "--", f"./{target}")
        self._search = Search(asked["ripgrep"], arguments, directory=directory, max_matches=self._limit + 1)

    def text(self) -> str:
        shown: list[str] = []
        size = 0
        try:
            with self._search.findings() as findings:
                for line in self._lines(findings):
                    size += len(line.encode(errors="replace")) + 1
                    if len(shown) == self._limit or size > MAX_TEXT:
                        return "\n".join([*shown, limit_notice(len(shown))])
                    shown.append(line)
        except InvalidSearchError as error:
            raise UnsearchableError(f"The pattern or a glob is not valid: {error}. {SYNTAX}") from None
        unreadable = self._search.unreadable
        remark = [f"[files and directories that could not be read: {unreadable}]"] if unreadable else []
        return "\n".join([*(shown or ["No matches found."]), *remark])

    def _lines(self, findings: Iterator[Finding]) -> Iterator[str]:
        for finding in findings:
            name = display_name_of(os.path.join(self._display_root, finding.name))
            yield from (f"{name}:{line.number}: {line.text}" for line in finding.lines)


def included(glob: str) -> tuple[str, ...]:
    """The options for the files to search. A glob without "/" becomes a type, which does not override ignore files."""
    if "/" in glob:
        return (f"--glob={anchored(glob)}",)
    return (f"--type-add=asked:{glob}", "--type=asked") if glob else ()


def excluded(glob: str) -> tuple[str, ...]:
    return (f"--glob=!{anchored(glob) if '/' in glob else glob}",) if glob else ()


def anchored(glob: str) -> str:
    """Make a glob apply to paths from the searched directory. The "/" put before it also keeps "!" from negating it."""
    return "/" + glob.removeprefix("./").removeprefix("/") + ("**" if glob.endswith("/") else "")


def display_root(root: str) -> str:
    """The prefix of the paths shown: "" for the working directory, else a path that read_file accepts."""
    here = os.path.realpath(".")
    if root == here:
        return ""
    return os.path.relpath(root, here) if root.startswith(here.rstrip("/") + "/") else root


def limit_notice(shown: int) -> str:
    return f"[only the first {shown} matches are shown; narrow the pattern or the path, or raise max_results]"


def main(_arguments: list[str]) -> None:
    asked = json.load(sys.stdin.buffer)
    try:
        verdict, text = "ok", LineSearch(asked).text()
    except UnsearchableError as error:
        verdict, text = "error", str(error)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        verdict, text = "error", f"Cannot search {asked['path']}: {cause}."
    except MemoryError:
        verdict, text = "error", "The search needed too much memory; write a simpler pattern, or narrow the path."
    sys.stdout.buffer.write(f"{verdict}\n{text}\n".encode(errors="replace"))
