"""The messages to a conversation, and the entries in its log that are not events.

A command is named after its RPC. It is sent in a Request with a deadline, after which the command is dropped without
being applied. A refused command has changed nothing: its sender gets core.errors.Rejected or one of the errors below;
any other exception means a fault of the server.

Outcomes report the results of effects (the work that the state machine requests). They come from runners, which perform
the effects, and from other conversations. An outcome may arrive twice or too late; the conversation ignores outcomes
that it does not wait for.

The `tag` of a class of log entries is stored, so it must never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from actors.core import context
from actors.core.content import Image, Message, ToolError, ToolSuccess, Usage
from actors.core.errors import Reason, Rejected
from actors.core.events import Event
from actors.core.notifications import QueueChanged
from actors.core.states import AgentTask, Ledger, QueuedInput, RunOptions
from actors.core.summary import StateSummary
from actors.core.tool_run import KillReceipt
from actors.ports import ConversationRecord
from actors.ports.records import CommandOrigin


class CreateConversationCommand(Struct, frozen=True):
    """Create a conversation. The result is its ConversationRecord."""

    principal: str
    working_directory: str
    model: str = ""
    slug: str = ""
    title: str = ""
    mode: context.Mode | None = None
    labels: dict[str, str] = {}
    approval_policy: context.ApprovalPolicy = context.ApprovalPolicy.AUTO
    follow_up_policy: context.FollowUpPolicy = context.FollowUpPolicy.ALWAYS
    budget: context.Budget = context.Budget()
    profile: context.Profile = context.Profile()
    refuse_unoffered_tools: bool = False
    request_id: str = ""
    body_hash: str = ""


class SendMessageCommand(Struct, frozen=True):
    """Send a user message."""

    text: str
    delivery: str = "reject"
    images: tuple[Image, ...] = ()
    expected_run: str = ""
    options: RunOptions = RunOptions()
    request_id: str = ""
    body_hash: str = ""


class SendMessageResult(Struct, frozen=True):
    """How a message was accepted. Stored as JSON, so that a repeated request gets the same answer."""

    message_id: str
    disposition: str
    """One of "direct" (it began a run), "steer_queued" (for the open run) and "follow_up_queued" (for a later run)."""
    run: str
    """The run that gets the message; "" for a follow-up."""
    revision: int
    """The number of the latest event before the command; the message causes only later events."""
    message: Message | None = None
    queued: QueuedInput | None = None
    duplicate: bool = False


class CancelConversationCommand(Struct, frozen=True):
    """Stop the current run. The supervisor sends this command as urgent, so that it overtakes all normal messages."""

    run_id: str = ""
    discard_queued: bool = False
    kill_jobs: bool = False
    reason: str = ""


class CancelConversationResult(Struct, frozen=True):
    """The result of a cancel: what was stopped."""

    no_op: bool
    state: StateSummary
    state_entered_at: int
    """When the conversation entered `state`, in milliseconds since 1970."""
    recorded: bool = True
    """Whether the cancel is stored. If not, the work was stopped, `state` is the state before the cancel, and the
    commit is retried; queued messages are neither returned nor discarded yet."""
    run: str = ""
    revision: int = 0
    """The number of the conversation's latest event after the cancel."""
    llm_request_id: str = ""
    tool_use_ids: tuple[str, ...] = ()
    """The ids of the unfinished tool calls, to which the server itself gave a result, in the order of the calls."""
    sub_agents: tuple[str, ...] = ()
    settled: tuple[QueueChanged, ...] = ()
    """The queued messages that the cancel returned to their senders or discarded."""
    settled_at: int = 0
    ended_jobs: tuple[str, ...] = ()
    surviving_jobs: tuple[str, ...] = ()
    """Jobs that continue to run."""


class ResolveApprovalCommand(Struct, frozen=True):
    """Approve or deny a tool call. The result is the conversation's ConversationRecord."""

    tool_use_id: str
    approve: bool
    rule: context.ApprovalRule | None = None
    """A rule to create together with the decision; its action is set to allow or deny, like the decision."""
    note: str = ""
    principal: str = ""


class CreateApprovalRuleCommand(Struct, frozen=True):
    """Create an approval rule. The result is the rule as it is stored."""

    rule: context.ApprovalRule
    principal: str
    request_id: str = ""
    body_hash: str = ""


class DeleteApprovalRuleCommand(Struct, frozen=True):
    """Delete an approval rule. The result is None."""

    rule_id: str
    principal: str


class SubmitToolResultCommand(Struct, frozen=True):
    tool_use_id: str
    result: ToolSuccess | ToolError
    request_id: str = ""
    body_hash: str = ""


