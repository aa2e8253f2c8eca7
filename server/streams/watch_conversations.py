"""Serves WatchConversations: sends the current list of conversations, then each conversation that changes.

If a conversation changes often, only the latest change is sent. A stream first asks the feed of changes to wake it, and
reads the store afterwards. A page that it reads may be newer than the changes in the feed, so conversations that
changed while the pages were read are read once more. From then on, the feed is sufficient.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import TypeAlias

from bedrock import v1

from actors.core.errors import Reason, Rejected
from actors.ports import ConversationRecord, StoreDamagedError
from actors.ports.store import Condition, ListPosition, Selection, matches
from actors.publishing.conversation_list import ListChange
from server.contract import resource_names as names
from server.contract.errors import ListInterruptedError
from server.queries.listings import selection_of
from server.streams.base import Stream, Streams
from server.streams.subscribe import Sources
from server.wire.conversation_messages import conversation


class ListVerdict(Enum):
    SHOW = "show"
    TAKE_OFF = "take_off"
    """Report the conversation as gone: it no longer matches, but is or may be in the client's list."""
    SAY_NOTHING = "say_nothing"


class ListFilter:
    """The filter of one client's stream, and the conversations in the client's list. Not thread-safe."""

    def __init__(self, condition: Condition, *, may_have_others: bool) -> None:
        """With `may_have_others`, the client may have conversations that this stream has not sent."""
        self._condition = condition
        self._default = may_have_others
        self._has: dict[str, bool] = {}
        """For each conversation that was sent or reported as gone: whether the client now has it in its list."""

    def classify(self, record: ConversationRecord) -> ListVerdict:
        """Decide what to send about a changed conversation, and remember whether the client has it afterwards."""
        had = self._has.get(record.id, self._default)
        if matches(self._condition, record):
            self._has[record.id] = True
            return ListVerdict.SHOW
        if not had:
            return ListVerdict.SAY_NOTHING
        self._has[record.id] = False
        return ListVerdict.TAKE_OFF

    def forget(self, conversation_id: str) -> bool:
        """Forget a deleted conversation, and return whether the client must be notified of the deletion."""
        return self._has.pop(conversation_id, self._default)


log = logging.getLogger(__name__)

PAGE = 100
# Seconds to pause after changes were sent. Changes of one conversation within this time are merged.
PAUSE_SECONDS = 0.05

Write = Callable[[bytes], Awaitable[None]]


class FollowedNodes:
    """Tells a stream whether changes on other nodes of the cluster may have been missed. Use only on the event loop."""

    def __init__(self) -> None:
        self.interrupted = False
        self.wake: Callable[[], None] = _no_watcher_yet

    def interrupt(self) -> None:
        """End the stream, because its list may no longer be complete."""
        self.interrupted = True
        self.wake()


Followed: TypeAlias = "AbstractAsyncContextManager[FollowedNodes]"


def _no_watcher_yet() -> None:
    """Do nothing: when the stream begins, it reads the whole list."""


class ConversationListStreams:
    def __init__(self, streams: Streams, sources: Sources, others: Callable[[], Followed]) -> None:
        """`others` returns a context manager that adds other nodes' changes."""
        self._streams, self._sources, self._others = streams, sources, others

    async def serve(self, principal: str, request: v1.WatchConversationsRequest, write: Write) -> None:
        """Serve a stream to its end.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), ListInterruptedError, SlowReaderError or StoreError.
        """
        async with self._others() as nodes:
            await self._streams.attend(
                lambda: ConversationListStream(self._streams, self._sources, principal, request, write, nodes=nodes)
            )


