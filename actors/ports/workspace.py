"""The files of conversations: their working directories, and images.

Originals of images are stored unchanged; models get views, which are converted copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from actors.core.content import Image
    from actors.ports.live_conversations import CancelToken


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


Turn: TypeAlias = "Callable[[str, CancelToken], AbstractContextManager[bool]]"
"""Takes a principal and a cancel token; returns a context manager that waits for the principal's decoding turn.

The turn lasts as long as the context. The context manager yields False if the token is cancelled before the turn comes.
"""

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""The maximum size in bytes of an image file that is uploaded or read."""
MAX_IMAGE_PIXELS = 40_000_000
"""The maximum number of pixels (width times height), according to the image's header."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class InvalidImageError(Exception):
    """The image cannot be used; the text completes a sentence about the image, for example "is damaged or cut off"."""


class ImagesUnavailableError(Exception):
    """Images cannot be decoded now: the worker process could not be started, died or was killed."""


class ImageView(Struct, frozen=True):
    """An image in the form in which models get it: PNG or JPEG without metadata, small enough for every provider."""

    media_type: str
    data: bytes


class Images(Protocol):
    """Stores images and creates their views, the converted copies that are sent to models.

    Do not call these methods on the thread of an actor or an event loop: a call may block for seconds, while this or
    other images are decoded. A cancelled token ends the wait at once.
    """

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """Decode and store an image and its view (the copy for models); return a reference to the image. Idempotent.

        Principals take turns, and images that are `uploaded` do not wait for those that tools read.

        Raises InvalidImageError, in which case nothing is stored; ImagesUnavailableError; StoreError; or FencedError if
        the conversation does not exist.
        """
        ...

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        """Return the reference to an image that is already stored; None if it is not. Raises StoreError."""
        ...

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return the view of a stored image: the copy for models, created only once, so that its bytes never change.

        Returns None if the image is not stored or can no longer be decoded. Raises ImagesUnavailableError or
        StoreError.
        """
        ...

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return the size in bytes of the copy for models; 0 if there is none. Cached. Raises the errors of `view`."""
        ...

    def stored_as(self, image: Image) -> tuple[str, ...]:
        """Return the ids of the attachments that contain the original and its copy for models. Never blocks."""
        ...


class NoImages:
    """The implementation of Images for a server that accepts no images."""

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """Refuse the image. Raises ImagesUnavailableError."""
        raise ImagesUnavailableError("this server takes no images")

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        """Return None, because no image is stored."""
        return None

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return None, because no image is stored."""
        return None

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return 0, because no image is stored."""
        return 0

    def stored_as(self, image: Image) -> tuple[str, ...]:
        """Return the id of the original only, because there is no converted copy of it."""
        return (image.attachment,)
