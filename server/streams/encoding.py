"""Encodes each event once for all clients that watch a conversation, and collects events into responses.

A SubscribeResponse has one field, the list of events. Its encoding is therefore just the sequence of its encoded
events, each after the field's tag and the event's length. An event in this form is called a *frame* here. Frames are
encoded once, shared by all streams of a conversation, and concatenated into responses without further processing.
Events that were committed to the store together are sent in one response, unless they do not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from bedrock import v1

from actors.events.hub import EventBatch, HubEvent, LiveText, TextChunk
from actors.ports import Clock, ConversationReader, StoredEvent
from server.contract.limits import BATCH_BYTES, BATCH_EVENTS
from server.wire.conversation_messages import EncodedConversations, conversation
from server.wire.events import event, needs_record, output_delta, text_delta
from server.wire.values import ConversionContext, timestamp


def commits(events: Sequence[StoredEvent], frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group encoded events (frames) by the commit that stored the events: events of one commit have the same time.

    Two commits in the same millisecond become one group, which makes no difference to clients.
    """
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
    """Return the index of the first event of the last commit, whose other events may be on the next page."""
    index = len(events)
    while index and events[index - 1].at == events[-1].at:
        index -= 1
    return index


class Outbox:
    """The encoded events (frames) that wait to be sent on one stream. Use in the event loop only.

    `write` sends a response, and returns when gRPC has taken it.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._frames: list[bytes] = []
        self._bytes = 0
        self.writing_since: float | None = None
        """When the running call of `write` began, in seconds of the event loop's clock; None if none is running."""
        self.sent_at = 0.0
        """When gRPC took the last response, in seconds of the event loop's clock."""

    async def add_events(self, events: Sequence[StoredEvent], frames: Sequence[bytes]) -> None:
        """Queue encoded events, those of one commit in one response if they fit. Send each response that is full."""
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
    """Encode an event as a frame: a piece of a SubscribeResponse that can be concatenated with others."""
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
    """Encode the field `conversation_updated` of an event, whose content `body` is already encoded."""
    return b"".join((_UPDATED_TAG, _varint(len(body)), body))


class EventEncoder:
    """Encodes events as frames, the pieces of a SubscribeResponse. Use in the event loop only, except `stored`."""

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
        """Read the conversation, and encode it as the field `conversation_updated`; b"" if it was deleted."""
        record = self._store.load(conversation_id)
        return b"" if record is None else _update(conversation(self._conversion, record).SerializeToString())

    def _updated(self, conversation_id: str, stored: StoredEvent, update: bytes) -> bytes:
        """Encode an event together with `update`: the encoded field that contains the changed conversation.

        The two are just appended, because encoded protobuf fields can be concatenated.
        """
        return _framed(event(self._conversion, conversation_id, stored).SerializeToString() + update)

    def response(self, conversation_id: str, batch: EventBatch) -> bytes | None:
        """Return one response with a whole batch, encoded once for all streams; None if the batch is too large."""
        if not batch.encoded:
            batch.encoded = True
            frames = self.frames(conversation_id, batch)
            if len(frames) <= BATCH_EVENTS and sum(map(len, frames)) <= BATCH_BYTES:
                batch.response = b"".join(frames)
        return batch.response

    def frames(self, conversation_id: str, batch: EventBatch) -> list[bytes]:
        """Encode a batch of events as frames, with the text and the tool output that are being streamed.

        Events come first, because they tell clients what the text belongs to.
        """
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
        """Encode the event `caught_up`, by which a client learns that it has received all earlier events.

        `head` is the last revision that was sent.
        """
        return self._ephemeral(v1.Event(caught_up=v1.Event.CaughtUp(head_revision=head)))

    def heartbeat(self, head: int) -> bytes:
        """Encode a heartbeat event. `head` is the last revision that was sent."""
        return self._ephemeral(v1.Event(heartbeat=v1.Event.Heartbeat(head_revision=head)))

    def deleted(self) -> bytes:
        """Encode the event by which a client learns that the conversation was deleted."""
        return self._ephemeral(v1.Event(deleted=v1.Event.Deleted()))

    def snapshot(self, snapshot: v1.Event.Snapshot) -> bytes:
        """Encode the snapshot of the conversation, the first event of a stream."""
        return self._ephemeral(v1.Event(snapshot=snapshot))

    def _ephemeral(self, message: v1.Event) -> bytes:
        now = timestamp(self._clock.now_ms())
        if now is not None:
            message.time.CopyFrom(now)
        return frame(message)
