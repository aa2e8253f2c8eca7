"""Finds lines in files; reads a JSON object with pattern, path, include, exclude, max_results and ripgrep from stdin.

`ripgrep` is the path of the program rg. The search runs in a process of its own, so that it can be killed if the tree
is huge or a mount hangs. Prints "ok" or "error" on a line of its own, then the text for the model. Memory stays bounded
in every case.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from actors.adapters.tools.workers import ripgrep

MAX_FILE_BYTES = 10 << 20
MAX_TEXT = 120 * 1024

SYNTAX = (
    "Patterns are Rust regular expressions, without look-around and backreferences; escape what is meant literally."
)


class UnsearchableError(Exception):
    """The search is not possible; the text says why."""


class LineSearch:
    """One search through a directory or a file."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Check the request. Raises UnsearchableError, OSError or ValueError if it cannot be fulfilled."""
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
        self._search = ripgrep.Search(asked["ripgrep"], arguments, directory=directory, max_matches=self._limit + 1)

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
        except ripgrep.InvalidSearchError as error:
            raise UnsearchableError(f"The pattern or a glob is not valid: {error}. {SYNTAX}") from None
        unreadable = self._search.unreadable
        remark = [f"[files and directories that could not be read: {unreadable}]"] if unreadable else []
        return "\n".join([*(shown or ["No matches found."]), *remark])

    def _lines(self, findings: Iterator[ripgrep.Finding]) -> Iterator[str]:
        for finding in findings:
            name = ripgrep.display_name_of(os.path.join(self._display_root, finding.name))
            yield from (f"{name}:{line.number}: {line.text}" for line in finding.lines)


def included(glob: str) -> tuple[str, ...]:
    """Return the options for the files to search.

    A glob for names becomes a type of files: unlike a glob for paths, it does not override what is ignored.
    """
    if "/" in glob:
        return (f"--glob={anchored(glob)}",)
    return (f"--type-add=asked:{glob}", "--type=asked") if glob else ()


def excluded(glob: str) -> tuple[str, ...]:
    return (f"--glob=!{anchored(glob) if '/' in glob else glob}",) if glob else ()


def anchored(glob: str) -> str:
    """Return a glob for paths from the searched directory, whose `/` also keeps a `!` from reversing the glob."""
    return "/" + glob.removeprefix("./").removeprefix("/") + ("**" if glob.endswith("/") else "")


def display_root(root: str) -> str:
    """Return the prefix of shown paths: "" for the working directory, else a path that read_file accepts."""
    here = os.path.realpath(".")
    if root == here:
        return ""
    return os.path.relpath(root, here) if root.startswith(here.rstrip("/") + "/") else root


def limit_notice(shown: int) -> str:
    return f"[there are more than these {shown} matches; narrow the pattern or the path, or raise max_results]"


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
        verdict, text = "error", "The search needs too much memory: write a simpler pattern, or narrow the path."
    sys.stdout.buffer.write(f"{verdict}\n{text}\n".encode(errors="replace"))
