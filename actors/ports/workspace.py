"""The port for working directories of conversations: checks, lists and describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


EMPTY = "it is empty"


class GitState(Struct, frozen=True):
    """The state of a git repository, read from its files without running git; "" for unknown values."""

    root: str
    branch: str = ""
    """The name of the branch; also "" with a detached HEAD."""
    commit: str = ""
    """The abbreviated hash of the commit; also "" before the first commit."""


class Instructions(Struct, frozen=True):
    """A file with a repository's instructions to agents, such as AGENTS.md. Untrusted data."""

    path: str
    text: str = ""
    """The beginning of the file, as valid text without NUL."""
    shown_bytes: int = 0
    cut_bytes: int = 0
    """The number of bytes at the end of the file that `text` leaves out."""
    left_out: str = ""
    """Why the file is not used; "" if it is used."""


class WorkspaceContext(Struct, frozen=True):
    """The facts about the working directory that the system prompt describes."""

    directory: str
    git: GitState | None = None
    """The state of the git repository; None outside of a repository."""
    instructions: tuple[Instructions, ...] = ()
    """The files with instructions, from the root of the repository down to the working directory."""
    unnamed: int = 0
    """The number of further instruction files that are left out; they are nearer to the root of the repository."""


class DirectoryEntry(Struct, frozen=True):
    """A file or directory in a listed directory."""

    name: str
    directory: bool
    """Whether the entry is a directory, or a link to one."""


class DirectoryListing(Struct, frozen=True):
    """The entries of a directory, from which a person can choose."""

    path: str
    """The real path of the directory."""
    entries: tuple[DirectoryEntry, ...]
    """The entries: directories first, then files, both sorted by name."""
    truncated: bool = False
    """Whether the directory has more entries than these."""


class Workspace(Protocol):
    """The directories in which conversations work. Safe to call from any thread; reads the disk."""

    def check(self, path: str, within: Sequence[str] | None = None) -> str:
        """Return the real path of an existing directory. Raises ValueError with a human-readable text.

        With `within`, the directory must be one of these directories or beneath one; the error text reveals nothing
        about other directories.
        """
        ...

    def list_directory(self, path: str, within: Sequence[str] | None = None) -> DirectoryListing:
        """List a directory. For the path "", list the first directory of `within`, or the home of the server's user.

        The server's own files, and links that lead out of `within`, are left out. Raises ValueError with a
        human-readable text.
        """
        ...

    def surroundings(self, directory: str, within: Sequence[str] | None = None) -> WorkspaceContext:
        """Return the facts for the system prompt about a directory that `check` has accepted.

        With `within`, only files beneath these directories are read. Blocks briefly, while a few files are read.
        """
        ...
