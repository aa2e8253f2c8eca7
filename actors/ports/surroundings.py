"""Who is told of events, and where conversations work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from actors.core.notifications import TextDelta
    from actors.ports.records import ConversationRecord, StoredEvent


class EventBus(Protocol):
    """Shows watchers what happens. Any thread; never blocks for long."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Show committed events, in order, and the conversation after them."""
        ...

    def text_delta(self, conversation_id: str, delta: TextDelta) -> None:
        """Show the next text of a model request that streams; ephemeral."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Show the next output of a tool call that runs; ephemeral."""
        ...

    def created(self, record: ConversationRecord) -> None:
        """Show a new conversation, which has no events yet."""
        ...

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the watches of a deleted conversation.

        `record` is its last one, or that of the conversation it was a sub-agent of.
        """
        ...


class GitState(Struct, frozen=True):
    """What the files of a git repository say of it; "" where they do not tell."""

    root: str
    branch: str = ""
    """Empty as well when no branch is checked out."""
    commit: str = ""
    """Short; empty as well before the first one."""


class Instructions(Struct, frozen=True):
    """A file in which a repository tells agents how to work in it: data, written by whoever wrote the repository."""

    path: str
    text: str = ""
    """Its beginning, as valid text without NUL."""
    shown_bytes: int = 0
    cut_bytes: int = 0
    """How much of the file is not in `text`."""
    left_out: str = ""
    """Why nothing of it was read, "" if it was."""


class WorkspaceContext(Struct, frozen=True):
    """What a model is told of the place that it works in."""

    directory: str
    git: GitState | None = None
    """None outside of a repository."""
    instructions: tuple[Instructions, ...] = ()
    """From the root of the repository down to the directory."""
    unnamed: int = 0
    """How many more such files there are nearer to the root."""


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
    """The directories that conversations work in. Any thread; may touch the disk."""

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
