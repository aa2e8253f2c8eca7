"""The Request Cycle Model (seed 4): a fold over an ordered event list, the same one live and offline.

`Projector.step` takes one input event and never waits; `project` folds a whole list. A cycle keeps its events;
`rounds` shows how the model was served, `steps` what people see (rules P1 to P9 and S-a to S-f of SEMANTICS §6.5).
`events_of` turns what a conversation tells its watchers into input events. As JSON, one event a line with the
seed's names as tags, an event list can be kept, and read by other programs.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from actors.core.content import Delivery as Wish
from actors.core.content import (
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolSuccess,
    ToolUse,
    text_of,
)
from actors.core.context import ToolGroup
from actors.core.notifications import Fate, MessageAdded, Notification, QueueChanged, StopReason
from actors.core.notifications import RunStop as RunStopped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# --- what goes in --------------------------------------------------------------------------------------------------

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Since the epoch, up to the end of the year 9999, 0 if unknown; or how long something took."""


class Delivery(StrEnum):
    """The seed's kinds of user message."""

    DIRECT = "direct"
    STEER = "steer"
    FOLLOW_UP = "followUp"


class OutputKind(StrEnum):
    """What an agent puts out."""

    ASSISTANT = "assistant"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


class UserMessage(Struct, frozen=True, omit_defaults=True, tag="user-message"):
    """A user message: a steer when it is delivered, any other when it is accepted."""

    id: str
    delivery: Delivery | None = None
    text: str = ""
    at: Milliseconds = 0


class UserMessageWithdrawn(Struct, frozen=True, omit_defaults=True, tag="user-message-withdrawn"):
    """A follow-up was taken back while it waited; Bedrock's addition to the seed's list."""

    id: str


class AgentOutput(Struct, frozen=True, omit_defaults=True, tag="agent-output"):
    """One item of an answer."""

    kind: OutputKind
    text: str = ""
    """Of assistant and reasoning items."""
    round: str | None = None
    """The request that brought it."""
    tool_call_id: str = ""
    tool: str = ""
    """The tool's name."""
    input: str = ""
    """Of tool calls: the raw JSON text."""
    group: ToolGroup | None = None
    message_id: str = ""
    at: Milliseconds = 0


class ToolResult(Struct, frozen=True, omit_defaults=True, tag="tool-result"):
    """A call was answered, by its tool or synthetically."""

    tool_call_id: str
    status: str = ""
    """A ToolOutcome, "" if unknown."""
    message_id: str = ""
    at: Milliseconds = 0
    duration_ms: Milliseconds = 0


class RunStop(Struct, frozen=True, omit_defaults=True, tag="run-stop"):
    """The agent is sent to idle."""

    reason: StopReason
    detail: str = ""
    run: str = ""
    at: Milliseconds = 0


CycleEvent: TypeAlias = UserMessage | UserMessageWithdrawn | AgentOutput | ToolResult | RunStop


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[CycleEvent]:
    """Read an event list, one JSON object a line; blank lines are skipped. Raises msgspec.DecodeError, ValueError for
    bytes that are no UTF-8, or RecursionError."""
    decoder: msgspec.json.Decoder[CycleEvent] = msgspec.json.Decoder(CycleEvent)
    return (decoder.decode(line) for line in lines if line.strip())


def encode_line(event: CycleEvent) -> str:
    """The event as one line of JSON, without the line break."""
    return msgspec.json.encode(event).decode()


# --- what comes out ------------------------------------------------------------------------------------------------


class RequestCycle(Struct, frozen=True):
    """One root message, what the agent did about it, and the steers in between; closed by the first run-stop."""

    root: UserMessage
    kind: Delivery
    """DIRECT or FOLLOW_UP."""
    events: tuple[UserMessage | AgentOutput | ToolResult, ...] = ()
    """Everything after the root, in order; user messages are steers."""
    stop: RunStop | None = None
    """None while the run is under way (P7)."""


class InferenceRound(Struct, frozen=True):
    """One request to the model and what came out."""

    round: str | None
    inputs: tuple[UserMessage | ToolResult, ...]
    """What went in since the round before; () is a continuation: the model was only told to go on."""
    outputs: tuple[AgentOutput, ...]


class StepKind(StrEnum):
    """Who said the message of a user step to what end."""

    NON_STEER = "non-steer"
    STEER = "steer"


class UserStep(Struct, frozen=True, tag="user-step"):
    """The root, or a steer."""

    kind: StepKind
    message: UserMessage


class Call(Struct, frozen=True):
    """A tool call, and its result once there is one (S-f)."""

    call: AgentOutput
    result: ToolResult | None = None


