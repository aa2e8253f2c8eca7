"""Images: taken in once, shown to models as derived views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from actors.core.content import Image
    from actors.ports.cancellation import CancelToken

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Of an image as it is sent or read."""
MAX_IMAGE_PIXELS = 40_000_000
"""Of an image, width times height, as its header says."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class InvalidImageError(Exception):
    """The image cannot be used; the text ends a sentence that begins with the image: "is damaged or cut off"."""


class ImagesUnavailableError(Exception):
    """Images cannot be looked at just now: the process that does it could not be started, was lost or was ended."""


class ImageView(Struct, frozen=True):
    """An image as models see it: PNG or JPEG without metadata, small enough for every provider."""

    media_type: str
    data: bytes


class Images(Protocol):
    """Takes images in and derives their views. Any thread but an actor's or an event loop's: it blocks, for seconds
    where an image is large or others are being looked at. A pulled token ends the wait at once."""

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken) -> Image:
        """Decode an image, store it as it is and as models will see it, and return the reference to it. An image that
        the conversation has already is not looked at again.

        Raises InvalidImageError, and then nothing is stored; ImagesUnavailableError; StoreError, FencedError if there
        is no such conversation.
        """
        ...

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        """What models see of a stored image: derived once, the same bytes ever after; None if it is not stored or can
        no longer be decoded. Raises ImagesUnavailableError or StoreError."""
        ...

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """How large that is, 0 without one; remembered, so that it costs nothing when asked again. Raises likewise."""
        ...


class NoImages:
    """Takes nothing in (Images)."""

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken) -> Image:
        raise ImagesUnavailableError("this server takes no images")

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        return None

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        return 0
