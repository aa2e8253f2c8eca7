"""Finds the files that can contain a match: those with one of the texts that every match needs.

If ripgrep is available, it only speeds up the exclusion of files. Every remaining file is read and tested here, so a
result never depends on ripgrep, its version, its settings, or its dialect of regular expressions.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from typing import TYPE_CHECKING

from actors.adapters.tools.workers.searching import text_files as texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from actors.adapters.tools.workers.searching.walk import File

FIRST_BATCH = 64
LAST_BATCH = 2048

MAX_BATCH_BYTES = 1 << 19
"""Maximum bytes of paths on one command line."""

OPTIONS = (
    b"--no-config --files-with-matches --null --fixed-strings --text --encoding none --no-ignore --hidden --no-messages"
    b" --threads 4 --color never"
).split()


class Candidates:
    """Excludes files that contain none of the texts `literals`; if there are no such texts, excludes no file."""

    def __init__(self, literals: tuple[str, ...], *, ripgrep: str = "", ignore_case: bool = False) -> None:
        self._literals = [each.encode() for each in literals]
        self._ripgrep = ripgrep
        self._ignore_case = ignore_case

    def contents(self, files: Iterable[File]) -> Iterator[tuple[File, bytes | None]]:
        """Yield the files that may match, in order, each with its bytes (None if the file cannot be read)."""
        for file in self._sifted(files) if self._ripgrep and self._literals else files:
            data = texts.content(file)
            if data is None or self._may_match(data):
                yield file, data

    def _may_match(self, data: bytes) -> bool:
        data = data.lower() if self._ignore_case and self._literals else data
        return not self._literals or any(each in data for each in self._literals)

    def _sifted(self, files: Iterable[File]) -> Iterator[File]:
        for batch in batches(files):
            kept = self._with_matches(batch) if self._ripgrep else None
            yield from batch if kept is None else (file for file in batch if file.path in kept)

    def _with_matches(self, batch: list[File]) -> set[bytes] | None:
        """Return the paths of the files in which ripgrep finds one of the texts; None if ripgrep failed."""
        case = b"--ignore-case" if self._ignore_case else b"--case-sensitive"
        wanted = [argument for each in self._literals for argument in (b"-e", each)]
        command = [os.fsencode(self._ripgrep), *OPTIONS, case, *wanted, b"--", *(file.path for file in batch)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
            )
        except OSError:
            self._ripgrep = ""
            return None
        return set(done.stdout.split(b"\0")) if done.returncode in {0, 1} else None


def batches(files: Iterable[File]) -> Iterator[list[File]]:
    """Yield the files in ever larger batches, so that a search that soon finds enough need not list all files."""
    source = iter(files)
    size = FIRST_BATCH
    while batch := list(itertools.islice(source, size)):
        yield from fitting(batch, lambda file: len(file.path) + 1)
        size = min(2 * size, LAST_BATCH)


def fitting(batch: list[File], cost: Callable[[File], int]) -> Iterator[list[File]]:
    """Split the batch into parts whose paths fit on a command line, where a file's path takes `cost(file)` bytes."""
    part: list[File] = []
    size = 0
    for file in batch:
        if part and size + cost(file) > MAX_BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(file)
        size += cost(file)
    yield part
