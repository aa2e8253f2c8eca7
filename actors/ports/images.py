"""Images: stored once as they come, shown to models as derived views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from actors.core.content import Image
    from actors.ports.cancellation import CancelToken

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Limit for an image file as it is uploaded or read."""
MAX_IMAGE_PIXELS = 40_000_000
"""Limit for width times height, as the header of the image says."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class InvalidImageError(Exception):
    """The image cannot be used; the text completes a sentence, e.g. "is damaged or cut off"."""


class ImagesUnavailableError(Exception):
    """Images cannot be decoded now: the worker process could not be started, was lost or was ended."""


class ImageView(Struct, frozen=True):
    """An image as it is sent to models: PNG or JPEG without metadata, small enough for every provider."""

    media_type: str
    data: bytes


class Images(Protocol):
    """Stores images and derives their views.

    Any thread but an actor's or an event loop's: a call may block for seconds, while a large image is decoded or
    others are. A cancelled token ends the wait at once.
    """

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken) -> Image:
        """Decode and store an image and its view; returns the reference to it. Idempotent.

        Raises InvalidImageError, then nothing is stored; ImagesUnavailableError; StoreError, FencedError if there
        is no such conversation.
        """
        ...

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return the view of a stored image: derived once, the same bytes ever after.

        None if the image is not stored or can no longer be decoded. Raises ImagesUnavailableError or StoreError.
        """
        ...

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return the size of the view in bytes, 0 without one; cached. Raises what `view` raises."""
        ...


class NoImages:
    """The Images port of a server that takes no images."""

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken) -> Image:
        """Refuse the image. Raises ImagesUnavailableError."""
        raise ImagesUnavailableError("this server takes no images")

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return no view."""
        return None

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return 0."""
        return 0
