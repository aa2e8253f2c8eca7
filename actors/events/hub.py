"""Wakes watchers, and holds what is passing: the text of the request under way, the output of the tool.

A watcher is a cursor over the event log. The hub keeps the latest events in memory for those who watch now; one who
has fallen behind it reads the store instead. Nobody's slowness is anybody else's business.

Passing text has a slot only while the published state says so: none before the state that opens it, none after the
state that closes it, wherever its writer is by then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from actors.core.notifications import StateChanged, Token
from actors.core.states import Phase
from actors.events.conversation_list import ListFeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.summary import StateSummary
    from actors.ports import ConversationRecord, StoredEvent

log = logging.getLogger(__name__)

RING = 2_048
"""Events kept in memory per watched conversation, at most."""
SPARE = 64
"""Events kept although every watcher has read them: dropping them one by one would cost more."""
OUTPUT_CHARS = 256 * 1024
"""Of a tool's live output kept for late watchers."""


class HubEvent:
    """A durable event, and the bytes it becomes on the wire once somebody has made them."""

    __slots__ = ("event", "record", "wire")

    def __init__(self, event: StoredEvent, record: ConversationRecord | None) -> None:
        self.event = event
        self.record = record
        """The conversation after the commit that brought the event, for events that show all of it."""
        self.wire: bytes | None = None


class Piece:
    """A run of passing text."""

    __slots__ = ("offset", "reasoning", "text", "wire")

    def __init__(self, text: str, offset: int, *, reasoning: bool = False) -> None:
        self.text = text
        self.offset = offset
        """In characters, within its kind (answer or reasoning)."""
        self.reasoning = reasoning
        self.wire: bytes | None = None


class Slot:
    """The passing text of one request attempt, or of one tool call."""

    def __init__(self, key: str, attempt: int) -> None:
        self.key = key
        self.attempt = attempt
        self.pieces: list[Piece] = []
        self.first = 0
        """Number of the oldest piece still kept."""
        self._lengths = {False: 0, True: 0}

    def add(self, text: str, *, reasoning: bool = False) -> None:
        self.pieces.append(Piece(text, self._lengths[reasoning], reasoning=reasoning))
        self._lengths[reasoning] += len(text)

    def trim(self, chars: int) -> None:
        """Forget the oldest pieces beyond the latest `chars`."""
        while self.pieces and self._lengths[False] - (self.pieces[0].offset + len(self.pieces[0].text)) > chars:
            self.pieces.pop(0)
            self.first += 1

    def since(self, number: int) -> tuple[tuple[Piece, ...], int]:
        """The pieces from `number` on, adjacent ones of a kind joined, and the number after the last."""
        fresh = self.pieces[max(0, number - self.first) :]
        return _joined(fresh), self.first + len(self.pieces)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    if len(pieces) < 2:
        return tuple(pieces)
    joined: list[Piece] = []
    run: list[Piece] = []
    for piece in [*pieces, None]:
        if run and (piece is None or piece.reasoning != run[0].reasoning):
            joined.append(
                run[0]
                if len(run) == 1
                else Piece("".join(p.text for p in run), run[0].offset, reasoning=run[0].reasoning)
            )
            run = []
        if piece is not None:
            run.append(piece)
    return tuple(joined)


class Passing:
    """Fresh passing text for one watcher."""

    __slots__ = ("attempt", "key", "pieces")

    def __init__(self, key: str, attempt: int, pieces: tuple[Piece, ...]) -> None:
        self.key = key
        """A request id or a tool use id."""
        self.attempt = attempt
        self.pieces = pieces


class Batch:
    """What a watcher finds when it looks."""

    __slots__ = ("behind", "deleted", "events", "head", "output", "text")

    def __init__(self, *, behind: bool, events: tuple[HubEvent, ...], head: int, deleted: bool) -> None:
        self.behind = behind
        """True: events are missing here; read them from the store, then look again."""
        self.events = events
        self.head = head
        """The newest revision the hub knows of; 0 if it knows none."""
        self.deleted = deleted
        self.text: Passing | None = None
        self.output: Passing | None = None


