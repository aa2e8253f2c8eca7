"""Walks the files to search: all below a directory, except ignored files, build products, links and devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.tools.workers.searching import gitignore as ignoring
from actors.adapters.tools.workers.searching.gitignore import Ignores
from actors.adapters.tools.workers.searching.patterns import selector

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENTRIES = 100_000
"""The maximum number of files and directories that one walk lists, including those that are not searched."""

MAX_FILE_BYTES = 10 << 20

PRUNED = frozenset(b".git node_modules target .next __pycache__ vendor dist build .venv venv .tox".split())
"""Names of directories that the walk does not enter, unless it starts there."""

Rules = tuple[tuple[Ignores, int], ...]
"""The .gitignore files that apply to a directory, innermost first.

Each comes with the length of the path prefix that is removed before matching.
"""


class File(NamedTuple):
    """A file to search."""

    path: bytes
    name: str
    """The path to show, relative to the searched directory."""


class Walk:
    """A walk through a directory, in byte order of the names.

    It counts the files and directories that cannot be read, and the files that are too large.
    """

    def __init__(self, root: str, *, include: str = "", exclude: str = "", max_entries: int = MAX_ENTRIES) -> None:
        """Prepare the walk from `root`, an absolute path without links. Raises TooManyAlternativesError."""
        self._root = os.fsencode(root.rstrip("/"))
        self._included = selector(include) if include else everything
        self._excluded = selector(exclude) if exclude else nothing
        self._left = max_entries
        self.stopped = False
        """Whether the walk stopped because there are more than `max_entries` files and directories."""
        self.unreadable = 0
        self.too_large = 0

    def files(self) -> Iterator[File]:
        """Yield the regular files to search, found lazily. Empty files are omitted."""
        levels = [self._entries(self._root, rules_above(self._root))]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
            elif isinstance(found, File):
                yield found
            else:
                levels.append(self._entries(*found))

    def _entries(self, directory: bytes, rules: Rules) -> Iterator[File | tuple[bytes, Rules]]:
        """Yield the files of a directory, and its subdirectories with the rules that apply there."""
        listed = self._list(directory)
        if any(entry.name == ignoring.FILE for entry in listed):
            own = ignoring.load(directory)
            rules = rules if own is None else ((own, len(directory) + 1), *rules)
        for entry in listed:
            path = directory + b"/" + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not entry.is_file(follow_symlinks=False):
                continue
            if self._left_out(entry.name, path, is_directory) or ignored(rules, path, entry.name, is_directory):
                continue
            if is_directory:
                yield path, rules
            elif self._fits(entry):
                yield File(path, self._name(path))

    def _list(self, directory: bytes) -> list[os.DirEntry[bytes]]:
        listed: list[os.DirEntry[bytes]] = []
        try:
            with os.scandir(directory or b"/") as entries:
                for entry in entries:
                    if not self._left:
                        self.stopped = True
                        break
                    self._left -= 1
                    listed.append(entry)
        except OSError:
            self.unreadable += 1
        return sorted(listed, key=lambda entry: entry.name)

    def _left_out(self, name: bytes, path: bytes, directory: bool) -> bool:
        if name == b".git" or (directory and name in PRUNED):
            return True
        relative = self._name(path)
        return self._excluded(relative) or not (directory or self._included(relative))

    def _fits(self, entry: os.DirEntry[bytes]) -> bool:
        try:
            size = entry.stat(follow_symlinks=False).st_size
        except OSError:
            self.unreadable += 1
            return False
        self.too_large += size > MAX_FILE_BYTES
        return 0 < size <= MAX_FILE_BYTES

    def _name(self, path: bytes) -> str:
        return os.fsdecode(path[len(self._root) + 1 :])


def everything(_path: str) -> bool:
    """Match every path."""
    return True


def nothing(_path: str) -> bool:
    """Match no path."""
    return False


def ignored(rules: Rules, path: bytes, name: bytes, directory: bool) -> bool:
    """Return whether the innermost .gitignore with a matching rule ignores the path; False if no rule matches."""
    if not rules:
        return False
    short = os.fsdecode(name)
    for ignores, start in rules:
        verdict = ignores.verdict(os.fsdecode(path[start:]), short, directory)
        if verdict is not None:
            return verdict
    return False


def rules_above(root: bytes) -> Rules:
    """Return the rules of the .gitignore files above `root`, up to the repository's root; innermost first."""
    repository = enclosing_repository(root)
    if repository is None:
        return ()
    rules: list[tuple[Ignores, int]] = []
    directory = root
    while len(directory) > len(repository):
        directory = directory.rpartition(b"/")[0]
        own = ignoring.load(directory or b"/")
        if own is not None:
            rules.append((own, len(directory) + 1))
    return tuple(rules)


def enclosing_repository(directory: bytes) -> bytes | None:
    """Return the nearest directory that contains `.git`, from `directory` upwards; b"" for /, None if there is none.

    Only existence is checked: git is never run, and nothing in `.git` is read. As in git, a directory that belongs to
    another user than `directory` or this process does not count.
    """
    try:
        owners = {os.geteuid(), owner(directory)}
        while True:
            if is_repository(directory + b"/.git") and owner(directory) in owners:
                return directory
            if not directory:
                return None
            directory = directory.rpartition(b"/")[0]
    except OSError:
        return None


def owner(directory: bytes) -> int:
    """Return the user id that owns a directory. Raises OSError."""
    return os.stat(directory or b"/").st_uid


def is_repository(path: bytes) -> bool:
    """Return whether `path`, which ends in `.git`, is a git directory, or a file that names one, as in a worktree."""
    return os.path.isfile(path) or os.path.exists(path + b"/HEAD")
