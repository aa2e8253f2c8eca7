"""Checks working directories on this machine, and describes them for the system prompt."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import TYPE_CHECKING

from actors.adapters.workspace.directory_listing import home_directory, list_entries
from actors.adapters.workspace.git import git_state, repository_root
from actors.adapters.workspace.safe_read import ReadRefusedError, is_inside, read_start
from actors.ports import Instructions, Workspace, WorkspaceContext
from actors.ports.workspace import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.ports import DirectoryListing

NAMES = ("AGENTS.md", "CLAUDE.md")
"""Names of files with instructions for agents; in each directory the first one that can be read is used."""

FILE_BYTES = 32 * 1024
"""Maximum bytes read of one file with instructions."""

ALL_BYTES = 64 * 1024
"""Maximum bytes read of all files with instructions together; files nearest to the working directory come first."""

MOST_INVALID = 10
"""At most one of this many characters may be invalid UTF-8 in a file with instructions."""

NOT_TEXT = "it is not text in UTF-8"

SHOWN = 200
"""Maximum characters of a refused path in an error message."""

MAX_FILES = 16
"""Maximum number of files with instructions that the prompt names: those nearest to the working directory."""


class LocalWorkspace(Workspace):
    """Implements Workspace with directories of this machine.

    The function `protected` returns the current real paths of the server's own files, where no conversation may work.
    """

    def __init__(self, protected: Callable[[], Sequence[str]] = tuple) -> None:
        self._protected = protected

    def check(self, path: str, within: Sequence[str] | None = None) -> str:
        """Return the real path of a directory in which a conversation may work.

        If `within` is given, the path must be one of these directories or beneath one. Raises ValueError, with a text
        for people, unless the path is absolute, exists and is allowed.
        """
        if "\0" in path:
            raise ValueError("it contains a NUL character")
        if not path.startswith("/"):
            raise ValueError("it must be an absolute path")
        if not _is_within(path, within):
            raise ValueError(f"it is not within the directories of this principal: {', '.join(within or ())}")
        try:
            real = str(Path(path).resolve(strict=True))
        except (OSError, RuntimeError):
            raise ValueError(f"there is no such directory on the server: {_shown(path)}") from None
        if not os.path.isdir(real):
            raise ValueError("it is not a directory")
        if not _is_text(real):
            raise ValueError("its real path is not valid UTF-8")
        if self._is_protected(real):
            raise ValueError("it is where the server keeps its own data, or people their keys: choose another one")
        return real

    def list_directory(self, path: str, within: Sequence[str] | None = None) -> DirectoryListing:
        """List a directory, leaving out the server's own files, and links that lead outside of `within`.

        If `path` is empty, the home directory is listed, or the first directory of `within`. Raises ValueError for the
        same reasons as `check`, or if the directory cannot be read.
        """
        first = home_directory() if within is None else next(iter(within), "")
        return list_entries(self.check(path or first, within), self._protected(), within)

    def surroundings(self, directory: str, within: Sequence[str] | None = None) -> WorkspaceContext:
        """Describe a directory that `check` has returned, for the system prompt: its Git state and instruction files.

        What cannot be read is omitted.
        """
        if not _is_within(directory, within):
            return WorkspaceContext(directory)
        root = repository_root(directory, lambda path: _is_within(path, within))

        def refusal(real: str) -> str:
            return self._refusal(real) if _is_within(real, within) else "it belongs to others"

        git = git_state(root, refusal) if root else None
        found, unnamed = self._instructions(directory, root or directory)
        return WorkspaceContext(directory, git, found, unnamed)

    def _instructions(self, directory: str, top: str) -> tuple[tuple[Instructions, ...], int]:
        """Return the instruction files from `top` down to `directory`, and how many more of them were left out.

        At most MAX_FILES are returned; those nearest to `top` are left out.
        """
        found: list[Instructions] = []
        left, unnamed = ALL_BYTES, 0
        for folder in _upwards(directory, top):
            for name in NAMES:
                path = os.path.join(folder, name)
                if len(found) >= MAX_FILES:
                    unnamed += os.path.lexists(path)
                elif (one := self._read(path, min(left, FILE_BYTES), top)) is not None:
                    found.append(one)
                    left -= one.shown_bytes
                    if not one.left_out:
                        break
        return tuple(reversed(found)), unnamed

    def _read(self, path: str, limit: int, top: str) -> Instructions | None:
        """Read one instruction file; return None if it does not exist.

        For a file that cannot be read, the result contains the reason in place of the text.
        """

        def why_not(real: str) -> str:
            return self._refusal(real) if is_inside(real, top) else "it leads out of the repository"

        try:
            data, size = read_start(path, limit, why_not)
        except FileNotFoundError:
            return None
        except ReadRefusedError as refused:
            return Instructions(path, left_out=str(refused))
        # A character that is cut off by the limit is omitted; other invalid UTF-8 is replaced.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=len(data) >= size)
        text = text.removeprefix("\ufeff")
        cut = max(0, size - len(data))
        if "\0" in text or text.count("\ufffd") * MOST_INVALID > len(text):
            return Instructions(path, left_out=NOT_TEXT)
        if not cut and not text.strip():
            return Instructions(path, left_out=EMPTY)
        return Instructions(path, text, shown_bytes=len(data), cut_bytes=cut)

    def _refusal(self, real: str) -> str:
        return "tools may not read it" if self._is_protected(real) else ""

    def _is_protected(self, real: str) -> bool:
        return any(is_inside(real, folder) for folder in self._protected())


def _is_within(path: str, within: Sequence[str] | None) -> bool:
    """Return whether a path, with its links resolved, is in one of the directories `within`; None allows all paths."""
    if within is None:
        return True
    try:
        real = os.path.realpath(path)
        return any(is_inside(real, root) for root in within)
    except (OSError, ValueError):
        return False


def _upwards(directory: str, top: str) -> Iterator[str]:
    """Yield `directory` and the directories above it, up to and including `top`."""
    folder = directory
    while folder != top:
        yield folder
        folder = os.path.dirname(folder)
    yield top


def _shown(path: str) -> str:
    """Return a path for an error message: printable, and shortened in the middle if it is long."""
    if len(path) > SHOWN:
        path = f"{path[: SHOWN // 2]}…{path[-SHOWN // 2 :]}"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
