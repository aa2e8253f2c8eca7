"""The workspace: the working directories of conversations, and their description in the system prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    def check(self, path: str, within: Sequence[str] | None = None) -> str:
        """Return the real path of an existing directory. Raises ValueError with a text for people.

        With `within`, it must be one of these directories or beneath one; of others nothing is told.
        """
        ...

    def list_directory(self, path: str, within: Sequence[str] | None = None) -> DirectoryListing:
        """List a directory; if `path` is "", the home directory of the server's user, or the first one of `within`.

        Files of the server are omitted, and links out of `within`. Raises ValueError with a text for people.
        """
        ...

    def surroundings(self, directory: str, within: Sequence[str] | None = None) -> WorkspaceContext:
        """Return the description of a checked directory for the system prompt, from files beneath `within` only.

        Reads little; blocks only on the disk.
        """
        ...
