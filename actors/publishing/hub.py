"""The event hub: wakes watchers, and keeps recent durable events and live text in memory for them.

A watcher is a client with an open stream, represented by a cursor over the event log. A watcher that has fallen too far
behind the events in memory reads the store instead. A slow watcher delays neither the publisher nor another watcher.

Live text is what a model or a tool is writing at the moment. It is accepted only while its model request or tool call
is running in the published state; text that arrives later is dropped. A model's text arrives through a `TextWindow`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from actors.core.content import Text
from actors.core.context import ConvContext
from actors.core.events import LlmStreamChunk
from actors.core.notifications import StateChanged, TextDelta
from actors.core.states import LlmPhase
from actors.core.summary import StateSummary
from actors.core.transition import stream_text
from actors.ports import Clock, ConversationRecord, EventBus, StoredEvent
from actors.publishing.conversation_list import ListFeed

log = logging.getLogger(__name__)

# How many characters of a tool's live output are kept for clients that connect later; older output is dropped.
MAX_OUTPUT_CHARS = 256 * 1024


class TextChunk:
    """A piece of live text, all of one kind: a model's reasoning, or output (a model's answer or a tool's output)."""

    __slots__ = ("offset", "reasoning", "text", "wire")

    def __init__(self, text: str, offset: int, *, reasoning: bool = False) -> None:
        self.text = text
        self.offset = offset
        """The number of characters of the same kind that were written before this piece."""
        self.reasoning = reasoning
        self.wire: bytes | None = None
        """The chunk encoded as a gRPC event, shared by all watchers; None until the first watcher sends the chunk."""


@dataclass(frozen=True, slots=True)
class LiveText:
    """The live text that one watcher has not read yet."""

    key: str
    """The id of the model request or of the tool call."""
    attempt: int
    chunks: tuple[TextChunk, ...]


class Cursor(NamedTuple):
    """How far one watcher has read a LiveBuffer."""

    key: str = ""
    attempt: int = 0
    chunks: int = 0
    """The number of chunks of the buffer that the watcher has read, including chunks that were dropped since."""


class LiveBuffer:
    """The text streamed so far by one attempt or tool call. Not thread-safe: callers hold the hub's lock."""

    def __init__(self, key: str, attempt: int) -> None:
        self.key = key
        self.attempt = attempt
        self._chunks: list[TextChunk] = []
        # The number of chunks dropped so far, which is also the index of the oldest chunk still kept.
        self._dropped = 0
        # The number of characters written so far, of output (False) and of reasoning (True).
        self._lengths = {False: 0, True: 0}

    def is_of(self, key: str, attempt: int) -> bool:
        """Whether the buffer belongs to this attempt at the model request or tool call with the id `key`."""
        return (self.key, self.attempt) == (key, attempt)

    def add(self, text: str, *, reasoning: bool = False) -> None:
        self._chunks.append(TextChunk(text, self._lengths[reasoning], reasoning=reasoning))
        self._lengths[reasoning] += len(text)

    def trim(self, chars: int) -> None:
        """Drop the oldest chunks, keeping at least the latest `chars` characters of output."""
        chunks = self._chunks
        while chunks and self._lengths[False] - (chunks[0].offset + len(chunks[0].text)) > chars:
            chunks.pop(0)
            self._dropped += 1

    def read(self, cursor: Cursor) -> tuple[tuple[TextChunk, ...], Cursor]:
        """The chunks after `cursor`, and the cursor for the next read.

        Adjacent chunks of one kind are joined; a cursor from another buffer reads everything.
        """
        read = cursor.chunks if self.is_of(cursor.key, cursor.attempt) else 0
        unread = self._chunks[max(0, read - self._dropped) :]
        return _joined(unread), Cursor(self.key, self.attempt, self._dropped + len(self._chunks))


def buffer_for(buffer: LiveBuffer | None, source: tuple[str, int] | None) -> LiveBuffer | None:
    """`buffer` if it belongs to this source (an id and an attempt), otherwise a new buffer; None without a source."""
    if source is None:
        return None
    return buffer if buffer is not None and buffer.is_of(*source) else LiveBuffer(*source)


def read_live(buffer: LiveBuffer | None, cursor: Cursor) -> tuple[LiveText | None, Cursor]:
    """The text after `cursor` (None if there is none), and the cursor for the next read."""
    if buffer is None:
        return None, cursor
    chunks, cursor = buffer.read(cursor)
    return (LiveText(buffer.key, buffer.attempt, chunks) if chunks else None), cursor


