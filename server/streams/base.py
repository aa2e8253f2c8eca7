"""The common parts of all streams and other long calls: limits, wake-ups, and the encoding of events.

The server limits the number of these calls, sends heartbeats on them, ends calls whose clients do not read, and ends
all calls at shutdown.

A SubscribeResponse has one field, the list of events, so its encoding is the sequence of its encoded events, each after
the field's tag and the event's length: a *frame*. Frames are encoded once for all streams of a conversation, and
concatenated into responses. Events that were committed together are sent in one response, unless they do not fit.

One callback on the event loop wakes all waiting streams. Sending costs the loop some 70 microseconds per stream,
whatever the size, so a batch that has woken many streams is followed by a pause in which events accumulate. Text that a
model is streaming is less urgent, and has its own batches with longer pauses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bedrock import v1

from actors.core.errors import Reason, Rejected
from actors.ports import Clock, ConversationReader, StoredEvent
from actors.publishing.hub import EventBatch, HubEvent, LiveText, TextChunk
from server.contract.errors import SlowReaderError
from server.contract.limits import BATCH_BYTES, BATCH_EVENTS, HEARTBEAT_SECONDS, STALL_SECONDS, STORE_PAGE_EVENTS
from server.wire.conversation_messages import EncodedConversations, conversation
from server.wire.events import event, needs_record, output_delta, text_delta
from server.wire.messages import ConversionContext, timestamp

log = logging.getLogger(__name__)

# Maximum seconds between two checks of all streams for due heartbeats and for clients that do not read.
ROUND_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Time limits of streams, and the maximum number of them."""

    max_streams: int = 10_000
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    stall_seconds: float = STALL_SECONDS
    store_page: int = STORE_PAGE_EVENTS


class LastingCall(ABC):
    """A long call: it sleeps until new data arrives, handles the data, and repeats this. Use only on the event loop."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._woken = asyncio.Event()
        self.wake = self._woken.set
        """Wakes the call to handle new data."""

    @abstractmethod
    async def _open(self) -> None:
        """Handle the data that exists when the call begins."""

    @abstractmethod
    async def _go_on(self) -> bool:
        """Handle new data, and return whether the call continues."""

    @abstractmethod
    def close(self) -> None:
        """Unregister the call from the events that wake it. May be called more than once."""

    @abstractmethod
    def look_after(self, now: float, next_time: float) -> None:
        """Check for a due heartbeat and a stalled client, about every second. Times are seconds of the loop's clock."""

    async def run(self) -> None:
        """Serve the call to its end. Raises what `_open` and `_go_on` raise."""
        await self._open()
        while await self._go_on():
            await self._woken.wait()


class Stream(LastingCall):
    """A long call that sends the existing data and, after each wake-up, the new data. Use only on the event loop."""

    def __init__(self, streams: Streams, write: Callable[[bytes], Awaitable[None]]) -> None:
        super().__init__(streams)
        self._out = Outbox(write)
        self._task: asyncio.Task[None] | None = None
        self._stalled = False

    async def run(self) -> None:
        """Serve the stream to its end. Raises SlowReaderError if the client does not read, or what sending raises."""
        self._task = asyncio.current_task()
        try:
            await super().run()
        except asyncio.CancelledError:
            if not self._stalled or self._task is None:
                raise
            self._task.uncancel()
            raise SlowReaderError from None

    def look_after(self, now: float, next_time: float) -> None:
        """Wake the stream if a heartbeat will be due by the next check; end the stream if its client does not read."""
        settings = self._streams.settings
        since = self._out.writing_since
        if since is None:
            if next_time >= self._out.sent_at + settings.heartbeat_seconds:
                self.wake()
        elif now >= since + settings.stall_seconds and self._task is not None and not self._stalled:
            self._stalled = True  # a second cancellation would end the call without its status
            self._task.cancel()

    def _silent(self) -> bool:
        settings = self._streams.settings
        slack = min(ROUND_SECONDS, settings.heartbeat_seconds / 10)
        return asyncio.get_running_loop().time() + slack >= self._out.sent_at + settings.heartbeat_seconds


