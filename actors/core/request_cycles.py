"""The Request Cycle Model: a conversation as a list of cycles.

A cycle is the work on one user message: it begins with the message and ends with the event run-stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import repeat
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from actors.core import content
from actors.core.context import ToolGroup
from actors.core.notifications import Fate, MessageAdded, Notification, QueueChanged, RunStop, StopReason

# A duration, or a time since the epoch (up to the year 9999); 0 if unknown.
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=content.LATEST_MS)]


class CycleDelivery(StrEnum):
    """How a message reaches the agent: it begins a run, joins the open run, or waits until that run has ended."""

    DIRECT = "direct"
    STEER = "steer"
    FOLLOW_UP = "followUp"


class OutputKind(StrEnum):
    ASSISTANT = "assistant"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


class CycleUserMessage(Struct, frozen=True, omit_defaults=True, tag="user-message"):
    """A user message. The event occurs when the agent gets the message (steers) or the server accepts it (others)."""

    id: str
    delivery: CycleDelivery | None = None
    text: str = ""
    at: Milliseconds = 0


class UserMessageWithdrawn(Struct, frozen=True, omit_defaults=True, tag="user-message-withdrawn"):
    """A queued follow-up message was withdrawn. The specification does not have this event."""

    id: str


class AgentOutput(Struct, frozen=True, omit_defaults=True, tag="agent-output"):
    kind: OutputKind
    text: str = ""
    round: str | None = None
    """The id of the model request; None if unknown."""
    tool_call_id: str = ""
    tool: str = ""
    input: str = ""
    group: ToolGroup | None = None
    message_id: str = ""
    at: Milliseconds = 0


class ToolResult(Struct, frozen=True, omit_defaults=True, tag="tool-result"):
    """A tool call got its result, which the server wrote itself if the call did not run."""

    tool_call_id: str
    status: str = ""
    """A value of `ToolOutcome` in `actors.core.content`; "" if unknown."""
    message_id: str = ""
    at: Milliseconds = 0
    duration_ms: Milliseconds = 0


class CycleRunStop(Struct, frozen=True, omit_defaults=True, tag="run-stop"):
    reason: StopReason
    detail: str = ""
    run: str = ""
    at: Milliseconds = 0
    output: str = ""
    """The value that the run ended with, as JSON; "" if it has none."""


CycleEvent: TypeAlias = CycleUserMessage | UserMessageWithdrawn | AgentOutput | ToolResult | CycleRunStop


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[CycleEvent]:
    """Decode one JSON object per line. Raises msgspec.DecodeError, RecursionError, or ValueError for invalid UTF-8."""
    decoder: msgspec.json.Decoder[CycleEvent] = msgspec.json.Decoder(CycleEvent)
    return (decoder.decode(line) for line in lines if line.strip())


def encode_line(event: CycleEvent) -> str:
    return msgspec.json.encode(event).decode()


class RequestCycle(Struct, frozen=True):
    """A user message, and all that follows until the first run-stop: the agent's work, and messages sent meanwhile."""

    root: CycleUserMessage
    kind: CycleDelivery
    """How the root message was sent: DIRECT or FOLLOW_UP."""
    events: tuple[CycleUserMessage | AgentOutput | ToolResult, ...] = ()
    """Everything after the root message, in order; the user messages among these joined the run later (steers)."""
    stop: CycleRunStop | None = None
    """The event that ended the run (run-stop); None while the run is open."""


class InferenceRound(Struct, frozen=True):
    round: str | None
    inputs: tuple[CycleUserMessage | ToolResult, ...]
    """The new input since the previous model request; () if this request continues an unfinished text."""
    outputs: tuple[AgentOutput, ...]


class StepKind(StrEnum):
    NON_STEER = "non-steer"
    STEER = "steer"


class UserStep(Struct, frozen=True, tag="user-step"):
    kind: StepKind
    message: CycleUserMessage


class CycleCall(Struct, frozen=True):
    """A tool call with its result, which is None until the call has ended."""

    call: AgentOutput
    result: ToolResult | None = None