class ConversationListStream(Stream):
    """One WatchConversations stream. Use only on the event loop, except the functions that the feed calls."""

    def __init__(
        self,
        streams: Streams,
        sources: Sources,
        principal: str,
        request: v1.WatchConversationsRequest,
        write: Write,
        *,
        nodes: FollowedNodes,
    ) -> None:
        super().__init__(streams, write)
        self._sources = sources
        self._nodes = nodes
        nodes.wake = self.wake
        self._principal = principal
        self._request = request
        self._sub_agents = request.include_sub_agents
        self._selection = Selection(principal)
        """The conversations of the list with which the stream begins, and their order."""
        self._filter: ListFilter | None = None
        self._watch = sources.hub.conversation_list.attach(self._on_change)

    def close(self) -> None:
        self._watch.close()

    def _on_change(self) -> None:
        self._sources.wakeups.wake(self.wake)

    async def _open(self) -> None:
        await self._sources.reads(self._select)
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
        closing = self._streams.closing  # read first, so that no change from before the shutdown is lost
        for change in self._watch.read():
            if self._wanted(change) and not change.outdated and (response := self._told(change)) is not None:
                await self._out.add([response])
                await self._out.flush()
        if closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if self._nodes.interrupted:
            raise ListInterruptedError
        if self._silent():
            await self._send(v1.WatchConversationsResponse(heartbeat=v1.WatchConversationsResponse.Heartbeat()))
        else:
            await asyncio.sleep(PAUSE_SECONDS)
        return True

    def _wanted(self, change: ListChange) -> bool:
        if change.record.principal != self._principal:
            return False
        return self._sub_agents or not change.sub_agent

    def _told(self, change: ListChange) -> bytes | None:
        """The response for a change: the conversation, or that it is gone; None if there is nothing to send."""
        match self._verdict(change):
            case ListVerdict.SHOW:
                if change.wire is None:
                    change.wire = self._encoded(change).SerializeToString()
                return change.wire
            case ListVerdict.TAKE_OFF:
                return _unmatched(change.id).SerializeToString()
            case ListVerdict.SAY_NOTHING:
                return None

    def _verdict(self, change: ListChange) -> ListVerdict:
        if self._filter is None:
            return ListVerdict.SHOW
        if change.deleted:
            return ListVerdict.SHOW if self._filter.forget(change.id) else ListVerdict.SAY_NOTHING
        return self._filter.classify(change.record)

    def _encoded(self, change: ListChange) -> v1.WatchConversationsResponse:
        if change.deleted:
            return _deleted(change.id)
        return v1.WatchConversationsResponse(conversation_changed=self._sources.encoded.message(change.record))

    async def _send_all(self, responses: Iterable[v1.WatchConversationsResponse]) -> None:
        for response in responses:
            await self._send(response)

    async def _send(self, response: v1.WatchConversationsResponse) -> None:
        await self._out.add([response.SerializeToString()])
        await self._out.flush()

    def _select(self) -> None:
        """Parse the filter and the order in the request. Blocks; called on a thread of `ReadPool`."""
        request = self._request
        selection = selection_of(self._sources.store, self._principal, request.filter, request.order_by)
        self._sub_agents |= selection.sub_agents or selection.parent is not None
        if request.filter:
            self._filter = ListFilter(selection.where, may_have_others=request.changes_only)
        self._selection = Selection(self._principal) if self._sub_agents else selection

    def _pages(self) -> Iterator[list[v1.WatchConversationsResponse]]:
        """Yield the existing conversations as responses, page by page. Blocks; runs on a thread of `ReadPool`."""
        place: ListPosition | None = None
        while True:
            page = self._sources.store.list(self._selection, after=place, limit=PAGE)
            yield [shown for record in page.records if (shown := self._response(record)) is not None]
            if self._sub_agents:
                for record in page.records:
                    yield self._present(self._sources.store.children(record.id))
            if page.more is None:
                return
            place = page.more

    def _present(self, ids: Iterable[str]) -> list[v1.WatchConversationsResponse]:
        """Responses with the current state of these conversations. Blocks; called on a thread of `ReadPool`."""
        return [shown for id_ in ids if (shown := self._present_one(id_)) is not None]

    def _present_one(self, id_: str) -> v1.WatchConversationsResponse | None:
        """A conversation's current state; None if the filter excludes it, or if it is damaged and therefore omitted."""
        try:
            record = self._sources.store.load(id_)
        except StoreDamagedError:
            log.exception("the conversation cannot be read and is omitted from the list", extra={"conversation": id_})
            return None
        if record is None:
            return _deleted(id_) if self._filter is None or self._filter.forget(id_) else None
        return self._response(record)

    def _response(self, record: ConversationRecord) -> v1.WatchConversationsResponse | None:
        match ListVerdict.SHOW if self._filter is None else self._filter.classify(record):
            case ListVerdict.SHOW:
                shown = conversation(self._sources.conversion, record)
                return v1.WatchConversationsResponse(conversation_changed=shown)
            case ListVerdict.TAKE_OFF:
                return _unmatched(record.id)
            case ListVerdict.SAY_NOTHING:
                return None


def _deleted(conversation_id: str) -> v1.WatchConversationsResponse:
    return v1.WatchConversationsResponse(conversation_deleted=names.conversation(conversation_id))


def _unmatched(conversation_id: str) -> v1.WatchConversationsResponse:
    return v1.WatchConversationsResponse(conversation_unmatched=names.conversation(conversation_id))
