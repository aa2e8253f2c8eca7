"""Images: originals are stored unchanged; models get views derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from actors.core.content import Image
    from actors.ports.cancellation import CancelToken

Turn: TypeAlias = "Callable[[str, CancelToken], AbstractContextManager[bool]]"
"""Waits for a turn of a principal, which is held for the block; gives False if the token is cancelled before."""

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Maximum size of an image file that is uploaded or read."""
MAX_IMAGE_PIXELS = 40_000_000
"""Maximum width times height, according to the header of the image."""
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

    Any thread but an actor's or an event loop's: a call may block for seconds, while this or other images are decoded.
    A cancelled token ends the wait at once.
    """

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """Decode and store an image and its view; returns the reference to it. Idempotent.

        Principals take turns, and images that are `uploaded` do not wait for those that tools read.

        Raises InvalidImageError, then nothing is stored; ImagesUnavailableError; StoreError, FencedError if there
        is no such conversation.
        """
        ...

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        """Return the reference to an image that is stored already; None if it is not. Raises StoreError."""
        ...

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return the view of a stored image: it is derived once, so that its bytes never change.

        None if the image is not stored or can no longer be decoded. Raises ImagesUnavailableError or StoreError.
        """
        ...

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return the size of the view in bytes, 0 without one; cached. Raises what `view` raises."""
        ...

    def stored_as(self, image: Image) -> tuple[str, ...]:
        """Return the ids of the attachments that hold the original and its view. Never blocks."""
        ...


class NoImages:
    """The Images port of a server that accepts no images."""

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """Refuse the image. Raises ImagesUnavailableError."""
        raise ImagesUnavailableError("this server takes no images")

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        """Return no image."""
        return None

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """Return no view."""
        return None

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """Return 0."""
        return 0

    def stored_as(self, image: Image) -> tuple[str, ...]:
        """Return the id of the original."""
        return (image.attachment,)