class CallGroup(Struct, frozen=True):
    """Adjacent calls of one group."""

    group: ToolGroup
    calls: tuple[Call, ...]


class AiBlock(Struct, frozen=True, tag="ai-block"):
    """One text of the agent and the tool calls that belong to it."""

    kind: OutputKind
    """ASSISTANT or REASONING."""
    text: str
    message_id: str = ""
    synthetic: bool = False
    """True: the agent called tools without a word, and the empty text stands in for it."""
    groups: tuple[CallGroup, ...] = ()


Step: TypeAlias = UserStep | AiBlock


class ProtocolError(Exception):
    """An event that cannot come at its place in the list."""

    def __init__(self, index: int, event: CycleEvent) -> None:
        self.text = f"{type(event).__struct_config__.tag} while no cycle is open"
        super().__init__(f"event {index}: {self.text}")
        self.index = index


# --- the fold ------------------------------------------------------------------------------------------------------


class Projection(Struct, frozen=True):
    """What the events so far amount to. Begins idle, with nothing queued (P1)."""

    closed: tuple[RequestCycle, ...] = ()
    open: RequestCycle | None = None
    queue: tuple[UserMessage, ...] = ()
    """Follow-ups that wait; they belong to no cycle yet (P9)."""
    count: int = 0
    """How many events were taken."""
    skipped: int = 0
    """How many of them could not come where they came."""

    @property
    def cycles(self) -> tuple[RequestCycle, ...]:
        """All cycles in order; the last one may still be open."""
        return (*self.closed, self.open) if self.open else self.closed


class Projector(Struct, frozen=True):
    """How to read an event list."""

    strict: bool = False
    """Raise ProtocolError for an event that cannot come at its place, instead of skipping it (P6)."""
    undeclared: Delivery = Delivery.FOLLOW_UP
    """What a user message is that comes during a run and does not say (P3)."""

    def step(self, so_far: Projection, event: CycleEvent) -> Projection:
        """Take one event. Pure; raises ProtocolError if strict."""
        taken = msgspec.structs.replace(so_far, count=so_far.count + 1)
        match event:
            case UserMessage():
                return self._user_message(taken, event)
            case UserMessageWithdrawn():
                kept = tuple(message for message in taken.queue if message.id != event.id)
                return msgspec.structs.replace(taken, queue=kept)
            case AgentOutput() | ToolResult():
                return _append(taken, event) if taken.open else self._misplaced(taken, event)
            case RunStop():
                return _close(taken, taken.open, event) if taken.open else self._misplaced(taken, event)

    def project(self, events: Iterable[CycleEvent], so_far: Projection | None = None) -> Projection:
        """Take a whole list, or go on with it."""
        projection = so_far or Projection()
        for event in events:
            projection = self.step(projection, event)
        return projection

    def _user_message(self, taken: Projection, event: UserMessage) -> Projection:
        if taken.open is None:
            return msgspec.structs.replace(taken, open=RequestCycle(event, Delivery.DIRECT))
        declared = event.delivery in (Delivery.STEER, Delivery.FOLLOW_UP)
        if (event.delivery if declared else self.undeclared) is Delivery.STEER:
            return _append(taken, event)
        return msgspec.structs.replace(taken, queue=(*taken.queue, event))

    def _misplaced(self, taken: Projection, event: CycleEvent) -> Projection:
        if self.strict:
            raise ProtocolError(taken.count - 1, event)
        return msgspec.structs.replace(taken, skipped=taken.skipped + 1)


def project(events: Iterable[CycleEvent], *, strict: bool = False) -> tuple[RequestCycle, ...]:
    """The cycles of an event list."""
    return Projector(strict=strict).project(events).cycles


def _append(taken: Projection, event: UserMessage | AgentOutput | ToolResult) -> Projection:
    if taken.open is None:
        return taken
    longer = msgspec.structs.replace(taken.open, events=(*taken.open.events, event))
    return msgspec.structs.replace(taken, open=longer)


def _close(taken: Projection, cycle: RequestCycle, stop: RunStop) -> Projection:
    """Close the cycle; the follow-up that waits longest opens the next one at once (P5)."""
    following = RequestCycle(taken.queue[0], Delivery.FOLLOW_UP) if taken.queue else None
    closed = (*taken.closed, msgspec.structs.replace(cycle, stop=stop))
    return msgspec.structs.replace(taken, closed=closed, open=following, queue=taken.queue[1:])


def cycle_of(events: Iterable[CycleEvent]) -> RequestCycle | None:
    """The cycle of one run's own events; None if they do not begin with a root.

    A follow-up that begins them was promoted: where it was accepted is not among a run's own events.
    """
    following = iter(events)
    root = next(following, None)
    if not isinstance(root, UserMessage):
        return None
    promoted = root.delivery is Delivery.FOLLOW_UP
    opened = Projection(open=RequestCycle(root, Delivery.FOLLOW_UP if promoted else Delivery.DIRECT))
    return Projector().project(following, opened).cycles[0]


