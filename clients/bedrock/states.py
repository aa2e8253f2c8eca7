"""The state of a conversation: its activity, its open approvals and its sub-agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from bedrock import v1
from bedrock._shared.wrapper import Wrapper
from bedrock.messages import ToolCall
from bedrock.types import ErrorKind, Mode, QuestionStatus, RequestPhase, RuleAction, RuleOrigin, StateKind

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
class RunError(Wrapper[v1.RunError]):
    """Why a run or an attempt failed. A value, not an exception."""

    kind: ErrorKind
    """The kind of failure, e.g. "auth"."""
    message: str
    """What happened and what to do about it, in one or two sentences."""


@dataclass(frozen=True, slots=True)
class ModeUpgrade(Wrapper[v1.PendingApproval.ModeUpgrade]):
    """A request of the agent for a wider mode."""

    tool_use_id: str
    """The tool call by which the agent asks."""
    reason: str
    """The agent's reason, in its own words; it may be false."""
    mode: Mode
    """The mode that it asks for: "workspace" or "unrestricted". An approval grants no more."""


@dataclass(frozen=True, slots=True)
class ApprovalRule(Wrapper[v1.ApprovalRule]):
    """A rule about tool calls. One of `tool`, `command`, `command_prefix`, `path` and `mcp_server` is set.

    A denial comes before a question, and a question before a permission, whoever made the rules.
    """

    name: str
    """The resource name; empty in a suggestion."""
    action: RuleAction
    """What becomes of the calls that it matches: "allow", "ask" or "deny"."""
    tool: str
    """The resource name of a tool: all its calls."""
    command: str
    """A shell command, exactly."""
    command_prefix: str
    """The words that shell commands begin with."""
    path: str
    """A directory, with everything beneath it, for the tools that take a path."""
    mcp_server: str
    """The name of an MCP server: all calls of its tools."""
    create_time: datetime | None
    """When it was made; None if that is not known, and for rules of the operator."""
    creator: str
    """Who made it; empty if that is not known."""
    origin: RuleOrigin
    """Where it comes from: "conversation" or "operator"."""

    @property
    def kind(self) -> str:
        """What it is about: "tool", "command", "command_prefix", "path" or "mcp_server"."""
        return self.proto.WhichOneof("subject") or ""

    @property
    def subject(self) -> str:
        """The value of the field that `kind` names; for a tool without ``tools/``."""
        return str(getattr(self, self.kind)).removeprefix("tools/") if self.kind else ""


@dataclass(frozen=True, slots=True)
class Approval(Wrapper[v1.PendingApproval]):
    """A request for a person's approval: of a tool call, or of the change to a wider mode.

    One of `tool_call` and `mode_upgrade` is set; `tool`, `input` and `tool_use_id` describe either of them.
    """

    name: str
    """The resource name of the approval; answers refer to it."""
    tool_call: ToolCall | None
    """The call that needs approval."""
    mode_upgrade: ModeUpgrade | None
    """The request for a wider mode."""
    create_time: datetime | None
    """When the approval was requested; None in an event that reports only the decision."""
    suggestions: tuple[ApprovalRule, ...]
    """Rules that would allow calls like this one, the narrowest first; for `rule` of `approve` and `deny`."""
    rule: ApprovalRule | None
    """The rule that made the call ask: one that asks, or one that might deny it; None if no rule did."""

    @property
    def tool_use_id(self) -> str:
        """The tool call in question."""
        return self.name.rpartition("/")[2]

    @property
    def tool(self) -> str:
        """The tool that is to run; "request_mode_upgrade" if the agent asks for a wider mode."""
        if self.mode_upgrade is not None:
            return "request_mode_upgrade"
        return "" if self.tool_call is None else self.tool_call.tool

    @property
    def input(self) -> dict[str, Any]:
        """The input of the call. For a mode upgrade, ``{"reason": …}``."""
        if self.mode_upgrade is not None:
            return {"reason": self.mode_upgrade.reason}
        return {} if (call := self.tool_call) is None else call.input or {"raw_input": call.raw_input}

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/approvals/")[0]


@dataclass(frozen=True, slots=True)
class Question(Wrapper[v1.Question]):
    """What a running tool asks a person: an MCP server wants to know something in the middle of a call.

    Its words are the server's own. A form is not for secrets.
    """

    name: str
    """The resource name of the question; answers refer to it."""
    tool_use_id: str
    """The tool call that asks."""
    tool: str
    """The resource name of its tool."""
    mcp_server: str
    """The name of the MCP server."""
    message: str
    """What it asks."""
    requested_schema: dict[str, Any] | None = field(hash=False)
    """For a form: a JSON Schema of an object whose `properties` are the fields, without anything nested; else None.

    `propertyOrder` lists their names in the order of the form.
    """
    url: str
    """Instead of a form: the address that the person is asked to visit; else empty."""
    create_time: datetime
    """When it was asked."""
    deadline: datetime
    """Until when an answer is waited for."""
    status: QuestionStatus
    """"pending", "answered", "declined", "timed_out" or "withdrawn"."""

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/questions/")[0]


@dataclass(frozen=True, slots=True)
class PendingSubAgent(Wrapper[v1.SubAgent]):
    """A sub-agent at work, as the conversation that started it knows it."""

    conversation: str
    """The resource name of its conversation."""
    task: str
    """The first line of its task, 200 characters at most."""
    task_index: int
    """The position of its task among those started together, counted from 0."""
    deadline: datetime
    """When its time limit ends."""