class Streams:
    """All streams and other long calls of this server. Use only on the event loop."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.closing = False
        self._streams: set[LastingCall] = set()
        self._empty = asyncio.Event()
        self._rounds: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def attend(self, begin: Callable[[], LastingCall]) -> None:
        """Serve the call that `begin` creates to its end.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), or what the call raises.
        """
        if self.closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if len(self._streams) >= self.settings.max_streams:
            raise Rejected(Reason.TOO_MANY_STREAMS)
        stream = begin()
        self._streams.add(stream)
        self._keep_rounds()
        try:
            await stream.run()
        finally:
            stream.close()
            self._streams.discard(stream)
            if self.closing and not self._streams:
                self._empty.set()

    def shut_down(self) -> None:
        """Make every stream send its remaining events, and end with the refusal SHUTTING_DOWN."""
        self.closing = True
        for stream in tuple(self._streams):
            stream.wake()
        if not self._streams:
            self._empty.set()

    async def ended(self, seconds: float) -> None:
        """After `shut_down`, wait until all streams have ended, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d streams were still open at the shutdown timeout", len(self._streams))

    def _keep_rounds(self) -> None:
        if self._rounds is None and self._streams:
            interval = min(ROUND_SECONDS, self.settings.heartbeat_seconds / 10, self.settings.stall_seconds / 10)
            self._rounds = asyncio.get_running_loop().call_later(interval, self._round, interval)

    def _round(self, interval: float) -> None:
        """Check every stream. One timer for all is cheaper than one for each."""
        self._rounds = None
        now = asyncio.get_running_loop().time()
        for stream in tuple(self._streams):
            stream.look_after(now, now + interval)
        self._keep_rounds()


# After a batch, the pause is this number of seconds per stream woken for events: four times what sending takes.
EVENTS_PAUSE_SECONDS = 0.000_3
# The same for text: a single stream gets text immediately, and fifty or more get it twenty times a second.
TEXT_PAUSE_SECONDS = 0.001
# The longest pause, in seconds, after a batch of streams that were woken for text.
TEXT_LONGEST_SECONDS = 0.05
# Pauses of fewer seconds than this are left out: after a batch of few streams, the next batch follows immediately.
SHORTEST_SECONDS = 0.002
LONGEST_SECONDS = 0.1
# The maximum number of streams woken in one iteration of the event loop, so that requests get a turn before the other
# streams.
AT_ONCE = 16


