"""Keeps a client's position in the event stream of a conversation, so that a broken stream can be resumed.

The synchronous and the asyncio client use the class `EventCursor`, which does no I/O itself. A stream may break after
any response and be opened again with `EventCursor.request`; the events that `EventCursor.receive` returns are the same
as if the stream had never broken:

* A durable event (one that the server has stored) is identified by its revision; events that are not newer than the
  last one are dropped.
* A delta (a chunk of text) is identified by its slot (request id, attempt) and offset. A new stream does not repeat
  deltas; its snapshot contains the text so far of the slot that is still streaming. The part of that text that was not
  returned yet follows once the stream has caught up, unless the slot has ended by then.
* The snapshot and `caught_up` are returned once, heartbeats never.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bedrock import v1
from bedrock.events import Event

# Identifies the attempt that a delta belongs to: the id of the model request or tool call, and the attempt number.
Slot = tuple[str, int]


@dataclass(slots=True)
class EventCursor:
    """The position of one client in the event stream of one conversation."""

    name: str
    revision: int | None = None
    """The revision of the last stored event or snapshot that was received; None to start with a snapshot."""
    recent_messages: int | None = None
    """How many messages to request in the first snapshot; None for the server's default."""
    omit_deltas: bool = False
    until_settled: bool = False
    deleted: bool = False
    """Whether the conversation was deleted, so that no event follows."""
    caught_up: bool = False
    """Whether the current stream has delivered all events that were stored when it began."""
    progressed: bool = False
    """Whether the last response contained a new event or a heartbeat, which shows that the connection works."""
    due: deque[Event] = field(default_factory=deque)
    """Events that were received and not yet yielded."""
    _snapshot_due: bool = field(init=False)
    _caught_up_due: bool = True
    _shown: dict[tuple[Slot, str], int] = field(default_factory=dict)
    """The length of the text that was already returned, in code points, for each open attempt and kind of text."""
    _held: list[v1.Event] = field(default_factory=list)
    """Deltas with the unfinished text from a snapshot, held back until the stream has caught up."""

    def __post_init__(self) -> None:
        self._snapshot_due = self.revision is None

    @property
    def finished(self) -> bool:
        """Whether no more events follow, so that a stream that ended without an error need not be opened again."""
        return self.deleted or (self.until_settled and self.caught_up)

    def request(self) -> v1.SubscribeRequest:
        """The request for a new stream that resumes at this position. Discards the deltas in `_held`."""
        self.caught_up = False
        self._held.clear()
        request = v1.SubscribeRequest(name=self.name, omit_deltas=self.omit_deltas, until_settled=self.until_settled)
        if self.revision is not None:
            request.after_revision = self.revision
        elif self.recent_messages is not None:
            request.recent_messages = self.recent_messages
        return request

    def restart_with_snapshot(self) -> None:
        """Start the next stream with a snapshot, because the server no longer has the events after the position."""
        self.revision = None
        self._snapshot_due = True
        self._shown.clear()

    def receive(self, response: v1.SubscribeResponse) -> list[Event]:
        """Advance the position by one response, and return the events in it that were not returned before."""
        events: list[Event] = []
        for event in response.events:
            events.extend(Event.from_proto(new) for new in self._new(event))
        self.progressed = bool(events) or any(event.HasField("heartbeat") for event in response.events)
        return events

    def _new(self, event: v1.Event) -> list[v1.Event]:
        match event.WhichOneof("event"):
            case "snapshot":
                return self._snapshot(event)
            case "caught_up":
                return self._caught_up(event)
            case "heartbeat":
                return []
            case "text_delta":
                delta = event.text_delta
                part = ((delta.llm_request_id, delta.attempt), "reasoning" if delta.reasoning else "text")
                return [event] if self._advance(part, delta) else []
            case "tool_output_delta":
                output = event.tool_output_delta
                return [event] if self._advance(((output.tool_use_id, output.attempt), "output"), output) else []
            case "deleted":
                self.deleted = True
                return [event]
            case None:  # a kind of event that only newer versions of this package know
                self._durable(event)
                return []
            case _:
                return self._durable(event)

    def _snapshot(self, event: v1.Event) -> list[v1.Event]:
        for delta in event.snapshot.partial:
            self._held.append(v1.Event(time=event.time, text_delta=delta))
        if self.revision is None:
            self.revision = event.snapshot.conversation.revision
        if not self._snapshot_due:
            return []
        self._snapshot_due = False
        return [event]

    def _caught_up(self, event: v1.Event) -> list[v1.Event]:
        self.caught_up = True
        due = [event] if self._caught_up_due else []
        self._caught_up_due = False
        held, self._held = self._held, []
        for partial in held:
            due += self._new(partial)
        return due

    def _durable(self, event: v1.Event) -> list[v1.Event]:
        if self.revision is not None and event.revision <= self.revision:
            return []
        self.revision = event.revision
        if event.HasField("message_added"):
            message = event.message_added
            self._close((message.llm_request_id, message.attempt))
            for block in message.content:
                self._close_output(block.tool_result.tool_use_id)
        elif event.HasField("stream_discarded"):
            self._close((event.stream_discarded.llm_request_id, event.stream_discarded.attempt))
        return [event]

    def _advance(self, part: tuple[Slot, str], delta: v1.Event.TextDelta | v1.Event.ToolOutputDelta) -> bool:
        """Cut off, in place, the part of a delta's text that was already returned; return False if nothing remains."""
        shown = self._shown.get(part, 0)
        end = delta.offset + len(delta.text)
        if end <= shown:
            return False
        if delta.offset < shown:
            delta.text = delta.text[shown - delta.offset :]
            delta.offset = shown
        self._shown[part] = end
        return True

    def _close(self, slot: Slot) -> None:
        self._shown = {part: shown for part, shown in self._shown.items() if part[0] != slot}
        self._held = [held for held in self._held if (held.text_delta.llm_request_id, held.text_delta.attempt) != slot]

    def _close_output(self, tool_use_id: str) -> None:
        self._shown = {part: shown for part, shown in self._shown.items() if part[0][0] != tool_use_id}
