"""Serves GetAttachment, and DownloadAttachment, which streams an image in chunks at the speed of the client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bedrock import v1

from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError, SlowReaderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.ports import Attachment, AttachmentStore
    from server.queries.read_pool import ReadPool


class AttachmentDownloads:
    """Serves the calls about attachments, the images in messages. Use in the event loop only."""

    def __init__(self, store: AttachmentStore, reads: ReadPool, stall_seconds: float = limits.STALL_SECONDS) -> None:
        self._store = store
        self._reads = reads
        self._stall_seconds = stall_seconds

    async def serve(
        self,
        conversation_id: str,
        request: v1.DownloadAttachmentRequest,
        write: Callable[[v1.DownloadAttachmentResponse], Awaitable[None]],
    ) -> None:
        """Send the whole image in chunks, by calls of `write`.

        Raises ConversationNotFoundError if there is no such image, SlowReaderError if the client stops reading, and
        StoreError if the image cannot be read.
        """
        for piece in _pieces(await self._found(conversation_id, request.name)):
            try:
                async with asyncio.timeout(self._stall_seconds):
                    await write(piece)
            except TimeoutError:
                raise SlowReaderError("nothing was read for too long; read the attachment again") from None

    async def described(self, conversation_id: str, name: str) -> v1.Attachment:
        """Return the type and the size of an attachment.

        Raises ConversationNotFoundError if there is no such attachment, or StoreError.
        """
        found = await self._found(conversation_id, name)
        return v1.Attachment(
            name=names.attachment(conversation_id, found.id),
            media_type=found.media_type,
            size_bytes=len(found.data),
            width=found.width,
            height=found.height,
        )

    async def _found(self, conversation_id: str, name: str) -> Attachment:
        _, attachment_id = names.parse_child(name, "attachments") or ("", "")
        found = None
        if "." not in attachment_id:  # clients cannot get scaled-down copies, whose ids have a dot
            found = await self._reads(self._store.attachment, conversation_id, attachment_id)
        if found is None:
            raise ConversationNotFoundError(name)
        return found


def _pieces(attachment: Attachment) -> list[v1.DownloadAttachmentResponse]:
    size = limits.ATTACHMENT_PIECE_BYTES
    starts = range(0, len(attachment.data), size)
    pieces = [v1.DownloadAttachmentResponse(data=attachment.data[start : start + size]) for start in starts]
    pieces[0].media_type, pieces[0].size_bytes = attachment.media_type, len(attachment.data)
    return pieces
