"""The workspace: the directories that conversations work in, and what a system prompt says of them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class GitState(Struct, frozen=True):
    """State of a git repository as its files say; "" where unknown."""

    root: str
    branch: str = ""
    """Empty with a detached HEAD, too."""
    commit: str = ""
    """Abbreviated hash; "" before the first commit, too."""


class Instructions(Struct, frozen=True):
    """A file with a repository's instructions to agents (e.g. AGENTS.md). Untrusted data."""

    path: str
    text: str = ""
    """The beginning of the file, as valid text without NUL."""
    shown_bytes: int = 0
    cut_bytes: int = 0
    """Bytes of the file that are not in `text`."""
    left_out: str = ""
    """Why the file was not read; "" if it was."""


class WorkspaceContext(Struct, frozen=True):
    """The description of the working directory in the system prompt."""

    directory: str
    git: GitState | None = None
    """None outside of a repository."""
    instructions: tuple[Instructions, ...] = ()
    """From the root of the repository down to the working directory."""
    unnamed: int = 0
    """How many more such files there are, nearer to the root."""


class DirectoryEntry(Struct, frozen=True):
    """An entry of a directory."""

    name: str
    directory: bool
    """Whether it is a directory, or a link to one."""


class DirectoryListing(Struct, frozen=True):
    """The entries of a directory that a person may choose from."""

    path: str
    """The real path."""
    entries: tuple[DirectoryEntry, ...]
    """Directories first, each kind by name."""
    truncated: bool = False
    """Whether there are more entries."""


class Workspace(Protocol):
    """The directories that conversations work in. Any thread; reads the disk."""

    def check(self, path: str) -> str:
        """Return the real path of an existing directory. Raises ValueError with a text for people."""
        ...

    def list_directory(self, path: str) -> DirectoryListing:
        """List a directory, the home directory of the server's user if `path` is "".

        Entries that belong to the server are left out. Raises ValueError with a text for people.
        """
        ...

    def surroundings(self, directory: str) -> WorkspaceContext:
        """Return what a model is shown of a checked directory. Reads little, and waits for nothing but the disk."""
        ...
