"""Classes for conversations as the server describes them, and for arguments and results of calls about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from bedrock import v1
from bedrock._shared.deadline import checked_timeout
from bedrock._shared.values import (
    Budget,
    ContextUsage,
    Generation,
    Instructions,
    ReplayStep,
    ToolSelection,
    UnofferedTool,
)
from bedrock._shared.wrapper import Value, Wrapper, enum_value, new_message, resource_name, struct_message
from bedrock.catalog import McpServer
from bedrock.messages import QueuedMessage, Usage
from bedrock.states import ApprovalRule, ConversationState
from bedrock.types import (
    ApprovalPolicy,
    FollowUpPolicy,
    ListEventKind,
    Mode,
    ToolGroup,
)

__all__ = [
    "Budget",
    "CancelConversationResult",
    "ClientTool",
    "ContextUsage",
    "ConversationInfo",
    "ConversationListEvent",
    "Generation",
    "Instructions",
    "ReplayStep",
    "SetModeResult",
    "Task",
    "ToolSelection",
    "UnofferedTool",
]


def quoted(text: str) -> str:
    """Quote a text for use in a filter: ``f"labels.team = {quoted(team)}"``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class ClientTool(Value[v1.ClientTool]):
    """A tool that clients run for the agent; `Conversation.submit_tool_result` sends the result of a call."""

    name: str
    """The name by which the model calls the tool."""
    description: str = ""
    """The description that the model gets."""
    input_schema: dict[str, Any] = field(default_factory=dict, hash=False)
    """The JSON Schema of the tool's input, of type object; empty for a tool without input."""
    group: ToolGroup | Literal[""] = ""
    """The kind of work that the tool does; "other" if empty."""
    timeout: timedelta = timedelta()
    """How long a call waits for an answer; five minutes if zero."""
    read_only: bool = False
    """Whether the tool changes nothing; in restricted mode the agent is offered only such tools."""
    requires_approval: bool = False
    """Whether a person must approve every call of the tool."""

    def __post_init__(self) -> None:
        """Check the values and set `proto`.

        Raises TypeError or ValueError if a value is invalid; the text names the field.
        """
        proto = new_message(
            v1.ClientTool,
            name=self.name,
            description=self.description,
            group=enum_value(v1.ToolGroup, self.group or None),
            read_only=self.read_only,
            requires_approval=self.requires_approval,
        )
        if self.input_schema:
            proto.input_schema.CopyFrom(struct_message("input_schema", self.input_schema))
        if not isinstance(self.timeout, timedelta):  # versions of protobuf raise different errors for a wrong type
            raise TypeError(f"timeout: must be a timedelta, not {self.timeout!r}")
        if self.timeout:
            proto.timeout.FromTimedelta(self.timeout)
        object.__setattr__(self, "proto", proto)


@dataclass(frozen=True, slots=True)
class ConversationInfo(Wrapper[v1.Conversation]):
    """The data of a conversation at the time of the server's answer. To act on it, use the class `Conversation`."""

    name: str
    """The resource name, ``conversations/{id}``. It never changes."""
    slug: str
    """A short readable handle, unique among the conversations of one principal (user of the server)."""
    title: str
    """A title to show to people."""
    working_directory: str
    """The absolute path, without symbolic links, of the directory that tools start in."""
    model: str
    """The resource name of the model that the conversation uses."""
    state: ConversationState
    """The state: what the conversation is doing at present."""
    mode: Mode
    """The mode: what tools are allowed to do."""
    context_usage: ContextUsage
    """How full the context is."""
    total_usage: Usage
    """The total usage of all requests to the model so far, including failed requests if the provider reported usage."""
    parent: str
    """The resource name of the conversation that started this sub-agent; empty if this is no sub-agent."""
    continued_from: str
    """The resource name of the conversation that this one continues; empty if there is none."""
    continued_by: str
    """The resource name of the conversation that continues this one; empty if there is none."""
    forked_from: str
    """The resource name of the conversation that this one was forked from, which may have been deleted since.

    Empty if this is no fork.
    """
    forked_at: str
    """The resource name of the last run of `forked_from` that this fork contains, too; empty if this is no fork."""
    continuation_summary: str
    """The summary that was written when the context was used up; empty before that."""
    create_time: datetime
    """When the conversation was created."""
    update_time: datetime
    """When the last stored event of the conversation happened."""
    archive_time: datetime | None
    """When the conversation was archived; None if it is not archived."""
    revision: int
    """The number of the last stored event of the conversation."""
    etag: str
    """A value that changes with every field that `update` can set. Pass it to `update` to detect concurrent changes."""
    labels: dict[str, str] = field(hash=False)
    """Keys and values for the caller's own use."""
    approval_policy: ApprovalPolicy
    """Which tool calls a person must approve."""
    follow_up_policy: FollowUpPolicy
    """What happens to queued follow-ups when a run ends."""
    budget: Budget | None
    """Spending limits; None if there are none."""
    aside_usage: Usage
    """The total usage of side queries: model requests outside of runs, for example for the title."""
    background_jobs: tuple[str, ...]
    """Handles of running background jobs.

    Set by `Conversation.get` and in the first snapshot of an event stream only.
    """
    instructions: Instructions | None
    """The creator's instructions for the agent.

    Set by `Conversation.get` and in an event stream's first snapshot only.
    """
    tools: ToolSelection | None
    """The server's tools that the agent is offered; None if all."""
    client_tools: tuple[ClientTool, ...]
    """The tools that clients run. Set by `Conversation.get` and in the first snapshot of an event stream only."""
    generation: Generation | None
    """How the model is to answer; None if nothing is set."""
    approval_rules: tuple[ApprovalRule, ...]
    """The conversation's own approval rules. `Conversation.approval_rules` lists those of the operator, too."""
    mcp_servers: tuple[McpServer, ...]
    """MCP servers of this conversation besides the operator's.

    Set by `Conversation.get` and in the first snapshot of an event stream only.
    """
    auto_continue: bool
    """Whether the server creates the successor as soon as the context is used up."""
    unoffered_tools: tuple[UnofferedTool, ...]
    """The client tools that a run which begins in the present mode does not offer to the agent."""


