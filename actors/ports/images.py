"""The port for images: originals are stored unchanged; models get views, which are converted copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from actors.core.content import Image
    from actors.ports.live_conversations import CancelToken

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