@dataclass(frozen=True, slots=True)
class SubAgentReport(Wrapper[v1.Event.SubAgentsChanged.Report]):
    """How one sub-agent ended."""

    conversation: str
    """The resource name of its conversation; empty if it could not be started."""
    task: str
    """The first line of its task, 200 characters at most."""
    task_index: int
    """The position of its task among those started together, counted from 0."""
    state: StateKind
    """"completed" or "failed"."""
    result: str
    """The result that it submitted; the first 4096 characters."""
    error: RunError | None
    """Why it failed; None unless it did."""
    partial_result: str
    """The last text it wrote, the first 4096 characters; empty unless it failed."""


@dataclass(frozen=True, slots=True)
class SubAgentsChanged(Wrapper[v1.Event.SubAgentsChanged]):
    """All sub-agents that were started together, after one of them ended. `SubAgentStatus` shows them in order."""

    pending: tuple[PendingSubAgent, ...]
    """The running sub-agents, in the order of their tasks."""
    reports: tuple[SubAgentReport, ...]
    """The results of those that have ended, in the order of their ends."""


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """A sub-agent, at work or ended, as its parent's events show it. Its own conversation shows what it is doing."""

    name: str
    """The resource name of its conversation; empty if it could not be started."""
    task: str
    """The first line of its task."""
    index: int
    """The position of its task among those started together, counted from 0."""
    outcome: StateKind | Literal[""] = ""
    """"completed" or "failed"; empty while it is at work."""
    result: str = ""
    """The result that it submitted or, if it failed, the last text it wrote; a long one is truncated."""
    error_kind: ErrorKind | Literal[""] = ""
    """Why it failed, e.g. "timed_out"."""
    error_message: str = ""
    """The error message for people; empty unless it failed."""

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
class LlmRequestingDetail(Wrapper[v1.ConversationState.LlmRequesting]):
    """A request to the model."""

    llm_request_id: str
    """Identifies the request; all its attempts have the same id."""
    attempt: int
    """The present attempt, counted from 1, or the next one while the phase is "backoff"."""
    max_attempts: int
    """How many attempts are made at most."""
    phase: RequestPhase
    """"connecting", "streaming" or "backoff"."""
    retry_time: datetime | None
    """When the next attempt starts; None unless the phase is "backoff"."""
    last_error: RunError | None
    """Why the previous attempt failed; None on the first attempt."""


@dataclass(frozen=True, slots=True)
class AwaitingApprovalDetail(Wrapper[v1.ConversationState.AwaitingApproval]):
    """Approvals that a person must answer before any call of the response runs."""

    pending: tuple[Approval, ...]
    """The open approvals, in the order of the response."""


@dataclass(frozen=True, slots=True)
class ToolExecutingDetail(Wrapper[v1.ConversationState.ToolExecuting]):
    """Tool calls at work."""

    current: ToolCall
    """The call that runs, or will run again at `retry_time`."""
    attempt: int
    """Its attempt, counted from 1."""
    max_attempts: int
    """How many attempts are made at most."""
    retry_time: datetime | None
    """When the next attempt starts; None while the call runs."""
    remaining_count: int
    """How many further calls of the response have not started."""
    completed_count: int
    """How many calls of the response have ended."""
    deadline: datetime | None
    """Until when the answer of a client is waited for; None for the server's own tools."""
    questions: tuple[Question, ...]
    """What the tool asks a person and waits for, in the order of asking."""


@dataclass(frozen=True, slots=True)
class AwaitingSubAgentsDetail(Wrapper[v1.ConversationState.AwaitingSubAgents]):
    """Sub-agents at work."""

    pending: tuple[PendingSubAgent, ...]
    """The running sub-agents, in the order of their tasks."""
    completed_count: int
    """How many have ended, completed or failed."""


@dataclass(frozen=True, slots=True)
class CompletedDetail(Wrapper[v1.ConversationState.Completed]):
    """How a sub-agent succeeded."""

    result: str
    """The submitted result."""


@dataclass(frozen=True, slots=True)
class FailedDetail(Wrapper[v1.ConversationState.Failed]):
    """How a sub-agent failed."""

    error: RunError
    """Why it failed."""
    partial_result: str
    """The last text it wrote; empty if it wrote none, or reported the failure itself."""


@dataclass(frozen=True, slots=True)
class ConversationState(Wrapper[v1.ConversationState]):
    """The state of a conversation. Of the details only the one that belongs to `kind` is set, if there is one."""

    kind: StateKind | Literal[""]
    """The name of the state; empty if this version does not know it."""
    enter_time: datetime
    """When the conversation entered it."""
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
    """Whether a direct message would be refused because something is in progress."""
    run: str
    """The resource name of the run in progress; empty between runs."""

    @property
    def failure(self) -> RunError | None:
        """Why the last run, or the sub-agent, failed; None in states other than "error" and "failed"."""
        return self.error if self.failed is None else self.failed.error

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The open approvals; empty in states that have none."""
        return () if self.awaiting_approval is None else self.awaiting_approval.pending

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the running tool asks a person; empty in states that have no such question."""
        return () if self.tool_executing is None else self.tool_executing.questions
