"""Data types of the Request Cycle Model: input events, cycles, and the two views of a cycle (rounds and steps).

A list of events can be stored and exchanged as JSON lines: one event per line, with the tags of the specification.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from actors.core.content import LATEST_MS
from actors.core.context import ToolGroup
from actors.core.notifications import StopReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=LATEST_MS)]
"""Either a time in milliseconds since the epoch, up to the year 9999 and 0 if unknown, or a duration."""


class CycleDelivery(StrEnum):
    """How a user message reaches the agent.

    It begins a run (DIRECT), joins the open run (STEER), or waits for the end of the open run (FOLLOW_UP).
    """

    DIRECT = "direct"
    STEER = "steer"
    FOLLOW_UP = "followUp"


class OutputKind(StrEnum):
    """The kinds of agent output."""

    ASSISTANT = "assistant"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


class CycleUserMessage(Struct, frozen=True, omit_defaults=True, tag="user-message"):
    """A user message.

    If the message joins an open run, the event occurs when the agent gets the message; otherwise, when the server
    accepts the message.
    """

    id: str
    delivery: CycleDelivery | None = None
    text: str = ""
    at: Milliseconds = 0


class UserMessageWithdrawn(Struct, frozen=True, omit_defaults=True, tag="user-message-withdrawn"):
    """A queued follow-up message was withdrawn. The specification has no such event."""

    id: str


class AgentOutput(Struct, frozen=True, omit_defaults=True, tag="agent-output"):
    """One item of a model's response."""

    kind: OutputKind
    text: str = ""
    """For assistant and reasoning items: the text."""
    round: str | None = None
    """The id of the model request; None if unknown."""
    tool_call_id: str = ""
    tool: str = ""
    """The tool's name."""
    input: str = ""
    """For tool calls: the arguments as raw JSON text."""
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
    """The run ended."""

    reason: StopReason
    detail: str = ""
    run: str = ""
    at: Milliseconds = 0
    output: str = ""
    """The value that the run ended with, as JSON; "" if it has none."""


CycleEvent: TypeAlias = CycleUserMessage | UserMessageWithdrawn | AgentOutput | ToolResult | CycleRunStop


def decode_lines(lines: Iterable[bytes | str]) -> Iterator[CycleEvent]:
    """Decode a list of events, one JSON object per line; blank lines are skipped.

    Raises msgspec.DecodeError, ValueError for bytes that are not UTF-8, or RecursionError.
    """
    decoder: msgspec.json.Decoder[CycleEvent] = msgspec.json.Decoder(CycleEvent)
    return (decoder.decode(line) for line in lines if line.strip())


def encode_line(event: CycleEvent) -> str:
    """Encode the event as one line of JSON, without the line break."""
    return msgspec.json.encode(event).decode()


class RequestCycle(Struct, frozen=True):
    """A user message (the root), the agent's work on it, and the messages that joined the run (steers).

    The first run-stop closes the cycle.
    """

    root: CycleUserMessage
    kind: CycleDelivery
    """How the root message was sent: DIRECT or FOLLOW_UP."""
    events: tuple[CycleUserMessage | AgentOutput | ToolResult, ...] = ()
    """Everything after the root message, in order; the user messages among these joined the run later (steers)."""
    stop: CycleRunStop | None = None
    """The event that ended the run (run-stop); None while the run is open."""


class InferenceRound(Struct, frozen=True):
    """One model request and its output."""

    round: str | None
    inputs: tuple[CycleUserMessage | ToolResult, ...]
    """The new input since the previous model request; () if this request continues an unfinished text."""
    outputs: tuple[AgentOutput, ...]


class StepKind(StrEnum):
    """Whether the message of a user step is the root of the cycle, or joined the run later (steer)."""

    NON_STEER = "non-steer"
    STEER = "steer"


class UserStep(Struct, frozen=True, tag="user-step"):
    """A step that shows a user message: the root of the cycle, or one that joined the run later (steer)."""

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