class CallGroup(Struct, frozen=True):
    """Calls that directly follow each other and whose tools belong to the same group."""

    group: ToolGroup
    calls: tuple[CycleCall, ...]


class AiBlock(Struct, frozen=True, tag="ai-block"):
    """One text of the agent with the tool calls that follow it."""

    kind: OutputKind
    """ASSISTANT or REASONING."""
    text: str
    message_id: str = ""
    synthetic: bool = False
    """Whether the text is an empty placeholder, because the agent called tools without writing any text."""
    groups: tuple[CallGroup, ...] = ()


Step: TypeAlias = UserStep | AiBlock


class ProtocolError(Exception):
    """An event occurred at a place in the list where it is impossible."""

    def __init__(self, index: int, event: CycleEvent) -> None:
        self.text = f"{type(event).__struct_config__.tag} while no cycle is open"
        super().__init__(f"event {index}: {self.text}")
        self.index = index


class Projection(Struct, frozen=True):
    """The cycles that result from the events so far. Before the first event, no cycle is open, and none is queued."""

    closed: tuple[RequestCycle, ...] = ()
    open: RequestCycle | None = None
    queue: tuple[CycleUserMessage, ...] = ()
    """Queued messages that will begin later cycles; they belong to no cycle yet."""
    count: int = 0
    skipped: int = 0

    @property
    def cycles(self) -> tuple[RequestCycle, ...]:
        """All cycles in order; the last one may be open."""
        return (*self.closed, self.open) if self.open else self.closed


class Projector(Struct, frozen=True):
    strict: bool = False
    """Whether an event that cannot occur at its place raises ProtocolError; if not, the event is skipped."""
    undeclared: CycleDelivery = CycleDelivery.FOLLOW_UP
    """How a message during a run is treated if its delivery is neither STEER nor FOLLOW_UP."""

    def step(self, so_far: Projection, event: CycleEvent) -> Projection:
        """Apply one more event. Raises ProtocolError if `strict` is set and the event is impossible here."""
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
    """The cycles of an event list. Raises ProtocolError for an impossible event if `strict` is set."""
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
    """The cycle of a run, from that run's events alone; None if they do not begin with a user message."""
    following = iter(events)
    root = next(following, None)
    if not isinstance(root, CycleUserMessage):
        return None
    promoted = root.delivery is CycleDelivery.FOLLOW_UP
    opened = Projection(open=RequestCycle(root, CycleDelivery.FOLLOW_UP if promoted else CycleDelivery.DIRECT))
    return Projector().project(following, opened).cycles[0]


def events_in(cycle: RequestCycle) -> tuple[CycleEvent, ...]:
    """All events in a cycle, from the root message to the run-stop (if any), in the form that `cycle_of` accepts."""
    return (cycle.root, *cycle.events, *((cycle.stop,) if cycle.stop else ()))


def events_of(
    notifications: Iterable[Notification], groups: Mapping[str, ToolGroup], times: Iterable[int] = repeat(0)
) -> Iterator[CycleEvent]:
    """Convert durable notifications into events of request cycles.

    `groups` maps tools to their groups (default: OTHER); `times` are those of the notifications, in ms since the epoch.
    The event for a follow-up occurs when the follow-up is queued, not when its run begins.
    """
    accepted: set[str] = set()
    for notification, at in zip(notifications, times, strict=False):
        match notification:
            case QueueChanged(input=queued, delivery=content.Delivery.FOLLOW_UP.value, fate=Fate.QUEUED):
                accepted.add(queued.message_id)
                yield CycleUserMessage(queued.message_id, CycleDelivery.FOLLOW_UP, queued.text, queued.at)
            case QueueChanged(input=queued, delivery=content.Delivery.FOLLOW_UP.value, fate=Fate.WITHDRAWN):
                yield UserMessageWithdrawn(queued.message_id)
            case MessageAdded(message=message) if message.id not in accepted:
                yield from _events_of_message(message, groups)
            case RunStop(run, reason, detail, output=output):
                yield CycleRunStop(reason, detail, run, at, output)
            case _:
                pass