class SubmitToolResultResult(Struct, frozen=True):
    """The message that contains the result. Stored as JSON, so that a repeated request gets the same answer."""

    message: Message
    duplicate: bool = False
    """Whether this result had already been accepted, so that this command changed nothing."""


class AnswerQuestionCommand(Struct, frozen=True):
    """Answer or decline a question of a running tool. The result is the QuestionChanged notification to clients."""

    number: int
    """The question's number in its conversation; 0 if the name that the client gave for the question is invalid."""
    accept: bool
    content: str = ""
    request_id: str = ""
    body_hash: str = ""


class SetModeCommand(Struct, frozen=True):
    """Set the permission mode of tools that start from now on. The mailbox delivers it before all normal messages."""

    mode: context.Mode
    stop_running: bool = False
    """Whether to stop the calls, jobs and MCP programs with more rights than the new mode gives."""


class SetModeResult(Struct, frozen=True):
    """The record with its new mode, and the work with more rights than that mode gives: stopped or surviving."""

    record: ConversationRecord
    surviving_jobs: tuple[str, ...] = ()
    """These jobs (like the surviving calls and MCP servers) continue to run with more rights than the mode gives."""
    surviving_calls: tuple[str, ...] = ()
    ended_jobs: tuple[str, ...] = ()
    stopped_calls: tuple[str, ...] = ()
    surviving_mcp_servers: tuple[str, ...] = ()
    stopped_mcp_servers: tuple[str, ...] = ()


class TriggerContinuationCommand(Struct, frozen=True):
    """Summarize this conversation now. The result is the ConversationRecord."""


class UpdateConversationCommand(Struct, frozen=True):
    """Change settings; a setting that is None stays unchanged. The result is the conversation's ConversationRecord."""

    etag: str = ""
    slug: str | None = None
    title: str | None = None
    model: str | None = None
    labels: dict[str, str] | None = None
    some_labels: dict[str, str | None] = {}
    """Labels to set or, if the value is None, to remove; all other labels stay."""
    approval_policy: context.ApprovalPolicy | None = None
    follow_up_policy: context.FollowUpPolicy | None = None
    budget: context.Budget | None = None
    some_amounts: dict[str, int] = {}
    """New values of individual budget fields, by field name; the other fields stay."""
    client_tools: tuple[context.ClientTool, ...] | None = None
    refuse_unoffered_tools: bool = False
    """Whether to refuse client tools that the conversation's mode does not offer to the agent."""
    generation: context.Generation | None = None
    some_generation: dict[str, context.ReasoningEffort | float | int | None] = {}
    """New values of individual generation settings, by field name; the other settings stay."""
    mcp_servers: tuple[context.ChosenMcpServer, ...] | None = None
    auto_continue: bool | None = None


class SetGeneratedTitleCommand(Struct, frozen=True):
    """Set a title that a model wrote ("" for none), unless the current title was changed meanwhile.

    The result is the ConversationRecord.
    """

    title: str
    instead_of: str
    """The title that may be replaced; if the current title differs, it stays."""
    usage: Usage | None = None


class ArchiveConversationCommand(Struct, frozen=True):
    """Set or clear the archive flag; setting it kills the background jobs. The result is the ConversationRecord."""

    archived: bool


class ContinueConversationCommand(Struct, frozen=True):
    """Create or find the successor of an exhausted conversation. The result is the successor's ConversationRecord."""

    include_summary: bool = False
    request_id: str = ""
    body_hash: str = ""


class ForkConversationCommand(Struct, frozen=True):
    """Copy a conversation up to the end of `run` ("": the last one). The result is the copy's ConversationRecord."""

    principal: str
    origin: str
    run: str = ""
    slug: str = ""
    title: str = ""
    """The title of the fork; "" for the title of the original conversation."""
    request_id: str = ""
    body_hash: str = ""


class DeleteConversationCommand(Struct, frozen=True):
    """Delete the conversation once all of its processes have exited. The result is a tuple of warnings."""

    force: bool = False
    """Whether to cancel a run first; without this, a busy conversation is not deleted."""
    archived_before: int | None = None
    """If set: delete only if archived before this time (Unix milliseconds), otherwise raise EtagMismatchError."""
    etag: str = ""
    """If not empty: delete only if the conversation has this etag, otherwise raise EtagMismatchError."""


class SpawnSubAgentsTask(Struct, frozen=True):
    """The task of one sub-agent, as a client requests it."""

    task: str
    model: str = ""
    max_turns: int = 0
    timeout_ms: int = 0
    read_first: tuple[str, ...] = ()
    working_directory: str = ""
    given: str = ""
    """The contents of the files listed in `read_first`; filled in by the server before the actor gets the command."""