class _Channel:
    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        self.asleep: set[Watch] = set()
        """Those that have looked since they were woken last."""
        self.dozing: set[Watch] = set()
        """Those that were woken for passing text only, and have not looked since: an event wakes them again."""
        self.ring: deque[HubEvent] = deque(maxlen=RING)
        """The latest events, without a gap."""
        self.head = 0
        self.text: Slot | None = None
        self.output: Slot | None = None
        self.deleted = False

    @property
    def needed(self) -> bool:
        return bool(self.watches or self.text or self.output)

    def append(self, events: tuple[StoredEvent, ...], record: ConversationRecord | None) -> None:
        """Keep events for the watchers, if they follow what is kept; else only they are kept."""
        if self.ring and events[0].revision != self.ring[-1].event.revision + 1:
            self.ring.clear()
        if len(self.ring) > SPARE:
            read = min(watch.after for watch in self.watches)
            while self.ring and self.ring[0].event.revision <= read:
                self.ring.popleft()
        self.ring.extend(HubEvent(event, record) for event in events)

    def show(self, state: StateSummary) -> None:
        """Open and close the slots of passing text as the state has it."""
        streaming = state.phase == Phase.STREAMING
        self.text = _slot(self.text, (state.request_id, state.attempt) if streaming else None)
        self.output = _slot(self.output, (state.current_call.id, state.attempt) if state.current_call else None)


def _slot(slot: Slot | None, wanted: tuple[str, int] | None) -> Slot | None:
    """The slot that is open from now on: the one before, if it is the same."""
    if wanted is None:
        return None
    if slot is not None and (slot.key, slot.attempt) == wanted:
        return slot
    return Slot(*wanted)


class Watch:
    """One watcher's place in a conversation. `read` on the watcher's thread, the rest on a publisher's."""

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
        """Up to where it needs nothing from the ring any more."""
        self._text_place: tuple[str, int, int] = ("", 0, 0)
        self._output_place: tuple[str, int, int] = ("", 0, 0)

    def read(self, after: int, *, passing: bool = True) -> Batch:
        """What is there after revision `after`, and passing text not yet seen. Never blocks.

        Passing text belongs to the state at the hub's head. One who has read further in the store than the hub has
        published gets none: its slot may be closed by then.
        """
        with self._hub.lock:
            channel = self._channel
            if self in channel.watches:
                channel.asleep.add(self)
                channel.dozing.discard(self)
            self.after = after
            ring = channel.ring
            missing = not ring or ring[0].event.revision > after + 1 or ring[-1].event.revision < channel.head
            behind = channel.head > after and missing
            batch = Batch(
                behind=behind,
                events=() if behind else _tail(ring, after),
                head=channel.head,
                deleted=channel.deleted,
            )
            if passing and not behind and after <= channel.head:
                batch.text, self._text_place = _fresh(channel.text, self._text_place)
                batch.output, self._output_place = _fresh(channel.output, self._output_place)
            return batch

    def take(self, request_id: str, attempt: int) -> tuple[Piece, ...]:
        """All text so far of this attempt, if it is the one under way; `read` then goes on after it. Never blocks."""
        with self._hub.lock:
            slot = self._channel.text
            if slot is None or (slot.key, slot.attempt) != (request_id, attempt):
                return ()
            pieces, after = slot.since(0)
            self._text_place = (request_id, attempt, after)
            return pieces

    def close(self) -> None:
        """Stop watching; idempotent."""
        self._hub.detach(self)


def _tail(ring: deque[HubEvent], after: int) -> tuple[HubEvent, ...]:
    fresh: list[HubEvent] = []
    for event in reversed(ring):
        if event.event.revision <= after:
            break
        fresh.append(event)
    return tuple(reversed(fresh))


def _fresh(slot: Slot | None, place: tuple[str, int, int]) -> tuple[Passing | None, tuple[str, int, int]]:
    if slot is None:
        return None, place
    key, attempt, number = place
    pieces, after = slot.since(number if (key, attempt) == (slot.key, slot.attempt) else 0)
    place = (slot.key, slot.attempt, after)
    return (Passing(slot.key, slot.attempt, pieces) if pieces else None), place


