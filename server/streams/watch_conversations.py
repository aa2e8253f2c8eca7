"""WatchConversations: the current list, then its changes, coalesced to the latest of each conversation.

A watcher attaches to the feed first and reads the store afterwards. A page may be newer than the feed, so
conversations that changed while the pages were read are read once more; from then on the feed is sufficient.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.errors import Reason, Rejected
from actors.ports import ConversationReader, ConversationRecord, StoreDamagedError
from server.contract import resource_names as names
from server.streams.base import Stream, Streams
from server.wire.conversation_messages import conversation

if TYPE_CHECKING:
    from actors.events.conversation_list import ListChange, ListFeed
    from server.queries.read_pool import ReadPool
    from server.streams.wakeups import Wakeups
    from server.wire.context import ConversionContext
    from server.wire.encoded_conversations import EncodedConversations

log = logging.getLogger(__name__)

PAGE = 100
"""Number of conversations that are read from the store at a time."""
PAUSE_SECONDS = 0.05
"""Pause after changes were sent, in which frequent changes are coalesced."""

Write = Callable[[bytes], Awaitable[None]]


class ConversationListStreams:
    """The WatchConversations streams of this server. Event loop only."""

    def __init__(
        self,
        streams: Streams,
        *,
        feed: ListFeed,
        store: ConversationReader,
        reads: ReadPool,
        conversion: ConversionContext,
        conversations: EncodedConversations,
        wakeups: Wakeups,
    ) -> None:
        self._streams = streams
        self.feed = feed
        self.store = store
        self.reads = reads
        self.conversion = conversion
        self.conversations = conversations
        self.wakeups = wakeups

    async def serve(self, principal: str, request: v1.WatchConversationsRequest, write: Write) -> None:
        """Serve one stream to its end.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), SlowReaderError or StoreError.
        """
        await self._streams.attend(lambda: ConversationListStream(self._streams, self, principal, request, write))


class ConversationListStream(Stream):
    """One stream. Event loop only, except the callbacks of the feed."""

    def __init__(
        self,
        streams: Streams,
        sources: ConversationListStreams,
        principal: str,
        request: v1.WatchConversationsRequest,
        write: Write,
    ) -> None:
        super().__init__(streams, write)
        self._sources = sources
        self._principal = principal
        self._request = request
        self._watch = sources.feed.attach(self._on_change)

    def close(self) -> None:
        """Detach from the feed; idempotent."""
        self._watch.close()

    def _on_change(self) -> None:
        """Wake the stream for a change (a publisher's thread)."""
        self._sources.wakeups.wake(self.wake)

    async def _open(self) -> None:
        if not self._request.changes_only:
            pages = self._pages()
            while (page := await self._sources.reads(next, pages, None)) is not None:
                await self._send_all(page)
            meanwhile = [change.id for change in self._watch.read() if self._wanted(change)]
            for start in range(0, len(meanwhile), PAGE):
                await self._send_all(await self._sources.reads(self._present, meanwhile[start : start + PAGE]))
        await self._send(v1.WatchConversationsResponse(caught_up=v1.WatchConversationsResponse.CaughtUp()))

    async def _go_on(self) -> bool:
        self._woken.clear()
        closing = self._streams.closing  # read first: changes until then are still sent
        for change in self._watch.read():
            if self._wanted(change) and not change.outdated:
                await self._out.add([self._wire(change)])
                await self._out.flush()
        if closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if self._silent():
            await self._send(v1.WatchConversationsResponse(heartbeat=v1.WatchConversationsResponse.Heartbeat()))
        else:
            await asyncio.sleep(PAUSE_SECONDS)
        return True

    def _wanted(self, change: ListChange) -> bool:
        if change.record.principal != self._principal:
            return False
        return self._request.include_sub_agents or not change.sub_agent

    def _wire(self, change: ListChange) -> bytes:
        """Return the response, encoded once for all watchers."""
        if change.wire is None:
            change.wire = self._encoded(change).SerializeToString()
        return change.wire

    def _encoded(self, change: ListChange) -> v1.WatchConversationsResponse:
        if change.deleted:
            return _deleted(change.id)
        return v1.WatchConversationsResponse(conversation_changed=self._sources.conversations.message(change.record))

    async def _send_all(self, responses: Iterable[v1.WatchConversationsResponse]) -> None:
        for response in responses:
            await self._send(response)

    async def _send(self, response: v1.WatchConversationsResponse) -> None:
        await self._out.add([response.SerializeToString()])
        await self._out.flush()

    def _pages(self) -> Iterator[list[v1.WatchConversationsResponse]]:
        """Read the conversations that exist, page by page (reading thread)."""
        conversion = self._sources.conversion
        for archived in (False, True):
            before: tuple[int, str] | None = None
            while records := self._sources.store.list(
                principal=self._principal, archived=archived, parent=None, before=before, limit=PAGE
            ):
                yield [_shown(conversion, record) for record in records]
                before = (records[-1].updated_at, records[-1].id)
                if self._request.include_sub_agents:
                    for record in records:
                        yield self._present(self._sources.store.children(record.id))

    def _present(self, ids: Iterable[str]) -> list[v1.WatchConversationsResponse]:
        """Read the current state of these conversations (reading thread)."""
        return [shown for id_ in ids if (shown := self._present_one(id_)) is not None]

    def _present_one(self, id_: str) -> v1.WatchConversationsResponse | None:
        """Read one conversation; None if it is damaged, so that it is omitted, as in all lists."""
        try:
            record = self._sources.store.load(id_)
        except StoreDamagedError:
            log.exception("conversation %s cannot be read and is left out", id_)
            return None
        return _deleted(id_) if record is None else _shown(self._sources.conversion, record)


def _shown(conversion: ConversionContext, record: ConversationRecord) -> v1.WatchConversationsResponse:
    return v1.WatchConversationsResponse(conversation_changed=conversation(conversion, record))


def _deleted(conversation_id: str) -> v1.WatchConversationsResponse:
    return v1.WatchConversationsResponse(conversation_deleted=names.conversation(conversation_id))
