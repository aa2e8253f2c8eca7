"""Records of the Request Cycle Model: the input events, the cycles made of them, and the two views of a cycle.

An event list can be kept and exchanged as JSON lines: one event a line, with the seed's names as tags.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from actors.core.context import ToolGroup
from actors.core.notifications import StopReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    bytes that are no UTF-8, or RecursionError.
    """
    decoder: msgspec.json.Decoder[CycleEvent] = msgspec.json.Decoder(CycleEvent)
    return (decoder.decode(line) for line in lines if line.strip())


def encode_line(event: CycleEvent) -> str:
    """The event as one line of JSON, without the line break."""
    return msgspec.json.encode(event).decode()


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
