"""The files of conversations: their working directories, and images.

Originals of images are stored unchanged; models get views, which are converted copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from msgspec import Struct

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
    path: str
    text: str = ""
    """The beginning of the file, as valid text without NUL."""
    shown_bytes: int = 0
    cut_bytes: int = 0
    """The number of bytes at the end of the file that `text` leaves out."""
    left_out: str = ""


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
    name: str
    directory: bool
    """Whether the entry is a directory, or a link to one."""


class DirectoryListing(Struct, frozen=True):
    """The entries of a directory, from which a person can choose."""

    path: str
    entries: tuple[DirectoryEntry, ...]
    truncated: bool = False


class Workspace(Protocol):
    """The directories in which conversations work. Thread-safe; reads the disk."""

    def check(self, path: str, within: Sequence[str] | None = None) -> str:
        """The real path of an existing directory, which must be in one of the directories `within`, if given.

        Raises ValueError with a message for users, which reveals nothing about other directories.
        """
        ...

    def list_directory(self, path: str, within: Sequence[str] | None = None) -> DirectoryListing:
        """List a directory; "" stands for the first directory in `within`, or the home directory of the server's user.

        The server's own files, and links that lead out of `within`, are left out. Raises ValueError with a message for
        users.
        """
        ...

    def surroundings(self, directory: str, within: Sequence[str] | None = None) -> WorkspaceContext:
        """The facts for the system prompt, from files beneath `within` if that is given. Blocks briefly."""
        ...


# A function that returns a context manager, which waits for the principal's turn to decode an image and keeps the turn
# until its end. It yields False if the token is cancelled first.
Turn: TypeAlias = "Callable[[str, CancelToken], AbstractContextManager[bool]]"

# The maximum size in bytes of an image file that is uploaded or read.
MAX_IMAGE_BYTES = 20 * 1024 * 1024
# The maximum number of pixels (width times height), according to the image's header.
MAX_IMAGE_PIXELS = 40_000_000
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class InvalidImageError(Exception):
    """The image cannot be used; the message completes a sentence about it, for example "has too many pixels"."""


class ImagesUnavailableError(Exception):
    """Images cannot be decoded now: the worker process could not be started, died or was killed."""


class ImageView(Struct, frozen=True):
    """An image in the form in which models get it: PNG or JPEG without metadata, small enough for every provider."""

    media_type: str
    data: bytes


class Images(Protocol):
    """Stores images and their views, the converted copies that are sent to models.

    Do not call this on the thread of an actor or an event loop, because a call may block for seconds. A cancelled token
    ends the wait at once.
    """

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """Decode and store an image and its view. Idempotent. Principals take turns, `uploaded` images first.

        Raises InvalidImageError (nothing is stored), ImagesUnavailableError, StoreError, or FencedError if the
        conversation does not exist.
        """
        ...

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        """The reference to an image that is already stored; None if it is not. Raises StoreError."""
        ...

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """The view of a stored image, created only once, so that its bytes never change.

        Returns None if the image is missing or undecodable. Raises ImagesUnavailableError or StoreError.
        """
        ...

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """The size in bytes of the copy for models; 0 if no copy exists. Cached. Raises the errors of `view`."""
        ...

    def stored_as(self, image: Image) -> tuple[str, ...]:
        """The ids of the attachments that contain the original and its copy for models. Never blocks."""
        ...


class NoImages:
    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        raise ImagesUnavailableError("this server does not accept images")

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        return None

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        return None

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        return 0

    def stored_as(self, image: Image) -> tuple[str, ...]:
        return (image.attachment,)
