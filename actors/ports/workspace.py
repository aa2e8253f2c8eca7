"""The workspace: the working directories of conversations, and their description in the system prompt."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class GitState(Struct, frozen=True):
    """State of a git repository according to its files; "" for unknown values."""

    root: str
    branch: str = ""
    """Name of the branch; also empty with a detached HEAD."""
    commit: str = ""
    """Abbreviated hash; "" before the first commit, too."""


class Instructions(Struct, frozen=True):
    """A file with a repository's instructions to agents (e.g. AGENTS.md). Untrusted data."""

    path: str
    text: str = ""
    """The beginning of the file, as valid text without NUL."""
    shown_bytes: int = 0
    cut_bytes: int = 0
    """Number of bytes of the file that `text` omits."""
    left_out: str = ""
    """Why the file was not read; "" if it was."""


class WorkspaceContext(Struct, frozen=True):
    """The description of the working directory in the system prompt."""

    directory: str
    git: GitState | None = None
    """State of the git repository; None outside of one."""
    instructions: tuple[Instructions, ...] = ()
    """The files with instructions, from the root of the repository down to the working directory."""
    unnamed: int = 0
    """How many further such files, nearer to the root, are omitted."""


class DirectoryEntry(Struct, frozen=True):
    """An entry of a directory."""

    name: str
    directory: bool
    """Whether it is a directory, or a link to one."""


class DirectoryListing(Struct, frozen=True):
    """The entries of a directory that a person may choose from."""

    path: str
    """The real path of the directory."""
    entries: tuple[DirectoryEntry, ...]
    """The entries: directories first, each kind sorted by name."""
    truncated: bool = False
    """Whether there are more entries."""


class Workspace(Protocol):
    """The directories that conversations work in. Any thread; reads the disk."""

    def check(self, path: str) -> str:
        """Return the real path of an existing directory. Raises ValueError with a text for people."""
        ...

    def list_directory(self, path: str) -> DirectoryListing:
        """List a directory, the home directory of the server's user if `path` is "".

        Files of the server are omitted. Raises ValueError with a text for people.
        """
        ...

    def surroundings(self, directory: str) -> WorkspaceContext:
        """Return the description of a checked directory for the system prompt.

        Reads little; blocks only on the disk.
        """
        ...