def _joined(chunks: list[TextChunk]) -> tuple[TextChunk, ...]:
    if len(chunks) < 2:  # the usual case: a single chunk stays the same object, so that its encoding is shared
        return tuple(chunks)
    return tuple(_join(list(run)) for _, run in groupby(chunks, key=lambda chunk: chunk.reasoning))


def _join(run: list[TextChunk]) -> TextChunk:
    first = run[0]
    # A single chunk stays the same object, so that watchers share its encoding.
    return first if len(run) == 1 else TextChunk("".join(c.text for c in run), first.offset, reasoning=first.reasoning)


# The maximum number of events kept in memory per watched conversation.
RING = 2_048
# How many events are kept after all watchers have read them, because dropping them one by one would cost more.
SPARE = 64


class HubEvent:
    """A durable event. The first watcher that sends the event adds its encoded form."""

    __slots__ = ("event", "record", "wire")

    def __init__(self, event: StoredEvent, record: ConversationRecord | None) -> None:
        self.event = event
        self.record = record
        """The conversation's record as it was committed with the event; None if the publisher did not provide it."""
        self.wire: bytes | None = None
        """The encoded event, which all watchers share; set by the first watcher that sends the event."""


class ReadPosition(NamedTuple):
    """Where a read begins. Watchers at the same position get the same batch."""

    after: int
    """The last revision that was read."""
    text: Cursor
    output: Cursor
    live_text: bool
    """Whether the watcher wants live text."""


class EventBatch:
    """The result of one read, shared by all watchers at the same position until something new is published."""

    __slots__ = (
        "behind", "deleted", "encoded", "events", "head", "next", "output", "position", "response", "stored", "text"
    )  # fmt: skip

    def __init__(self, position: ReadPosition, *, behind: bool, events: tuple[HubEvent, ...], head: int) -> None:
        self.position = position
        self.next = position
        """The position at which the next read of live text begins."""
        self.behind = behind
        """Whether events are missing in memory: the watcher must read them from the store, then read here again."""
        self.events = events
        self.stored = tuple(each.event for each in events)
        self.head = head
        """The newest published revision; 0 if none has been published yet."""
        self.deleted = False
        self.text: LiveText | None = None
        """New text that the model has streamed."""
        self.output: LiveText | None = None
        """New live output of the running tool call."""
        self.response: bytes | None = None
        """The encoded response, shared by all watchers; None if the batch does not fit into one response."""
        self.encoded = False


class _Channel:
    """The watchers, events and live text of one conversation. Guarded by the hub's lock."""

    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        # The watchers to wake at the next event: those that have read since they were last woken.
        self.unwoken: set[Watch] = set()
        # Watchers that were woken for live text only and have not read since; an event wakes them again.
        self.woken_for_text: set[Watch] = set()
        self.ring: deque[HubEvent] = deque(maxlen=RING)
        self.head = 0
        self.text: LiveBuffer | None = None
        self.output: LiveBuffer | None = None
        self.deleted = False
        # The batch that was read last; None if something was published since then.
        self._latest: EventBatch | None = None

    @property
    def in_use(self) -> bool:
        return bool(self.watches or self.text or self.output)

    def append(self, events: tuple[StoredEvent, ...], record: ConversationRecord | None) -> None:
        """Keep events for the watchers; if revisions are missing before them, the earlier events are dropped."""
        if self.ring and events[0].revision != self.ring[-1].event.revision + 1:
            self.ring.clear()
        if len(self.ring) > SPARE:
            read = min(watch.after for watch in self.watches)
            while self.ring and self.ring[0].event.revision <= read:
                self.ring.popleft()
        self.ring.extend(HubEvent(event, record) for event in events)

    def forget_events(self) -> None:
        self.ring.clear()
        self._latest = None

    def follow(self, state: StateSummary) -> None:
        """Keep live text only for the model request and the tool call that are running in the published state."""
        streaming = state.phase == LlmPhase.STREAMING
        self.text = buffer_for(self.text, (state.request_id, state.attempt) if streaming else None)
        self.output = buffer_for(self.output, (state.current_call.id, state.attempt) if state.current_call else None)

    def read(self, position: ReadPosition) -> EventBatch:
        """The events and text after a position. Most watchers are at the same position, and get the same batch."""
        if self._latest is None or self._latest.position != position:
            self._latest = self._batch(position)
        return self._latest

    def _batch(self, position: ReadPosition) -> EventBatch:
        ring, after = self.ring, position.after
        missing = not ring or ring[0].event.revision > after + 1 or ring[-1].event.revision < self.head
        behind = self.head > after and missing
        batch = EventBatch(position, behind=behind, events=() if behind else _tail(ring, after), head=self.head)
        batch.deleted = self.deleted
        if position.live_text and not behind and after <= self.head:
            batch.text, text = read_live(self.text, position.text)
            batch.output, output = read_live(self.output, position.output)
            batch.next = position._replace(text=text, output=output)
        return batch

    def to_wake_for_event(self) -> set[Watch]:
        """The watchers to wake for an event, each only once until it reads again."""
        self._latest = None
        to_wake = self.unwoken | self.woken_for_text
        self.unwoken, self.woken_for_text = set(), set()
        return to_wake

    def to_wake_for_text(self) -> set[Watch]:
        """The watchers to wake for live text, each only once until it reads again."""
        self._latest = None
        to_wake, self.unwoken = self.unwoken, set()
        self.woken_for_text |= to_wake
        return to_wake


