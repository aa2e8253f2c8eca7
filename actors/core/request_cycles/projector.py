"""Turns an ordered list of events into request cycles, for live and for stored conversations alike.

`Projector.step` applies one input event and never waits; `project` applies a whole list. The rules are those of the
Request Cycle Model, listed in docs/semantics.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from actors.core.request_cycles.model import (
    AgentOutput,
    CycleDelivery,
    CycleEvent,
    CycleRunStop,
    CycleUserMessage,
    RequestCycle,
    ToolResult,
    UserMessageWithdrawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProtocolError(Exception):
    """An event occurred at a place in the list where it is impossible."""

    def __init__(self, index: int, event: CycleEvent) -> None:
        self.text = f"{type(event).__struct_config__.tag} while no cycle is open"
        super().__init__(f"event {index}: {self.text}")
        self.index = index


class Projection(Struct, frozen=True):
    """The cycles after a number of events. Before any event, no cycle is open and the queue is empty."""

    closed: tuple[RequestCycle, ...] = ()
    open: RequestCycle | None = None
    queue: tuple[CycleUserMessage, ...] = ()
    """Queued messages that will begin later cycles; they belong to no cycle yet."""
    count: int = 0
    """How many events were applied."""
    skipped: int = 0
    """Number of events that could not occur at their position and were skipped."""

    @property
    def cycles(self) -> tuple[RequestCycle, ...]:
        """All cycles in order; the last one may be open."""
        return (*self.closed, self.open) if self.open else self.closed


class Projector(Struct, frozen=True):
    """Turns a list of events into request cycles."""

    strict: bool = False
    """Raise ProtocolError for an event that cannot occur at its place, instead of skipping it."""
    undeclared: CycleDelivery = CycleDelivery.FOLLOW_UP
    """How a message during a run is treated if its delivery is neither STEER nor FOLLOW_UP."""

    def step(self, so_far: Projection, event: CycleEvent) -> Projection:
        """Return the projection after one more event; `so_far` is unchanged.

        Raises ProtocolError if `strict` is set and the event is impossible at this place.
        """
        taken = msgspec.structs.replace(so_far, count=so_far.count + 1)
        match event:
            case CycleUserMessage():
                return self._user_message(taken, event)
            case UserMessageWithdrawn():
                kept = tuple(message for message in taken.queue if message.id != event.id)
                return msgspec.structs.replace(taken, queue=kept)
            case AgentOutput() | ToolResult():
                return _append(taken, event) if taken.open else self._misplaced(taken, event)
            case CycleRunStop():
                return _close(taken, taken.open, event) if taken.open else self._misplaced(taken, event)

    def project(self, events: Iterable[CycleEvent], so_far: Projection | None = None) -> Projection:
        """Apply a list of events to `so_far`, or to an empty projection if it is None. Raises like `step`."""
        projection = so_far or Projection()
        for event in events:
            projection = self.step(projection, event)
        return projection

    def _user_message(self, taken: Projection, event: CycleUserMessage) -> Projection:
        if taken.open is None:
            return msgspec.structs.replace(taken, open=RequestCycle(event, CycleDelivery.DIRECT))
        declared = event.delivery in (CycleDelivery.STEER, CycleDelivery.FOLLOW_UP)
        if (event.delivery if declared else self.undeclared) is CycleDelivery.STEER:
            return _append(taken, event)
        return msgspec.structs.replace(taken, queue=(*taken.queue, event))

    def _misplaced(self, taken: Projection, event: CycleEvent) -> Projection:
        if self.strict:
            raise ProtocolError(taken.count - 1, event)
        return msgspec.structs.replace(taken, skipped=taken.skipped + 1)


def project(events: Iterable[CycleEvent], *, strict: bool = False) -> tuple[RequestCycle, ...]:
    """Return the cycles of an event list. Raises ProtocolError for an impossible event if `strict` is set."""
    return Projector(strict=strict).project(events).cycles


def _append(taken: Projection, event: CycleUserMessage | AgentOutput | ToolResult) -> Projection:
    if taken.open is None:
        return taken
    longer = msgspec.structs.replace(taken.open, events=(*taken.open.events, event))
    return msgspec.structs.replace(taken, open=longer)


def _close(taken: Projection, cycle: RequestCycle, stop: CycleRunStop) -> Projection:
    """Close the cycle; the oldest queued follow-up opens the next one at once."""
    following = RequestCycle(taken.queue[0], CycleDelivery.FOLLOW_UP) if taken.queue else None
    closed = (*taken.closed, msgspec.structs.replace(cycle, stop=stop))
    return msgspec.structs.replace(taken, closed=closed, open=following, queue=taken.queue[1:])


def cycle_of(events: Iterable[CycleEvent]) -> RequestCycle | None:
    """Return the cycle of a run, given only that run's events; None if they do not begin with a user message.

    The kind of the cycle is FOLLOW_UP if that message was queued during an earlier run, otherwise DIRECT.
    """
    following = iter(events)
    root = next(following, None)
    if not isinstance(root, CycleUserMessage):
        return None
    promoted = root.delivery is CycleDelivery.FOLLOW_UP
    opened = Projection(open=RequestCycle(root, CycleDelivery.FOLLOW_UP if promoted else CycleDelivery.DIRECT))
    return Projector().project(following, opened).cycles[0]


def events_in(cycle: RequestCycle) -> tuple[CycleEvent, ...]:
    """Return all events of a cycle, from the root message to the run-stop (if any), in the form `cycle_of` accepts."""
    return (cycle.root, *cycle.events, *((cycle.stop,) if cycle.stop else ()))