def events_in(cycle: RequestCycle) -> tuple[CycleEvent, ...]:
    """The events that the cycle was made of, its root first: what `cycle_of` takes."""
    return (cycle.root, *cycle.events, *((cycle.stop,) if cycle.stop else ()))


# --- the two views -------------------------------------------------------------------------------------------------


def rounds(cycle: RequestCycle) -> tuple[InferenceRound, ...]:
    """The model-serving view. Results that no request consumed any more are in no round."""
    done: list[InferenceRound] = []
    inputs: list[UserMessage | ToolResult] = [cycle.root]
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
    """The product view: the root, then texts with their grouped calls, and steers."""
    results = {event.tool_call_id: event for event in cycle.events if isinstance(event, ToolResult)}
    done: list[Step] = [UserStep(StepKind.NON_STEER, cycle.root)]
    for event in cycle.events:
        match event:
            case UserMessage():
                done.append(UserStep(StepKind.STEER, event))
            case AgentOutput(kind=OutputKind.TOOL_CALL):
                if not isinstance(done[-1], AiBlock):
                    done.append(AiBlock(OutputKind.ASSISTANT, "", synthetic=True))
                done[-1] = _with_call(done[-1], Call(event, results.get(event.tool_call_id)))
            case AgentOutput():
                done.append(AiBlock(event.kind, event.text, event.message_id))
            case ToolResult():
                pass
    return tuple(done)


def _with_call(block: Step, call: Call) -> Step:
    """The block with one more call, in its last group if that is the call's own."""
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
    """The group of a tool in a list that carries none: the seed's own table (C45)."""
    return _SEED_GROUPS.get(tool, ToolGroup.OTHER)


# --- what a conversation puts in -----------------------------------------------------------------------------------


def events_of(
    notifications: Iterable[Notification], groups: Mapping[str, ToolGroup], times: Iterable[int] = repeat(0)
) -> Iterator[CycleEvent]:
    """The event list of a conversation's durable notifications, one by one as they come.

    `groups` holds each tool's declared group, others are other-group; `times` when each notification was stored, ms
    since the epoch. A follow-up enters when it is accepted; its message, stored when its turn comes, adds nothing.
    """
    accepted: set[str] = set()
    for notification, at in zip(notifications, times, strict=False):
        match notification:
            case QueueChanged(input=queued, delivery=Wish.FOLLOW_UP.value, fate=Fate.QUEUED):
                accepted.add(queued.message_id)
                yield UserMessage(queued.message_id, Delivery.FOLLOW_UP, queued.text, queued.at)
            case QueueChanged(input=queued, delivery=Wish.FOLLOW_UP.value, fate=Fate.WITHDRAWN):
                yield UserMessageWithdrawn(queued.message_id)
            case MessageAdded(message=message) if message.id not in accepted:
                yield from _events_of_message(message, groups)
            case RunStopped(run, reason, detail):
                yield RunStop(reason, detail, run, at)
            case _:
                pass


def _events_of_message(message: Message, groups: Mapping[str, ToolGroup]) -> Iterator[CycleEvent]:
    """Nudges, notices and summaries are no user messages: only people and parents ask for something."""
    if message.type is MessageType.USER and not message.meta:
        delivery = _DELIVERIES.get(message.delivery, Delivery.DIRECT)
        yield UserMessage(message.id, delivery, text_of(message.content), message.created_at)
    served, at = message.request_id or None, message.created_at
    for block in message.content:
        match block:
            case Text() if message.type is MessageType.AGENT:
                yield AgentOutput(OutputKind.ASSISTANT, block.text, served, message_id=message.id, at=at)
            case Reasoning() if block.text:
                yield AgentOutput(OutputKind.REASONING, block.text, served, message_id=message.id, at=at)
            case ToolUse():
                yield AgentOutput(
                    OutputKind.TOOL_CALL,
                    round=served,
                    tool_call_id=block.id,
                    tool=block.name,
                    input=block.input,
                    group=groups.get(block.name, ToolGroup.OTHER),
                    message_id=message.id,
                    at=at,
                )
            case ToolSuccess() | ToolError():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at, block.duration_ms)
            case ToolCancelled() | SubAgentComplete():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at)
            case Text() | Image() | Reasoning():  # the provider hides the reasoning
                pass


_DELIVERIES = {Wish.STEER.value: Delivery.STEER, Wish.FOLLOW_UP.value: Delivery.FOLLOW_UP}