class EventHub:
    """The EventBus of one process. Any thread; never blocks for long; wakes outside of its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.list = ListFeed()
        """For those who watch the list of conversations."""
        self._channels: dict[str, _Channel] = {}

    def attach(
        self, conversation_id: str, wake: Callable[[], None], wake_for_text: Callable[[], None] | None = None
    ) -> Watch:
        """Watch a conversation. `wake` runs on a publisher's thread, once until the next read; it must not block.

        `wake_for_text` runs in its place when only passing text is there, which may be told at more leisure; an event
        that comes before the next read runs `wake` all the same.
        """
        with self.lock:
            channel = self._channels.setdefault(conversation_id, _Channel())
            watch = Watch(self, conversation_id, channel, wake, wake_for_text or wake)
            channel.watches.add(watch)
            channel.asleep.add(watch)
        return watch

    def detach(self, watch: Watch) -> None:
        with self.lock:
            channel = self._channels.get(watch.conversation_id)
            if channel is not None:
                channel.watches.discard(watch)
                channel.asleep.discard(watch)
                channel.dozing.discard(watch)
                self._tidy(watch.conversation_id, channel)

    def watchers(self) -> int:
        """How many watch now."""
        with self.lock:
            return sum(len(channel.watches) for channel in self._channels.values())

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        with self.lock:
            channel = self._channels.setdefault(conversation_id, _Channel())
            channel.head = max(channel.head, events[-1].revision)
            if channel.watches:
                channel.append(events, record)
            for event in events:
                if isinstance(event.notification, StateChanged):
                    channel.show(event.notification.state)
            to_wake = _rouse(channel)
            self._tidy(conversation_id, channel)
        _wake(to_wake)
        if record is not None and self.list.watched:
            self.list.changed(record)

    def created(self, record: ConversationRecord) -> None:
        if self.list.watched:
            self.list.changed(record)

    def token(self, conversation_id: str, token: Token) -> None:
        with self.lock:
            channel = self._channels.get(conversation_id)
            slot = channel.text if channel else None
            if channel is None or slot is None or (slot.key, slot.attempt) != (token.request_id, token.attempt):
                return
            slot.add(token.text, reasoning=token.reasoning)
            to_wake = _rouse_for_text(channel)
        _wake_for_text(to_wake)

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        with self.lock:
            channel = self._channels.get(conversation_id)
            slot = channel.output if channel else None
            if channel is None or slot is None or slot.key != tool_use_id:
                return
            slot.add(text)
            slot.trim(OUTPUT_CHARS)
            to_wake = _rouse_for_text(channel)
        _wake_for_text(to_wake)

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        if record is not None and self.list.watched:
            self.list.deleted(conversation_id, record)
        with self.lock:
            channel = self._channels.get(conversation_id)
            if channel is None:
                return
            channel.deleted, channel.text, channel.output = True, None, None
            to_wake = _rouse(channel)
            self._tidy(conversation_id, channel)
        _wake(to_wake)

    def _tidy(self, conversation_id: str, channel: _Channel) -> None:
        if not channel.needed:
            self._channels.pop(conversation_id, None)
        elif not channel.watches:
            channel.ring.clear()


def _rouse(channel: _Channel) -> set[Watch]:
    """Whom to wake for an event: everybody who sleeps or dozes, once until the next look."""
    to_wake = channel.asleep | channel.dozing
    channel.asleep, channel.dozing = set(), set()
    return to_wake


def _rouse_for_text(channel: _Channel) -> set[Watch]:
    """Whom to wake for passing text: everybody who sleeps; they doze until the next look."""
    to_wake, channel.asleep = channel.asleep, set()
    channel.dozing |= to_wake
    return to_wake


def _wake(watches: set[Watch]) -> None:
    for watch in watches:
        _call(watch, watch.wake)


def _wake_for_text(watches: set[Watch]) -> None:
    for watch in watches:
        _call(watch, watch.wake_for_text)


def _call(watch: Watch, wake: Callable[[], None]) -> None:
    try:
        wake()
    except Exception:
        log.exception("a watcher of %s could not be woken", watch.conversation_id)
