"""What a conversation consists of, as plain Python values: messages, tool calls and results, approvals.

Each value is made from its message of the contract, which stays at hand as ``proto`` where it holds more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from google.protobuf import json_format

from bedrock import v1
from bedrock._shared.enum_names import enum_name, resource_name
from bedrock.types import ErrorKind, Role, StateKind, ToolOutcome

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct
    from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["Approval", "Message", "SubAgentStatus", "Task", "ToolCall", "ToolResult"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model asked for."""

    id: str
    """Identifies the call within the conversation."""
    tool: str
    """The tool as the model named it, e.g. "bash"."""
    input: dict[str, Any]
    """The input. Empty if the model wrote no valid JSON object, or one too large or deep for a Struct; then `raw_input`
    holds what it wrote.
    """
    raw_input: str = ""

    @classmethod
    def from_proto(cls, call: v1.ToolCall) -> ToolCall:
        """Take the values from the message of the contract."""
        return cls(id=call.tool_use_id, tool=call.tool, input=plain(call.input), raw_input=call.raw_input)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool call ended. Every call gets exactly one result."""

    id: str
    """The call that it answers."""
    outcome: ToolOutcome | Literal[""]
    """"ok", "error", "cancelled", "skipped" or "denied"."""
    output: str
    """What the model reads."""
    seconds: float
    """How long the call ran."""
    display: dict[str, Any]
    """What people may be shown instead of the output. Its keys depend on the tool."""

    @classmethod
    def from_proto(cls, result: v1.ToolResult) -> ToolResult:
        """Take the values from the message of the contract."""
        return cls(
            id=result.tool_use_id,
            outcome=cast("ToolOutcome", enum_name(v1.ToolOutcome, result.outcome)),
            output=result.output,
            seconds=result.duration.ToTimedelta().total_seconds(),
            display=plain(result.display),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message, or one that waits in the queue."""

    proto: v1.Message

    @property
    def name(self) -> str:
        """The resource name."""
        return self.proto.name

    @property
    def sequence(self) -> int:
        """The position in the conversation, counted from 1. Zero while the message waits in the queue."""
        return self.proto.sequence

    @property
    def role(self) -> Role | Literal[""]:
        """Who wrote it: "user", "agent", "tool", "system" or "error"."""
        return cast("Role", enum_name(v1.Role, self.proto.role))

    @property
    def text(self) -> str:
        """Its text. Empty if it has none, as for tool results."""
        return "\n\n".join(block.text for block in self.proto.content if block.WhichOneof("block") == "text")

    @property
    def reasoning(self) -> str:
        """What the model let see of its reasoning."""
        return "\n\n".join(block.reasoning for block in self.proto.content if block.WhichOneof("block") == "reasoning")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls that it asks for, in order."""
        return [ToolCall.from_proto(block.tool_call) for block in self.proto.content if block.HasField("tool_call")]

    @property
    def tool_results(self) -> list[ToolResult]:
        """The tool results that it holds."""
        return [
            ToolResult.from_proto(block.tool_result) for block in self.proto.content if block.HasField("tool_result")
        ]

    @property
    def images(self) -> list[v1.Image]:
        """The images that it holds, those of tool results too. `Conversation.attachment` reads one by its name."""
        found: list[v1.Image] = []
        for block in self.proto.content:
            if block.HasField("image"):
                found.append(block.image)
            found += block.tool_result.images
        return found

    @property
    def time(self) -> datetime:
        """When it was stored, or accepted while it waits."""
        return moment(self.proto.create_time)


@dataclass(frozen=True, slots=True)
class Approval:
    """A question that waits for a person: may this call run, or may the mode be widened?"""

    name: str
    """The resource name to answer under."""
    id: str
    """The tool call in question."""
    tool: str
    """The tool that wants to run; "request_mode_upgrade" if the agent asks for the unrestricted mode."""
    input: dict[str, Any]
    """The input of the call. For a mode upgrade, ``{"reason": …}``."""

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/approvals/")[0]

    @classmethod
    def from_proto(cls, approval: v1.PendingApproval) -> Approval:
        """Take the values from the message of the contract."""
        if approval.HasField("mode_upgrade"):
            upgrade = approval.mode_upgrade
            return cls(approval.name, upgrade.tool_use_id, "request_mode_upgrade", {"reason": upgrade.reason})
        call = ToolCall.from_proto(approval.tool_call)
        return cls(approval.name, call.id, call.tool, call.input or {"raw_input": call.raw_input})


@dataclass(frozen=True, slots=True)
class Task:
    """What a sub-agent is to do. What is left out is as the conversation or the server has it."""

    task: str
    """What to do, in words for the sub-agent: it knows nothing else of the conversation."""
    model: str = ""
    max_turns: int = 0
    """How many turns it has; one more is given to submit a result."""
    timeout: float = 0.0
    """How many seconds it has."""
    read_first: Sequence[str] = ()
    """Paths of files that it is given at the start."""
    working_directory: str = ""

    def to_proto(self) -> v1.SpawnSubAgentsRequest.Task:
        """Make the message of the contract."""
        made = v1.SpawnSubAgentsRequest.Task(
            task=self.task,
            model=resource_name("models", self.model) if self.model else "",
            max_turns=self.max_turns,
            read_first=self.read_first,
            working_directory=self.working_directory,
        )
        if self.timeout:
            made.timeout.FromTimedelta(timedelta(seconds=self.timeout))
        return made


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """A sub-agent as its parent's events tell of it. What it is doing is told by its own conversation."""

    name: str
    """The resource name of its conversation; empty if it could not even be started."""
    task: str
    """The first line of its task."""
    index: int
    """The position of its task among those started together, counted from 0."""
    outcome: StateKind | Literal[""] = ""
    """"completed" or "failed"; empty while it is at work."""
    result: str = ""
    """What it submitted, or the last text it wrote if it failed; the beginning of it if it is long."""
    error_kind: ErrorKind | Literal[""] = ""
    """Why it failed, e.g. "timed_out"."""
    error_message: str = ""
    """The same for people."""

    @classmethod
    def all_of(cls, changed: v1.Event.SubAgentsChanged) -> list[SubAgentStatus]:
        """Take all that were started together from the message of the contract, in the order of their tasks."""
        working = [cls(agent.conversation, agent.task, agent.task_index) for agent in changed.pending]
        ended = [
            cls(
                name=report.conversation,
                task=report.task,
                index=report.task_index,
                outcome=cast("StateKind", enum_name(v1.StateKind, report.state)),
                result=report.result or report.partial_result,
                error_kind=cast("ErrorKind", enum_name(v1.ErrorKind, report.error.kind)),
                error_message=report.error.message,
            )
            for report in changed.reports
        ]
        return sorted([*working, *ended], key=lambda agent: agent.index)


def plain(struct: Struct) -> dict[str, Any]:
    """Turn a Struct into Python values, whole numbers into int (a Struct knows only doubles)."""
    values: dict[str, Any] = _whole(json_format.MessageToDict(struct))
    return values


def moment(timestamp: Timestamp) -> datetime:
    """Turn a timestamp of the contract into an aware datetime in UTC."""
    return timestamp.ToDatetime(tzinfo=UTC)


def _whole(value: Any) -> Any:
    match value:
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case list():
            return [_whole(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value