class SpawnSubAgentsCommand(Struct, frozen=True):
    tasks: tuple[SpawnSubAgentsTask, ...]
    request_id: str = ""
    body_hash: str = ""


class SpawnSubAgentsResult(Struct, frozen=True):
    """The run and its sub-agents. Stored as JSON, so that a repeated request gets the same answer."""

    message: Message
    run: str
    sub_agents: tuple[str, ...]
    revision: int
    """The number of the conversation's latest event before the command."""


class WithdrawMessageCommand(Struct, frozen=True):
    message_id: str


class WithdrawMessageResult(Struct, frozen=True):
    """The notification that the message has left the queue, and when it was withdrawn (Unix milliseconds)."""

    change: QueueChanged
    at: int


CreatingCommand: TypeAlias = CreateConversationCommand | ForkConversationCommand

ConversationCommand: TypeAlias = (
    SendMessageCommand | CancelConversationCommand | ResolveApprovalCommand | SubmitToolResultCommand
    | AnswerQuestionCommand | SetModeCommand | TriggerContinuationCommand | ContinueConversationCommand
    | DeleteConversationCommand | SpawnSubAgentsCommand | WithdrawMessageCommand | UpdateConversationCommand
    | SetGeneratedTitleCommand | ArchiveConversationCommand | CreateApprovalRuleCommand | DeleteApprovalRuleCommand
)  # fmt: skip


class UnknownConversationError(Exception):
    """There is no conversation with this id."""


class UnknownApprovalRuleError(Exception):
    """The conversation has no approval rule with this id."""


class InvalidFieldError(Exception):
    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class DeadlineExceededError(Exception):
    """The command's deadline passed before it was applied."""


class EtagMismatchError(Exception):
    """The settings of the conversation have changed since the caller read them."""


class TaskRefusedError(Rejected):
    """A task of a SpawnSubAgents command was refused; no sub-agent was started."""

    def __init__(self, index: int, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.index = index


@dataclass(frozen=True)
class EffectOutcome:
    """An event for the state machine that reports the result of an effect (work that the state machine requested)."""

    event: Event
    urgent: bool = False
    origin: CommandOrigin | None = None
    """Who requested the event; set only for a cancel that the store could not save at first."""


class CreateSubAgent(Struct, frozen=True):
    """Create a sub-agent's conversation and start its task."""

    parent: ConversationRecord
    """The record of the parent conversation, whose state already lists this sub-agent as one to wait for."""
    task: AgentTask


class Wake(Struct, frozen=True):
    """Message to a conversation that this server took over: load it, end the interrupted run, and become idle."""


@dataclass(frozen=True)
class SubAgentStopped:
    """Message to the parent: the actor of this sub-agent has stopped, after all of the sub-agent's tools have ended."""

    agent_id: str


@dataclass(frozen=True)
class ToolsEnded:
    """Message to the conversation: all tool calls up to this one have ended, and none of their processes is left."""

    call: object
    """The message that sent the last call to the conversation's tool runner."""


@dataclass(frozen=True)
class ModelRequestOverdue:
    """Timer message to the conversation: the thread of a cancelled model request has still not returned."""

    request: object


@dataclass(frozen=True)
class JobExited:
    """A killed background job has exited, or its processes could not be confirmed dead before the time limit."""

    receipt: KillReceipt


class Created(Struct, frozen=True, omit_defaults=True, tag="created"):
    """The conversation was created."""

    at: int
    principal: str
    profile: context.Profile | None = None
    """The settings that the creator chose; None if all are defaults. Later values of these settings are not logged."""


class Forked(Struct, frozen=True, tag="forked"):
    """The conversation was created as a fork. The copied messages are stored as messages, not in the log."""

    at: int
    principal: str
    origin: str
    run: str
    """The id of the last copied run in the original conversation (the copy has another id)."""
    ledger: Ledger


class SettingsChanged(Struct, frozen=True, tag="settings_changed"):
    at: int
    fields: tuple[str, ...]


class ApprovalRulesChanged(Struct, frozen=True, omit_defaults=True, tag="approval_rules_changed"):
    """A person created or deleted an approval rule."""

    at: int
    principal: str
    made: context.ApprovalRule | None = None
    revoked: tuple[str, ...] = ()
    """The ids of the rules that no longer apply; a new rule replaces those with the same subject."""


class TreeReaped(Struct, frozen=True, tag="tree_reaped"):
    """The processes of a cancelled tool call have exited."""

    at: int
    tool_use_id: str


Entry: TypeAlias = Created | Forked | SettingsChanged | ApprovalRulesChanged | TreeReaped