@dataclass(frozen=True, slots=True)
class ConversationListEvent(Wrapper[v1.WatchConversationsResponse]):
    """A change to the list of conversations. Only the attribute that `kind` names is set."""

    conversation_changed: ConversationInfo | None
    """The conversation as it is now: one that existed when the stream began, or was created or changed since."""
    conversation_deleted: str
    """The resource name of a conversation that was deleted."""
    conversation_unmatched: str
    """The resource name of a conversation that does not match the filter any more."""

    @property
    def kind(self) -> ListEventKind | Literal[""]:
        """What happened: the name of the attribute that is set, or "caught_up" or "heartbeat".

        Empty if this version does not know the event.
        """
        return cast("ListEventKind", self.proto.WhichOneof("event") or "")


@dataclass(frozen=True, slots=True)
class CancelConversationResult(Wrapper[v1.CancelConversationResponse]):
    """The result of a cancel: the run, calls, queued messages and jobs that it affected."""

    no_op: bool
    """Whether there was nothing to cancel."""
    state: ConversationState
    """The state right after the cancel; if a queued follow-up has started the next run, the state of that run."""
    run: str
    """The resource name of the run that was cancelled; empty if there was none."""
    llm_request_id: str
    """The id of the request to the model that was aborted; empty if there was none."""
    tool_use_ids: tuple[str, ...]
    """Ids of the tool calls that were stopped or never started, in the order in which the model asked for them."""
    sub_agents: tuple[str, ...]
    """The resource names of the sub-agents that are being stopped."""
    returned_steers: tuple[QueuedMessage, ...]
    """Steers (messages for the run in progress) that the model has not seen.

    They are not in the history; send them again if needed.
    """
    discarded_follow_ups: tuple[QueuedMessage, ...]
    """Follow-ups that were removed from the queue, because the cancel had `discard_queued` set."""
    surviving_jobs: tuple[str, ...]
    """Handles of the background jobs that continue to run."""
    revision: int
    """The number of the conversation's last stored event after the cancel."""
    ended_jobs: tuple[str, ...]
    """Handles of the background jobs that were ended, because the cancel had `kill_jobs` set."""
    unrecorded: bool
    """Whether the cancel took effect but is not stored yet, for example because the disk is full."""


@dataclass(frozen=True, slots=True)
class SetModeResult(Wrapper[v1.SetModeResponse]):
    """The result of a change of mode: the calls, jobs and programs that were stopped, and those that keep running."""

    conversation: ConversationInfo
    """The conversation in its new mode."""
    surviving_jobs: tuple[str, ...]
    """Handles of background jobs that continue to run with more rights than the new mode allows."""
    surviving_tool_use_ids: tuple[str, ...]
    """Ids of tool calls that continue to run with more rights than the new mode allows; at most one."""
    ended_jobs: tuple[str, ...]
    """Handles of background jobs that were ended, because the call had `stop_running` set."""
    stopped_tool_use_ids: tuple[str, ...]
    """Ids of tool calls that were ended, because the call had `stop_running` set."""
    surviving_mcp_servers: tuple[str, ...]
    """Names of MCP servers whose programs continue to run with more rights than the new mode allows."""
    stopped_mcp_servers: tuple[str, ...]
    """Names of MCP servers whose programs were ended, because the call had `stop_running` set."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a sub-agent. Values that are not given default to the conversation's or the server's."""

    task: str
    """The task as text. It must be complete, because the sub-agent does not see the conversation."""
    model: str = ""
    max_turns: int = 0
    """Maximum number of turns (model requests); zero for the server's default.

    After the last one, the sub-agent gets one more turn, in which it can only submit its result.
    """
    timeout: float = 0.0
    """Time limit in seconds; zero for the server's default."""
    read_first: Sequence[str] = field(default=(), hash=False)
    """Paths of files whose content the sub-agent gets at the start."""
    working_directory: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises the errors of `to_proto`."""
        self.to_proto()

    def to_proto(self) -> v1.SpawnSubAgentsRequest.Task:
        """Return the task as a protobuf message.

        Raises:
            TypeError, ValueError: A value is invalid; the text names the field.
        """
        made = new_message(
            v1.SpawnSubAgentsRequest.Task,
            task=self.task,
            model=resource_name("models", self.model) if self.model else "",
            max_turns=self.max_turns,
            read_first=self.read_first,
            working_directory=self.working_directory,
        )
        if seconds := checked_timeout(self.timeout):
            made.timeout.FromTimedelta(timedelta(seconds=seconds))
        return made
