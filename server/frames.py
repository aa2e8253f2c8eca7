"""Events as bytes, made once for all watchers.

A SubscribeResponse has one field, the events. On the wire it is therefore nothing but its events one after the
other, each behind the field's tag and its own length: a *frame*. Frames are made once, kept where all watchers of a
conversation find them, and joined into a response without being looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from bedrock import v1

from actors.event_hub import HubEvent, Passing
from actors.ports import Clock, ConversationRecord, Store, StoredEvent
from server.reads import Reads
from server.wire.events import event, needs_record, output_delta, text_delta
from server.wire.facts import Facts
from server.wire.values import timestamp

_TAG = bytes([v1.SubscribeResponse.EVENTS_FIELD_NUMBER << 3 | 2])


def frame(message: v1.Event) -> bytes:
    """An event as a part of a SubscribeResponse."""
    body = message.SerializeToString()
    return b"".join((_TAG, _varint(len(body)), body))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Frames:
    """Makes frames. Event loop only, but for `stored`."""

    def __init__(self, store: Store, reads: Reads, facts: Facts, clock: Clock) -> None:
        self._store = store
        self._reads = reads
        self._facts = facts
        self._clock = clock
        self._filling: dict[tuple[str, int], asyncio.Task[None]] = {}

    def stored(self, conversation_id: str, events: Iterable[StoredEvent]) -> list[bytes]:
        """Frames of events that were read from the store (reading thread)."""
        record: ConversationRecord | None = None
        made: list[bytes] = []
        for each in events:
            if record is None and needs_record(each.notification):
                record = self._store.load(conversation_id)
            made.append(frame(event(self._facts, conversation_id, each, record)))
        return made

    async def live(self, conversation_id: str, events: Sequence[HubEvent]) -> list[bytes]:
        """Frames of events that have just happened. What shows the whole conversation is read once for all watchers,
        after the event."""
        for each in events:
            if each.wire is None and not needs_record(each.event.notification):
                each.wire = frame(event(self._facts, conversation_id, each.event))
        while waiting := [each for each in events if each.wire is None]:
            await self._filled(conversation_id, waiting)
        return [each.wire for each in events if each.wire is not None]

    async def _filled(self, conversation_id: str, waiting: list[HubEvent]) -> None:
        """Wait until these have their bytes; whoever comes first has the record read."""
        key = (conversation_id, waiting[-1].event.revision)
        filling = self._filling.get(key)
        if filling is None:
            filling = self._filling[key] = asyncio.create_task(self._fill(conversation_id, waiting))
            filling.add_done_callback(lambda _: self._filling.pop(key, None))
        await asyncio.shield(filling)

    async def _fill(self, conversation_id: str, waiting: list[HubEvent]) -> None:
        record = await self._reads(self._store.load, conversation_id)
        for each in waiting:
            each.wire = frame(event(self._facts, conversation_id, each.event, record))

    def text(self, passing: Passing) -> list[bytes]:
        """Frames of fresh text of a request."""
        for piece in passing.pieces:
            if piece.wire is None:
                delta = text_delta(passing.key, passing.attempt, piece.offset, piece.text, reasoning=piece.reasoning)
                piece.wire = frame(v1.Event(time=timestamp(self._clock.now_ms()), text_delta=delta))
        return [piece.wire for piece in passing.pieces if piece.wire is not None]

    def output(self, passing: Passing) -> list[bytes]:
        """Frames of fresh output of a tool."""
        for piece in passing.pieces:
            if piece.wire is None:
                delta = output_delta(passing.key, passing.attempt, piece.offset, piece.text)
                piece.wire = frame(v1.Event(time=timestamp(self._clock.now_ms()), tool_output_delta=delta))
        return [piece.wire for piece in passing.pieces if piece.wire is not None]

    def caught_up(self, head: int) -> bytes:
        return self._passing(v1.Event(caught_up=v1.Event.CaughtUp(head_revision=head)))

    def heartbeat(self, head: int) -> bytes:
        return self._passing(v1.Event(heartbeat=v1.Event.Heartbeat(head_revision=head)))

    def deleted(self) -> bytes:
        return self._passing(v1.Event(deleted=v1.Event.Deleted()))

    def snapshot(self, snapshot: v1.Event.Snapshot) -> bytes:
        return self._passing(v1.Event(snapshot=snapshot))

    def _passing(self, message: v1.Event) -> bytes:
        now = timestamp(self._clock.now_ms())
        if now is not None:
            message.time.CopyFrom(now)
        return frame(message)