class Wakeups:
    """Collects the streams to be woken, and schedules one callback on the event loop for all of them."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        pause_seconds: float = EVENTS_PAUSE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        """Each batch is followed by a pause of `pause_seconds` for each stream woken, but at most `longest_seconds`."""
        self._loop = loop
        self._pause = pause_seconds
        self._longest = longest_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        self._not_before = 0.0

    def wake(self, watcher: Callable[[], None]) -> None:
        """Schedule a call to `watcher` on the event loop. Thread-safe; never blocks.

        Two threads may both schedule a batch, which costs one more callback. No stream is missed: `watcher` is queued
        before `_crossing` is read, and `_crossing` is cleared before the queue is read.
        """
        self._waiting.append(watcher)
        if self._crossing:
            return
        self._crossing = True
        with suppress(RuntimeError):  # the loop is closed, so no stream is left
            self._loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        if self._loop.time() < self._not_before:
            self._loop.call_at(self._not_before, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Wake the streams that are queued now, but not those queued meanwhile: the batch might never end."""
        self._rouse(len(self._waiting), 0)

    def _rouse(self, left: int, woken: int) -> None:
        count = min(left, AT_ONCE, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft()()
        left, woken = left - count, woken + count
        if left and count:
            self._loop.call_soon(self._rouse, left, woken)
            return
        pause = min(woken * self._pause, self._longest)
        if pause >= SHORTEST_SECONDS:
            self._not_before = self._loop.time() + pause
        self._crossing = False
        if self._waiting:
            self._crossing = True
            self._loop.call_soon(self._cross)


def commits(events: Sequence[StoredEvent], frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group frames by commit, recognised by the events' time. Merging two commits of one millisecond is harmless."""
    group: list[bytes] = []
    at = events[0].at if events else 0
    for stored, encoded in zip(events, frames, strict=True):
        if stored.at != at:
            yield group
            group, at = [], stored.at
        group.append(encoded)
    if group:
        yield group


def start_of_last_commit(events: Sequence[StoredEvent]) -> int:
    """The index of the first event of the last commit, whose other events may be on the next page."""
    index = len(events)
    while index and events[index - 1].at == events[-1].at:
        index -= 1
    return index


class Outbox:
    """The frames waiting to be sent on one stream by `write`, which returns once gRPC has taken a response.

    Use only on the event loop.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._frames: list[bytes] = []
        self._bytes = 0
        self.writing_since: float | None = None
        """When the running call to `write` began, in seconds of the event loop's clock; None if none is running."""
        self.sent_at = 0.0
        """When gRPC took the last response, in seconds of the event loop's clock."""

    async def add_events(self, events: Sequence[StoredEvent], frames: Sequence[bytes]) -> None:
        """Queue encoded events, those of one commit in one response if they fit. Sends each full response."""
        if self._fits(len(frames), sum(map(len, frames))):
            self._queue(frames)
            return
        for group in commits(events, frames):
            await self.add(group)

    async def add(self, frames: Sequence[bytes]) -> None:
        """Queue encoded events, in one response if they fit into one. Sends a response whenever one is full."""
        if not self._fits(len(frames), sum(map(len, frames))):
            await self.flush()
        for frame in frames:
            if not self._fits(1, len(frame)):
                await self.flush()
            self._queue((frame,))

    @property
    def empty(self) -> bool:
        """Whether no encoded events are waiting."""
        return not self._frames

    def _queue(self, frames: Sequence[bytes]) -> None:
        self._frames.extend(frames)
        self._bytes += sum(map(len, frames))

    def _fits(self, count: int, size: int) -> bool:
        return len(self._frames) + count <= BATCH_EVENTS and self._bytes + size <= BATCH_BYTES

    async def flush(self) -> None:
        """Send all queued frames as one response, if there are any."""
        if not self._frames:
            return
        response = b"".join(self._frames)
        self._frames, self._bytes = [], 0
        await self.send(response)

    async def send(self, response: bytes) -> None:
        """Send a response that is already encoded. No frames may be queued."""
        clock = asyncio.get_running_loop().time
        self.writing_since = clock()
        await self._write(response)
        self.writing_since = None
        self.sent_at = clock()


_TAG = bytes([v1.SubscribeResponse.EVENTS_FIELD_NUMBER << 3 | 2])
_UPDATED_TAG = bytes([v1.Event.CONVERSATION_UPDATED_FIELD_NUMBER << 3 | 2])


def frame(message: v1.Event) -> bytes:
    return _framed(message.SerializeToString())


def _framed(body: bytes) -> bytes:
    return b"".join((_TAG, _varint(len(body)), body))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _update(body: bytes) -> bytes:
    return b"".join((_UPDATED_TAG, _varint(len(body)), body))


class EventEncoder:
    """Encodes events as frames, the pieces of a SubscribeResponse. Use only on the event loop, except `stored`."""

    def __init__(
        self,
        store: ConversationReader,
        conversion: ConversionContext,
        conversations: EncodedConversations,
        clock: Clock,
    ) -> None:
        self._store = store
        self._conversion = conversion
        self._conversations = conversations
        self._clock = clock

    def stored(self, conversation_id: str, events: Iterable[StoredEvent]) -> list[bytes]:
        """Encode events that were read from the store. Blocks; called on a thread of `ReadPool`."""
        present: bytes | None = None
        made: list[bytes] = []
        for each in events:
            if not needs_record(each.notification):
                made.append(frame(event(self._conversion, conversation_id, each)))
                continue
            if present is None:
                present = self._stored_update(conversation_id)
            made.append(self._updated(conversation_id, each, present))
        return made

    def _stored_update(self, conversation_id: str) -> bytes:
        record = self._store.load(conversation_id)
        return b"" if record is None else _update(conversation(self._conversion, record).SerializeToString())

    def _updated(self, conversation_id: str, stored: StoredEvent, update: bytes) -> bytes:
        """An event with the encoded field `update`: encoded protobuf fields can be concatenated."""
        return _framed(event(self._conversion, conversation_id, stored).SerializeToString() + update)

    def response(self, conversation_id: str, batch: EventBatch) -> bytes | None:
        """One response with a whole batch, encoded once for all streams; None if the batch is too large."""
        if not batch.encoded:
            batch.encoded = True
            frames = self.frames(conversation_id, batch)
            if len(frames) <= BATCH_EVENTS and sum(map(len, frames)) <= BATCH_BYTES:
                batch.response = b"".join(frames)
        return batch.response

    def frames(self, conversation_id: str, batch: EventBatch) -> list[bytes]:
        """A batch as frames; events come first, because they identify the owner of the streamed text."""
        frames = self.live(conversation_id, batch.events) if batch.events else []
        if batch.text is not None:
            frames += self.text(batch.text)
        if batch.output is not None:
            frames += self.output(batch.output)
        return frames

    def live(self, conversation_id: str, events: Sequence[HubEvent]) -> list[bytes]:
        """Encode newly published events, each once for all streams."""
        frames = []
        for each in events:
            if each.wire is None:
                each.wire = self._live(conversation_id, each)
            frames.append(each.wire)
        return frames

    def _live(self, conversation_id: str, each: HubEvent) -> bytes:
        if needs_record(each.event.notification):
            update = b"" if each.record is None else _update(self._conversations.wire(each.record))
            return self._updated(conversation_id, each.event, update)
        return frame(event(self._conversion, conversation_id, each.event))

    def text(self, text: LiveText) -> list[bytes]:
        """Encode new parts of the text or reasoning that the model is streaming."""

        def event_of(chunk: TextChunk) -> v1.Event:
            delta = text_delta(text.key, text.attempt, chunk.offset, chunk.text, reasoning=chunk.reasoning)
            return v1.Event(text_delta=delta)

        return self._deltas(text, event_of)

    def output(self, text: LiveText) -> list[bytes]:
        """Encode new parts of the output of a running tool."""

        def event_of(chunk: TextChunk) -> v1.Event:
            return v1.Event(tool_output_delta=output_delta(text.key, text.attempt, chunk.offset, chunk.text))

        return self._deltas(text, event_of)

    def _deltas(self, text: LiveText, event_of: Callable[[TextChunk], v1.Event]) -> list[bytes]:
        frames = []
        for chunk in text.chunks:
            if chunk.wire is None:
                chunk.wire = self._ephemeral(event_of(chunk))
            frames.append(chunk.wire)
        return frames

    def caught_up(self, head: int) -> bytes:
        """Encode the event that tells a client that it has all events up to the revision `head`."""
        return self._ephemeral(v1.Event(caught_up=v1.Event.CaughtUp(head_revision=head)))

    def heartbeat(self, head: int) -> bytes:
        return self._ephemeral(v1.Event(heartbeat=v1.Event.Heartbeat(head_revision=head)))

    def deleted(self) -> bytes:
        return self._ephemeral(v1.Event(deleted=v1.Event.Deleted()))

    def snapshot(self, snapshot: v1.Event.Snapshot) -> bytes:
        """Encode the snapshot of the conversation, the first event of a stream."""
        return self._ephemeral(v1.Event(snapshot=snapshot))

    def _ephemeral(self, message: v1.Event) -> bytes:
        now = timestamp(self._clock.now_ms())
        if now is not None:
            message.time.CopyFrom(now)
        return frame(message)
