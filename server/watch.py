"""Subscribe: a cursor over the log of one conversation, woken by the hub.

A watcher attaches to the hub first and reads its snapshot from the store afterwards. Whatever is committed later is
published later, so it is found in the hub; whatever was committed before is in the snapshot: nothing falls between.
From then on the watcher has one number, the revision that it has sent last, and asks for what comes after it: the
hub if it still has it, else the store. It keeps no queue; while its reader is slow it simply asks later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bedrock import v1

from actors.core.errors import Reason, Rejected
from actors.event_hub import Batch, EventHub
from actors.ports import Store, StoredEvent
from server.batches import Outbox, start_of_last_commit
from server.frames import Frames
from server.limits import HEARTBEAT_SECONDS, STALL_SECONDS, STORE_PAGE_EVENTS
from server.openings import open_stream
from server.reads import Reads
from server.settled import Settled
from server.status import Stalled
from server.wakeups import Wakeups
from server.wire.facts import Facts

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
"""How often, at least, streams are looked after."""


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Times and counts."""

    max_streams: int = 10_000
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    stall_seconds: float = STALL_SECONDS
    store_page: int = STORE_PAGE_EVENTS


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where watchers find what they send."""

    hub: EventHub
    store: Store
    reads: Reads
    frames: Frames
    facts: Facts
    wakeups: Wakeups


class Watchers:
    """All streams of this server. Event loop only."""

    def __init__(self, sources: Sources, settings: WatchSettings) -> None:
        self.settings = settings
        self.closing = False
        self._sources = sources
        self._streams: set[Watcher] = set()
        self._empty = asyncio.Event()
        """While closing: no stream is left."""
        self._rounds: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(
        self, conversation_id: str, request: v1.SubscribeRequest, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve one stream to its end; returns if that is OK.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), Missing, Malformed, Stalled or StoreError.
        """
        if self.closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if len(self._streams) >= self.settings.max_streams:
            raise Rejected(Reason.TOO_MANY_STREAMS)
        watcher = Watcher(self, self._sources, conversation_id, request, write)
        self._streams.add(watcher)
        self._keep_rounds()
        try:
            await watcher.run()
        finally:
            watcher.close()
            self._streams.discard(watcher)
            if self.closing and not self._streams:
                self._empty.set()

    def shut_down(self) -> None:
        """Have every watcher send what there is and then end with SHUTTING_DOWN."""
        self.closing = True
        for watcher in tuple(self._streams):
            watcher.wake()
        if not self._streams:
            self._empty.set()

    def _keep_rounds(self) -> None:
        """Go round all streams now and then, as long as there are any."""
        if self._rounds is None and self._streams:
            interval = min(ROUND_SECONDS, self.settings.heartbeat_seconds / 10, self.settings.stall_seconds / 10)
            self._rounds = asyncio.get_running_loop().call_later(interval, self._round, interval)

    def _round(self, interval: float) -> None:
        """Look after every stream: one clock for all is cheaper than one for each."""
        self._rounds = None
        now = asyncio.get_running_loop().time()
        for watcher in tuple(self._streams):
            watcher.look_after(now, now + interval)
        self._keep_rounds()

    async def ended(self, seconds: float) -> None:
        """After `shut_down`: wait until all streams have ended, `seconds` at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d watchers did not take the end of their streams", len(self._streams))


class Watcher:
    """One stream. Event loop only, but for what the hub calls."""

    def __init__(
        self,
        watchers: Watchers,
        sources: Sources,
        conversation_id: str,
        request: v1.SubscribeRequest,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._watchers = watchers
        self._sources = sources
        self._conversation_id = conversation_id
        self._request = request
        self._deltas = not request.omit_deltas
        self._out = Outbox(write)
        self._woken = asyncio.Event()
        self.wake = self._woken.set
        """Have a look. Event loop only."""
        self._position = 0
        """The last revision sent, or contained in the snapshot."""
        self._settled: Settled | None = None
        """Only if the stream ends once the conversation has settled."""
        self._task: asyncio.Task[None] | None = None
        self._stalled = False
        self._watch = sources.hub.attach(conversation_id, self._on_publish)

    def close(self) -> None:
        """Leave the hub; idempotent."""
        self._watch.close()

    def _on_publish(self) -> None:
        """Something is there (a publisher's thread)."""
        self._sources.wakeups.wake(self.wake)

    def look_after(self, now: float, next_time: float) -> None:
        """Break a silence that would be too long next time; end the stream if its reader has stalled."""
        settings = self._watchers.settings
        since = self._out.writing_since
        if since is None:
            if next_time >= self._out.sent_at + settings.heartbeat_seconds:
                self.wake()
        elif now >= since + settings.stall_seconds and self._task is not None:
            self._stalled = True
            self._task.cancel()

    async def run(self) -> None:
        """Serve the stream; see Watchers.serve."""
        self._task = asyncio.current_task()
        try:
            await self._open()
            while await self._go_on():
                await self._woken.wait()
        except asyncio.CancelledError:
            if not self._stalled or self._task is None:
                raise
            self._task.uncancel()
            raise Stalled from None

    async def _open(self) -> None:
        """Snapshot, what was missed, caught up."""
        sources = self._sources
        opening = await sources.reads(open_stream, sources.store, sources.facts, self._conversation_id, self._request)
        if self._request.until_settled:
            self._settled = Settled(opening.record)
        if self._deltas and opening.slot is not None:
            opening.add_partial(self._watch.take(*opening.slot))
        await self._out.add([self._sources.frames.snapshot(opening.snapshot)])
        if opening.after is None:
            self._position = opening.record.last_seq
        else:
            self._position = opening.after
            await self._replay()  # raises RevisionTooOld, if at all, before anything is sent
        await self._out.add([self._sources.frames.caught_up(self._position)])

    async def _go_on(self) -> bool:
        """Send all that is there now; returns whether the stream goes on."""
        self._woken.clear()
        closing = self._watchers.closing  # before the look: what is published until then is still sent
        batch = self._watch.read(self._position, passing=self._deltas)
        while batch.behind and not batch.deleted and await self._replay():
            batch = self._watch.read(self._position, passing=self._deltas)
        await self._take(batch)
        if batch.deleted:
            await self._out.add([self._sources.frames.deleted()])
        if self._out.empty and self._silent():
            await self._out.add([self._sources.frames.heartbeat(self._position)])
        await self._out.flush()
        if batch.deleted or self._settled:
            return False
        if closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        return True

    def _silent(self) -> bool:
        """Whether nothing will have been sent for too long when somebody looks again."""
        settings = self._watchers.settings
        slack = min(ROUND_SECONDS, settings.heartbeat_seconds / 10)
        return asyncio.get_running_loop().time() + slack >= self._out.sent_at + settings.heartbeat_seconds

    async def _replay(self) -> bool:
        """Send events from the store until there are no more; returns whether there were any."""
        began = self._position
        full = True
        while full:
            events, frames, full = await self._sources.reads(self._page, self._position)
            await self._out.add_events(events, frames)
            self._took(events)
        return self._position > began

    def _page(self, after: int) -> tuple[Sequence[StoredEvent], list[bytes], bool]:
        """Events, their frames, and whether there may be more (reading thread). Ends between commits if it can."""
        limit = self._watchers.settings.store_page
        events = self._sources.store.events(self._conversation_id, after=after, limit=limit)
        full = len(events) == limit
        if full:
            events = events[: start_of_last_commit(events)] or events
        return events, self._sources.frames.stored(self._conversation_id, events), full

    async def _take(self, batch: Batch) -> None:
        """Put what the hub had into the outbox: events first, since they open the slots of the text."""
        frames = self._sources.frames
        if batch.events:
            events = [each.event for each in batch.events]
            await self._out.add_events(events, frames.live(self._conversation_id, batch.events))
            self._took(events)
        if batch.text is not None:
            await self._out.add(frames.text(batch.text))
        if batch.output is not None:
            await self._out.add(frames.output(batch.output))

    def _took(self, events: Sequence[StoredEvent]) -> None:
        if self._settled is not None:
            for event in events:
                self._settled.take(event)
        if events:
            self._position = events[-1].revision