def _events_of_message(message: content.Message, groups: Mapping[str, ToolGroup]) -> Iterator[CycleEvent]:
    """Yield a message's events. Reminders, notices and summaries do not count as user messages."""
    if message.type is content.MessageType.USER and not message.meta:
        delivery = _DELIVERIES.get(message.delivery, CycleDelivery.DIRECT)
        yield CycleUserMessage(message.id, delivery, content.text_of(message.content), message.created_at)
    served, at = message.request_id or None, message.created_at
    for block in message.content:
        match block:
            case content.Text() if message.type is content.MessageType.AGENT:
                yield AgentOutput(OutputKind.ASSISTANT, block.text, served, message_id=message.id, at=at)
            case content.Reasoning() if block.text:
                yield AgentOutput(OutputKind.REASONING, block.text, served, message_id=message.id, at=at)
            case content.ToolUse():
                yield AgentOutput(
                    OutputKind.TOOL_CALL,
                    round=served,
                    tool_call_id=block.id,
                    tool=block.name,
                    input=block.input,
                    group=block.group or groups.get(block.name, ToolGroup.OTHER),
                    message_id=message.id,
                    at=at,
                )
            case content.ToolSuccess() | content.ToolError():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at, block.duration_ms)
            case content.ToolCancelled() | content.SubAgentComplete():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at)
            case (
                content.Text() | content.Image() | content.Reasoning()
            ):  # Text not from the agent, images and hidden reasoning produce no events.
                pass


_DELIVERIES = {
    content.Delivery.STEER.value: CycleDelivery.STEER,
    content.Delivery.FOLLOW_UP.value: CycleDelivery.FOLLOW_UP,
}


def rounds(cycle: RequestCycle) -> tuple[InferenceRound, ...]:
    """The model requests in a cycle. Tool results after the last request are left out."""
    done: list[InferenceRound] = []
    inputs: list[CycleUserMessage | ToolResult] = [cycle.root]
    for event in cycle.events:
        if not isinstance(event, AgentOutput):
            inputs.append(event)
        elif not done or (inputs if event.round is None else event.round != done[-1].round):
            done.append(InferenceRound(event.round, tuple(inputs), (event,)))
            inputs = []
        else:
            done[-1] = msgspec.structs.replace(done[-1], outputs=(*done[-1].outputs, event))
    return tuple(done)


def steps(cycle: RequestCycle) -> tuple[Step, ...]:
    """The steps of a cycle for display: user messages, and the agent's texts with their grouped tool calls."""
    results = {event.tool_call_id: event for event in cycle.events if isinstance(event, ToolResult)}
    done: list[Step] = [UserStep(StepKind.NON_STEER, cycle.root)]
    for event in cycle.events:
        match event:
            case CycleUserMessage():
                done.append(UserStep(StepKind.STEER, event))
            case AgentOutput(kind=OutputKind.TOOL_CALL):
                if not isinstance(done[-1], AiBlock):
                    done.append(AiBlock(OutputKind.ASSISTANT, "", synthetic=True))
                done[-1] = _with_call(done[-1], CycleCall(event, results.get(event.tool_call_id)))
            case AgentOutput():
                done.append(AiBlock(event.kind, event.text, event.message_id))
            case ToolResult():
                pass
    return tuple(done)


def _with_call(block: Step, call: CycleCall) -> Step:
    if not isinstance(block, AiBlock):
        return block
    group = call.call.group or group_of(call.call.tool)
    groups = block.groups
    if groups and groups[-1].group is group:
        groups = (*groups[:-1], CallGroup(group, (*groups[-1].calls, call)))
    else:
        groups = (*groups, CallGroup(group, (call,)))
    return msgspec.structs.replace(block, groups=groups)


_SEED_GROUPS = {
    "ls": ToolGroup.READ,
    "read": ToolGroup.READ,
    "grep": ToolGroup.READ,
    "find": ToolGroup.READ,
    "write": ToolGroup.WRITE,
    "edit": ToolGroup.WRITE,
    "bash": ToolGroup.BASH,
}


def group_of(tool: str) -> ToolGroup:
    """The group that the specification gives a tool, for event lists that name no groups; OTHER if unknown."""
    return _SEED_GROUPS.get(tool, ToolGroup.OTHER)