class Watch:
    """One watcher's position in the events. `read` runs on the watcher's thread, the wakers on a publisher's."""

    def __init__(
        self,
        hub: EventHub,
        conversation_id: str,
        channel: _Channel,
        wake: Callable[[], None],
        wake_for_text: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._channel = channel
        self.conversation_id = conversation_id
        self.wake = wake
        self.wake_for_text = wake_for_text
        self.after = channel.head
        """The revision up to which this watcher has read; it needs no earlier events."""
        self._text_cursor = Cursor()
        self._output_cursor = Cursor()

    def read(self, after: int, *, live_text: bool = True) -> EventBatch:
        """The events after revision `after`, and the live text not yet read. Never blocks for long.

        A watcher that has read newer events from the store gets no live text, because the text's source may have ended.
        """
        with self._hub.lock:
            channel = self._channel
            if self in channel.watches:
                channel.unwoken.add(self)
                channel.woken_for_text.discard(self)
            self.after = after
            batch = channel.read(ReadPosition(after, self._text_cursor, self._output_cursor, live_text))
            self._text_cursor, self._output_cursor = batch.next.text, batch.next.output
            return batch

    def read_text(self, request_id: str, attempt: int) -> tuple[TextChunk, ...]:
        """All text that this attempt has streamed so far; () if it is not streaming. `read` continues from there."""
        with self._hub.lock:
            buffer = self._channel.text
            if buffer is None or not buffer.is_of(request_id, attempt):
                return ()
            chunks, self._text_cursor = buffer.read(Cursor())
            return chunks

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._hub.detach(self)


def _tail(ring: deque[HubEvent], after: int) -> tuple[HubEvent, ...]:
    """The events after a revision. The search goes backwards, because most watchers need only the last few."""
    unread: list[HubEvent] = []
    for event in reversed(ring):
        if event.event.revision <= after:
            break
        unread.append(event)
    return tuple(reversed(unread))


class EventHub(EventBus):
    """The event bus of one process. Thread-safe; never blocks for long.

    The lock is not held while watchers are woken, because they may call this object then.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.conversation_list = ListFeed()
        """Publishes changes to the watchers of the conversation list."""
        self._channels: dict[str, _Channel] = {}

    def attach(
        self, conversation_id: str, wake: Callable[[], None], wake_for_text: Callable[[], None] | None = None
    ) -> Watch:
        """Watch a conversation. `wake` runs on a publisher's thread, at most once between two reads; it must not block.

        For live text alone, `wake_for_text` runs instead; an event before the next read still runs `wake`.
        """
        with self.lock:
            channel = self._channels.setdefault(conversation_id, _Channel())
            watch = Watch(self, conversation_id, channel, wake, wake_for_text or wake)
            channel.watches.add(watch)
            channel.unwoken.add(watch)
        return watch

    def detach(self, watch: Watch) -> None:
        """Remove a watch, and drop events that were kept only for it. Idempotent."""
        with self.lock:
            channel = self._channels.get(watch.conversation_id)
            if channel is not None:
                channel.watches.discard(watch)
                channel.unwoken.discard(watch)
                channel.woken_for_text.discard(watch)
                self._drop_unused(watch.conversation_id, channel)

    def watchers(self) -> int:
        with self.lock:
            return sum(len(channel.watches) for channel in self._channels.values())

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Keep committed events for the watchers, and wake the watchers."""
        with self.lock:
            channel = self._channels.setdefault(conversation_id, _Channel())
            channel.head = max(channel.head, events[-1].revision)
            if channel.watches:
                channel.append(events, record)
            for event in events:
                if isinstance(event.notification, StateChanged):
                    channel.follow(event.notification.state)
            to_wake = channel.to_wake_for_event()
            self._drop_unused(conversation_id, channel)
        _wake(to_wake)
        if record is not None and self.conversation_list.watched:
            self.conversation_list.changed(record)

    def created(self, record: ConversationRecord) -> None:
        if self.conversation_list.watched:
            self.conversation_list.changed(record)

    def text_delta(self, conversation_id: str, revision: int, *deltas: TextDelta) -> bool:
        """Keep text that a model has streamed, if the state at `revision` is still the published one."""
        with self.lock:
            channel = self._channels.get(conversation_id)
            if channel is None or channel.text is None or channel.head != revision:
                return False
            for delta in deltas:
                channel.text.add(delta.text, reasoning=delta.reasoning)
            to_wake = channel.to_wake_for_text()
        _wake_for_text(to_wake)
        return True

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Keep output of a tool call, if the call is running according to the published state."""
        with self.lock:
            channel = self._channels.get(conversation_id)
            buffer = channel.output if channel else None
            if channel is None or buffer is None or buffer.key != tool_use_id:
                return
            buffer.add(text)
            buffer.trim(MAX_OUTPUT_CHARS)
            to_wake = channel.to_wake_for_text()
        _wake_for_text(to_wake)

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the watches of a deleted conversation, and publish its deletion to the watchers of the list."""
        if record is not None and self.conversation_list.watched:
            self.conversation_list.deleted(conversation_id, record)
        with self.lock:
            channel = self._channels.get(conversation_id)
            if channel is None:
                return
            channel.deleted, channel.text, channel.output = True, None, None
            to_wake = channel.to_wake_for_event()
            self._drop_unused(conversation_id, channel)
        _wake(to_wake)

    def _drop_unused(self, conversation_id: str, channel: _Channel) -> None:
        if not channel.in_use:
            self._channels.pop(conversation_id, None)
        elif not channel.watches:
            channel.forget_events()


class TextWindow:
    """Carries one attempt's text to clients, without commits while the window is open; see `stream_text`.

    The runner's thread passes text on. Before the stream's start is committed, or while another state is being
    published, the text waits here for the conversation's thread. Any thread may shut the window.

    No text follows a cancel, which shuts the window first (`ModelRequests.start` binds it to the cancel token). Also,
    `stream_text` drops text of an attempt that is over, and the hub refuses text of a state that another has replaced.
    """

    def __init__(self, bus: EventBus, clock: Clock, conversation_id: str, request_id: str, attempt: int) -> None:
        self._bus, self._clock, self._conversation_id = bus, clock, conversation_id
        self._request_id, self._attempt = request_id, attempt
        self._lock = threading.Lock()  # guards everything below
        self._waiting: list[tuple[bool, str]] = []
        self._published: tuple[ConversationRecord, ConvContext] | None = None
        """The published state; None until a state after the one that began the attempt has been published."""
        self._shut = False

    def put(self, text: str, *, reasoning: bool) -> None:
        with self._lock:
            self._waiting.append((reasoning, text))

    def published(self, record: ConversationRecord, context: ConvContext) -> None:
        """Adopt the state just published, and pass on what waited for it. Call only on the conversation's thread."""
        with self._lock:
            self._published = record, context
            self._pass_on()

    def pass_on(self) -> None:
        """Publish the text if the window is open; drop it if the attempt is over; otherwise it waits."""
        with self._lock:
            self._pass_on()

    def shut(self) -> None:
        with self._lock:
            self._shut = True

    def _pass_on(self) -> None:
        if self._shut or not self._waiting or self._published is None:
            return
        record, context = self._published
        now = self._clock.now_ms()
        deltas: list[TextDelta] = []
        for reasoning, parts in groupby(self._waiting, key=itemgetter(0)):
            text = Text("".join(text for _, text in parts))
            told = stream_text(
                record.state, context, LlmStreamChunk(now, self._request_id, self._attempt, text, reasoning)
            )
            if told is None:
                return
            deltas += told
        # If the hub refuses the text, another state was just published: the text waits for `published`, which follows.
        if not deltas or self._bus.text_delta(self._conversation_id, record.revision, *deltas):
            self._waiting.clear()


def _wake(watches: set[Watch]) -> None:
    for watch in watches:
        _call(watch, watch.wake)


def _wake_for_text(watches: set[Watch]) -> None:
    for watch in watches:
        _call(watch, watch.wake_for_text)


def _call(watch: Watch, wake: Callable[[], None]) -> None:
    try:
        wake()
    except Exception:  # a failing watcher must affect neither the other watchers nor the publishing conversation
        log.exception("a watcher could not be notified", extra={"conversation": watch.conversation_id})
