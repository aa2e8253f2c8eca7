"""Serves the downloads of attachments, and ExportConversation, which streams a conversation as lines of JSON.

A download is sent at the speed of its client: a slow client delays no other, and is disconnected after a time limit. An
export has one page at a time in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from bedrock import v1
from google.protobuf import json_format
from google.protobuf.message import Message

from actors.core.notifications import ConversationUpdated
from actors.ports import Attachment, AttachmentStore, ConversationRecord, RevisionTooOldError, StoredEvent, StoreReader
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError, SlowReaderError
from server.queries.read_pool import ReadPool
from server.wire.conversation_messages import in_full
from server.wire.events import event_alone
from server.wire.messages import ConversionContext, message

Response = TypeVar("Response")


async def send(
    write: Callable[[Response], Awaitable[None]], response: Response, stall_seconds: float = limits.STALL_SECONDS
) -> None:
    """Send a response, and return once gRPC has accepted it. Raises SlowReaderError if that takes `stall_seconds`."""
    try:
        async with asyncio.timeout(stall_seconds):
            await write(response)
    except TimeoutError:
        raise SlowReaderError("the client read nothing for too long; call again") from None


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
        """Send an image in chunks by `write`. Raises ConversationNotFoundError, SlowReaderError or StoreError."""
        for piece in _pieces(await self._found(conversation_id, request.name)):
            await send(write, piece, self._stall_seconds)

    async def described(self, conversation_id: str, name: str) -> v1.Attachment:
        """An attachment's type and size. Raises ConversationNotFoundError or StoreError."""
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


PAGE = 100


class ConversationExports:
    def __init__(
        self,
        store: StoreReader,
        reads: ReadPool,
        conversion: ConversionContext,
        stall_seconds: float = limits.STALL_SECONDS,
    ) -> None:
        self._store = store
        self._reads = reads
        self._conversion = conversion
        self._stall_seconds = stall_seconds

    async def serve(
        self,
        conversation_id: str,
        request: v1.ExportConversationRequest,
        write: Callable[[v1.ExportConversationResponse], Awaitable[None]],
    ) -> None:
        """Send the whole export by `write`. Raises ConversationNotFoundError, SlowReaderError or StoreError."""
        record = await self._reads(self._store.load, conversation_id)
        if record is None:
            raise ConversationNotFoundError(request.name)
        pages = _pages(self._store, self._conversion, record)
        while (lines := await self._reads(next, pages, None)) is not None:
            for line in lines:
                await send(write, v1.ExportConversationResponse(line=line), self._stall_seconds)
        if await self._reads(self._store.load, conversation_id) is None:
            raise ConversationNotFoundError(request.name)  # deleted during the export: lines may be missing


def _pages(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    """Yield the lines of the export as of `record`. No snapshot is needed: messages and events never change."""
    shown = in_full(conversion, record)
    yield [_line("conversation", shown, system_prompt=record.system_prompt)]
    yield from _messages(store, conversion, record)
    yield from _events(store, conversion, record)


def _messages(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    after, end = 0, record.state.ledger.seq + 1
    while page := store.messages(record.id, after=after, before=end, limit=PAGE):
        yield [_line("message", message(conversion, record.id, each)) for each in page]
        after = page[-1].sequence


def _events(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    """Yield the lines of the events, but those pruned meanwhile."""
    after = 0
    while after < record.last_seq:
        try:
            page = store.events(record.id, after=after, limit=min(PAGE, record.last_seq - after))
        except RevisionTooOldError as error:
            after = error.oldest
            continue
        if not page:
            return
        yield [_line("event", event_alone(conversion, record.id, each), **_settings(each)) for each in page]
        after = page[-1].revision


def _settings(stored: StoredEvent) -> dict[str, list[str]]:
    """The names of the settings that an event has changed: the log does not keep the values."""
    notification = stored.notification
    return {"settings": list(notification.fields)} if isinstance(notification, ConversationUpdated) else {}


def _line(kind: str, body: Message, **more: object) -> str:
    fields = json_format.MessageToDict(body, preserving_proto_field_name=True)
    return json.dumps({"kind": kind, kind: fields, **more}, ensure_ascii=False, separators=(",", ":"))
