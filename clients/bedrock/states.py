"""The state of a conversation: its activity, its open approvals and its sub-agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from bedrock import v1
from bedrock._shared.values import (
    AwaitingSubAgentsDetail,
    CompletedDetail,
    FailedDetail,
    LlmRequestingDetail,
    ModeUpgrade,
    PendingSubAgent,
    RunError,
    SubAgentReport,
    SubAgentsChanged,
)
from bedrock._shared.wrapper import Wrapper
from bedrock.messages import ToolCall
from bedrock.types import ErrorKind, QuestionStatus, RuleAction, RuleOrigin, StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Approval",
    "AwaitingApprovalDetail",
    "AwaitingSubAgentsDetail",
    "CompletedDetail",
    "ConversationState",
    "FailedDetail",
    "LlmRequestingDetail",
    "ModeUpgrade",
    "PendingSubAgent",
    "Question",
    "RunError",
    "SubAgentReport",
    "SubAgentStatus",
    "SubAgentsChanged",
    "ToolExecutingDetail",
]


@dataclass(frozen=True, slots=True)
class ApprovalRule(Wrapper[v1.ApprovalRule]):
    """A rule about tool calls. Exactly one of `tool`, `command`, `command_prefix`, `path`, `mcp_server` is set.

    If several rules match a call, "deny" wins over "ask", and "ask" wins over "allow", whoever made the rules.
    """

    name: str
    """The resource name; empty if the rule is only suggested and not stored."""
    action: RuleAction
    """What happens to matching calls: "allow", "ask" or "deny"."""
    tool: str
    """The resource name of a tool: the rule matches all calls of that tool."""
    command: str
    """The exact shell command that the rule matches."""
    command_prefix: str
    """The first words of the shell commands that the rule matches."""
    path: str
    """A directory: the rule matches calls of tools with a path in it or beneath it."""
    mcp_server: str
    """The name of an MCP server: the rule matches all calls of its tools."""
    create_time: datetime | None
    """When the rule was made; None if unknown, and for rules of the operator."""
    creator: str
    """Who made the rule; empty if unknown."""
    origin: RuleOrigin
    """Whose rule it is: "conversation" or "operator"."""

    @property
    def kind(self) -> str:
        """The name of the field that is set: "tool", "command", "command_prefix", "path" or "mcp_server"."""
        return self.proto.WhichOneof("subject") or ""

    @property
    def subject(self) -> str:
        """The value of the field that `kind` names; a tool's name comes without ``tools/``."""
        return str(getattr(self, self.kind)).removeprefix("tools/") if self.kind else ""


@dataclass(frozen=True, slots=True)
class Approval(Wrapper[v1.PendingApproval]):
    """A request for a person's approval: of a tool call, or of the change to a wider mode.

    One of `tool_call` and `mode_upgrade` is set; `tool`, `input` and `tool_use_id` describe either of them.
    """

    name: str
    """The resource name of the approval, by which it is answered."""
    tool_call: ToolCall | None
    """The call that needs approval; None if the agent asks for a wider mode."""
    mode_upgrade: ModeUpgrade | None
    """The request for a wider mode; None if a tool call needs approval."""
    create_time: datetime | None
    """When the approval was requested; None in an event that reports only the decision."""
    suggestions: tuple[ApprovalRule, ...]
    """Rules that would allow calls like this one, the narrowest first; `approve` and `deny` accept one as `rule`."""
    rule: ApprovalRule | None
    """The rule that made the server ask, because it demands approval or might deny the call. None if no rule did."""

    @property
    def tool_use_id(self) -> str:
        """The id of the tool call that needs approval, or by which the agent asks for a wider mode."""
        return self.name.rpartition("/")[2]

    @property
    def tool(self) -> str:
        """The name of the tool that is to run; "request_mode_upgrade" if the agent asks for a wider mode."""
        if self.mode_upgrade is not None:
            return "request_mode_upgrade"
        return "" if self.tool_call is None else self.tool_call.tool

    @property
    def input(self) -> dict[str, Any]:
        """The input of the call; ``{"reason": …}`` for the request of a wider mode.

        If the model wrote no valid JSON object, the input is ``{"raw_input": …}``.
        """
        if self.mode_upgrade is not None:
            return {"reason": self.mode_upgrade.reason}
        return {} if (call := self.tool_call) is None else call.input or {"raw_input": call.raw_input}

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/approvals/")[0]


