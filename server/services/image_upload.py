"""Decodes and stores the images of a message, on separate threads, before the conversation gets the message.

The images of one message are processed one after the other, so that principals take turns image by image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bedrock import v1

from actors.core.content import Image
from actors.ports import CancelToken, FencedError, Images, InvalidImageError
from actors.ports.workspace import IMAGE_TYPES
from server.auth.authentication import OWN_USER, caller
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import AnswerTimeoutError, ConversationNotFoundError, ImageRefusedError
from server.queries.read_pool import ReadPool

THREADS = 2


def any_model(_conversation_id: str) -> None:
    """Accept images whatever the model of the conversation is."""


class ImageUploads:
    """Decodes and stores uploaded images, and owns the threads for that. Use in the event loop only."""

    def __init__(
        self,
        images: Images,
        reserve_bytes: Callable[[str, int], None] = lambda _principal, _more: None,
        check_model: Callable[[str], None] = any_model,
    ) -> None:
        """Start the threads. `reserve_bytes` and `check_model` may block.

        They raise QuotaExceededError for too many bytes, and Rejected if a conversation's model takes no images.
        """
        self._images = images
        self._reserve_bytes = reserve_bytes
        self._check_model = check_model
        self._threads = ReadPool(THREADS, name="bedrock-image")

    async def upload(
        self, conversation_id: str, request: v1.SendMessageRequest | v1.SubmitToolResultRequest, seconds: float
    ) -> tuple[Image, ...]:
        """Store the images of a message or result, and return references.

        Their bytes in the request are replaced by ids, hashes of the contents, so that a repeated request has the same
        hash and counts no bytes again. Raises ImageRefusedError (the first invalid image), ConversationNotFoundError,
        AnswerTimeoutError, QuotaExceededError, Rejected (the model takes none), ImagesUnavailableError or StoreError.
        """
        for index, picture in enumerate(pictures := list(request.images)):
            _check(index, picture)
        cancel, principal = CancelToken(), caller.get(OWN_USER).principal
        try:
            async with asyncio.timeout(seconds):
                images = await self._ingested(principal, conversation_id, request, cancel)
        except TimeoutError:
            raise AnswerTimeoutError from None
        finally:
            cancel.cancel()  # stops the work if the caller has timed out
        for picture, image in zip(pictures, images, strict=True):
            picture.CopyFrom(v1.Image(media_type=image.media_type, attachment=image.attachment))
        return images

    async def _ingested(
        self,
        principal: str,
        conversation_id: str,
        request: v1.SendMessageRequest | v1.SubmitToolResultRequest,
        cancel: CancelToken,
    ) -> tuple[Image, ...]:
        taken: list[Image] = []
        check_model = self._check_model if isinstance(request, v1.SendMessageRequest) else any_model
        for index, picture in enumerate(request.images):
            try:
                image = await self._threads(self._ingest, principal, conversation_id, picture.data, cancel, check_model)
            except InvalidImageError as invalid:
                raise ImageRefusedError(index, str(invalid)) from None
            except FencedError:
                raise ConversationNotFoundError(names.conversation(conversation_id)) from None
            if image.media_type != picture.media_type:
                raise ImageRefusedError(index, f"is {image.media_type}, not {picture.media_type}")
            taken.append(image)
        return tuple(taken)

    def _ingest(
        self, principal: str, conversation_id: str, data: bytes, cancel: CancelToken, check_model: Callable[[str], None]
    ) -> Image:
        """Store an image, within the quota if it is new. Blocks, on an upload thread."""
        image = self._images.stored(conversation_id, data)
        if image is None:
            check_model(conversation_id)
            self._reserve_bytes(principal, len(data))  # counted now: images are kept even if their message is refused
            image = self._images.ingest(conversation_id, data, cancel, uploaded=True)
        return image

    def close(self) -> None:
        self._threads.close()


def _check(index: int, picture: v1.Image) -> None:
    if picture.media_type not in IMAGE_TYPES:
        raise ImageRefusedError(index, f"must have one of the media types {', '.join(IMAGE_TYPES)}")
    if not picture.data:
        raise ImageRefusedError(index, "has no data")
    if len(picture.data) > limits.MAX_IMAGE_BYTES:
        raise ImageRefusedError(index, f"must have at most {limits.MAX_IMAGE_BYTES} bytes")
