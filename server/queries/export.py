"""Serves ExportConversation, which streams a whole conversation as lines of JSON. One page at a time is in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bedrock import v1
from google.protobuf import json_format

from actors.core.notifications import ConversationUpdated
from actors.ports import ConversationRecord, RevisionTooOldError, StoredEvent, StoreReader
from server.contract import limits
from server.contract.errors import ConversationNotFoundError
from server.queries.slow_reader import send
from server.wire.conversations.conversation_messages import in_full
from server.wire.events import event_alone
from server.wire.messages import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from google.protobuf.message import Message

    from server.queries.read_pool import ReadPool
    from server.wire.context import ConversionContext

PAGE = 100
"""How many messages or events are read at a time."""


class ConversationExports:
    """Serves ExportConversation. Use in the event loop only; reads run on other threads."""

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
    """Yield the lines of the export in pages: the conversation, its messages and its events, all as of `record`.

    No database snapshot is needed, because stored messages and events never change.
    """
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
    """Yield the lines of the conversation's events, in pages.

    Events that were pruned (removed as too old), even during the export, are left out.
    """
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
    """Return the names of the settings that an event has changed; {} for other events.

    Only the names can be exported, because the log does not keep the new values.
    """
    notification = stored.notification
    return {"settings": list(notification.fields)} if isinstance(notification, ConversationUpdated) else {}


def _line(kind: str, body: Message, **more: object) -> str:
    """Return one line of the export as JSON: the kind, the body under a key named after the kind, and `more`."""
    fields = json_format.MessageToDict(body, preserving_proto_field_name=True)
    return json.dumps({"kind": kind, kind: fields, **more}, ensure_ascii=False, separators=(",", ":"))