@dataclass(frozen=True, slots=True)
class Question(Wrapper[v1.Question]):
    """A question that a running tool (an MCP server) asks a person: a form to fill in, or an address to visit.

    The texts are the MCP server's own words. A form must not be used for secrets.
    """

    name: str
    """The resource name of the question, by which it is answered."""
    tool_use_id: str
    """The id of the tool call during which the question was asked."""
    tool: str
    """The resource name of the tool."""
    mcp_server: str
    """The name of the MCP server."""
    message: str
    """The text of the question."""
    requested_schema: dict[str, Any] | None = field(hash=False)
    """The fields of a form, as a JSON Schema of an object without nested objects; None if an address is to be visited.

    The schema's entry `propertyOrder` lists the names of the fields in the order of the form.
    """
    url: str
    """The address that the person is asked to visit; empty if the question is a form."""
    create_time: datetime
    """When the question was asked."""
    deadline: datetime
    """When the question times out unless it is answered."""
    status: QuestionStatus
    """"pending", "answered", "declined", "timed_out" or "withdrawn"."""

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/questions/")[0]


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """A sub-agent, running or ended, as the events of its parent show it. Details are in its own conversation."""

    name: str
    """The resource name of the sub-agent's conversation; empty if it could not be started."""
    task: str
    """The first line of the sub-agent's task."""
    index: int
    """The position of the sub-agent's task among the tasks that were started together, counted from 0."""
    outcome: StateKind | Literal[""] = ""
    """"completed" or "failed"; empty while the sub-agent is at work."""
    result: str = ""
    """The result that the sub-agent submitted or, if it failed, the last text it wrote; a long one is truncated."""
    error_kind: ErrorKind | Literal[""] = ""
    """The kind of failure, e.g. "timed_out"; empty unless the sub-agent failed."""
    error_message: str = ""
    """The error message for people; empty unless the sub-agent failed."""

    @classmethod
    def in_order(
        cls, pending: Iterable[PendingSubAgent], reports: Iterable[SubAgentReport] = ()
    ) -> tuple[SubAgentStatus, ...]:
        """Return all sub-agents that were started together, in the order of their tasks."""
        working = [cls(agent.conversation, agent.task, agent.task_index) for agent in pending]
        ended = [
            cls(
                name=report.conversation,
                task=report.task,
                index=report.task_index,
                outcome=report.state,
                result=report.result or report.partial_result,
                error_kind=report.error.kind if report.error else "",
                error_message=report.error.message if report.error else "",
            )
            for report in reports
        ]
        return tuple(sorted([*working, *ended], key=lambda agent: agent.index))


@dataclass(frozen=True, slots=True)
class AwaitingApprovalDetail(Wrapper[v1.ConversationState.AwaitingApproval]):
    """Open approvals. A person must answer all of them before any tool call of the model's response runs."""

    pending: tuple[Approval, ...]
    """The open approvals, in the order in which the model asked for the tool calls."""


@dataclass(frozen=True, slots=True)
class ToolExecutingDetail(Wrapper[v1.ConversationState.ToolExecuting]):
    """The progress of running tool calls."""

    current: ToolCall
    """The call that is running, or will run again at `retry_time`."""
    attempt: int
    """The attempt of the current call, counted from 1."""
    max_attempts: int
    """The maximum number of attempts."""
    retry_time: datetime | None
    """When the next attempt starts; None while the call runs."""
    remaining_count: int
    """How many tool calls of the model's response are still to be started."""
    completed_count: int
    """How many tool calls of the model's response have ended."""
    deadline: datetime | None
    """When a call of a client tool times out unless a client answers; None for calls of the server's tools."""
    questions: tuple[Question, ...]
    """The open questions of the running tool to a person, oldest first."""


@dataclass(frozen=True, slots=True)
class ConversationState(Wrapper[v1.ConversationState]):
    """The state of a conversation. At most one of the detail attributes is set: the one that belongs to `kind`."""

    kind: StateKind | Literal[""]
    """The name of the state; empty if this version does not know it."""
    enter_time: datetime
    """When the conversation entered this state."""
    llm_requesting: LlmRequestingDetail | None
    """Details of the states "llm_requesting" and "awaiting_continuation"; else None."""
    awaiting_approval: AwaitingApprovalDetail | None
    """Details of the state "awaiting_tool_approval"; else None."""
    tool_executing: ToolExecutingDetail | None
    """Details of the state "tool_executing"; else None."""
    awaiting_sub_agents: AwaitingSubAgentsDetail | None
    """Details of the state "awaiting_sub_agents"; else None."""
    error: RunError | None
    """The error of the state "error"; else None."""
    completed: CompletedDetail | None
    """Details of the state "completed"; else None."""
    failed: FailedDetail | None
    """Details of the state "failed"; else None."""
    busy: bool
    """Whether the conversation would refuse a direct message because something is in progress."""
    run: str
    """The resource name of the run in progress; empty between runs."""

    @property
    def failure(self) -> RunError | None:
        """Why the last run failed (state "error") or the sub-agent failed (state "failed"); None in other states."""
        return self.error if self.failed is None else self.failed.error

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The open approvals; empty in states without approvals."""
        return () if self.awaiting_approval is None else self.awaiting_approval.pending

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions of the running tool to a person; empty in states without questions."""
        return () if self.tool_executing is None else self.tool_executing.questions
