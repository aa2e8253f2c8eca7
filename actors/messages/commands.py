"""The commands of a conversation, as the gRPC service and tests send them, and their results.

A command is named after its RPC. It is sent in an AskEnvelope with a deadline, after which it is dropped without being
applied. It is refused with core.errors.Rejected or with one of actors.messages.refusals; no other exceptions are raised
to the sender.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from msgspec import Struct

from actors.core.approval.approval_rules import ApprovalRule
from actors.core.content import Image, Message, ToolError, ToolSuccess, Usage
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.notifications import QueueChanged
from actors.core.profile import ChosenMcpServer, ClientTool, Generation, Profile, ReasoningEffort
from actors.core.states import QueuedInput
from actors.core.summary import StateSummary
from actors.ports import ConversationRecord


class CreateConversationCommand(Struct, frozen=True):
    """Create a conversation. The result is its record."""

    principal: str
    working_directory: str
    model: str = ""
    slug: str = ""
    title: str = ""
    mode: Mode | None = None
    labels: dict[str, str] = {}
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    profile: Profile = Profile()
    request_id: str = ""
    body_hash: str = ""


class SendMessageCommand(Struct, frozen=True):
    """Send a user message."""

    text: str
    delivery: str = "reject"
    images: tuple[Image, ...] = ()
    expected_run: str = ""
    generation: Generation | None = None
    output_schema: str = ""
    """The JSON Schema of the value that the run is to end with, as JSON; "" for none."""
    request_id: str = ""
    body_hash: str = ""


class SendMessageResult(Struct, frozen=True):
    """How a message was accepted. Stored as JSON, to answer the same request again."""

    message_id: str
    disposition: str
    """"direct", "steer_queued", "follow_up_queued"."""
    run: str
    """Id of the run; empty while a follow-up waits."""
    revision: int
    """A subscription after this revision sees all events that the message causes."""
    message: Message | None = None
    queued: QueuedInput | None = None
    duplicate: bool = False


class CancelConversationCommand(Struct, frozen=True):
    """Stop the current run. Handled before all normal messages."""

    run_id: str = ""
    discard_queued: bool = False
    kill_jobs: bool = False
    reason: str = ""


class CancelConversationResult(Struct, frozen=True):
    """The result of a cancel: what was stopped."""

    no_op: bool
    state: StateSummary
    recorded: bool = True
    """Whether the cancel is stored. If not, everything below was stopped, but the store cannot save it now: the commit
    is retried, `state` is the one before the cancel, and the queue is not settled yet."""
    run: str = ""
    revision: int = 0
    """The newest revision after the cancel."""
    llm_request_id: str = ""
    tool_use_ids: tuple[str, ...] = ()
    """Calls that got a synthetic result, in request order."""
    sub_agents: tuple[str, ...] = ()
    settled: tuple[QueueChanged, ...] = ()
    """The steers and follow-ups that the cancel has returned or discarded."""
    settled_at: int = 0
    ended_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that were killed. An event reports the exit of each."""
    surviving_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that continue to run."""


class ResolveApprovalCommand(Struct, frozen=True):
    """Approve or deny a tool call. The result is the record."""

    tool_use_id: str
    approve: bool
    rule: ApprovalRule | None = None
    """A rule to make with the answer; its action is that of the answer, whatever it says."""
    note: str = ""
    principal: str = ""


class CreateApprovalRuleCommand(Struct, frozen=True):
    """Make an approval rule. The result is the rule as it is kept."""

    rule: ApprovalRule
    """Its action and subject; the rest is filled in."""
    principal: str
    request_id: str = ""
    body_hash: str = ""


class DeleteApprovalRuleCommand(Struct, frozen=True):
    """Revoke an approval rule. The result is None."""

    rule_id: str
    principal: str


class SubmitToolResultCommand(Struct, frozen=True):
    """Answer a call of a client's tool."""

    tool_use_id: str
    result: ToolSuccess | ToolError
    request_id: str = ""
    body_hash: str = ""


class SubmitToolResultResult(Struct, frozen=True):
    """The message that holds the result. Stored as JSON, to answer the same request again."""

    message: Message
    duplicate: bool = False
    """Whether the call had got this answer before."""


class AnswerQuestionCommand(Struct, frozen=True):
    """Answer or decline what a running tool asks a person. The result is the QuestionChanged that clients are told."""

    number: int
    """The question's number in its conversation; 0: there is none of this name."""
    accept: bool
    content: str = ""
    """What was filled into the form, a JSON object; "" for nothing."""
    request_id: str = ""
    body_hash: str = ""


class SetModeCommand(Struct, frozen=True):
    """Set the mode of tools that start from now on. Handled before all normal messages."""

    mode: Mode
    stop_running: bool = False
    """Whether to stop the call and the background jobs that run with more rights than the mode gives."""


class SetModeResult(Struct, frozen=True):
    """The record in its new mode, and the calls and jobs that have, or had, more rights than the mode gives."""

    record: ConversationRecord
    surviving_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that continue to run."""
    surviving_calls: tuple[str, ...] = ()
    """Ids of the tool calls that continue to run."""
    ended_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that were killed. An event reports the exit of each."""
    stopped_calls: tuple[str, ...] = ()
    """Ids of the tool calls that were stopped."""


class TriggerContinuationCommand(Struct, frozen=True):
    """Write the continuation summary now. The result is the record."""


class UpdateConversationCommand(Struct, frozen=True):
    """Change settings; None leaves a field as it is. The result is the record."""

    etag: str = ""
    slug: str | None = None
    title: str | None = None
    model: str | None = None
    labels: dict[str, str] | None = None
    some_labels: dict[str, str | None] = {}
    """Labels to set, and with None to remove; the others stay."""
    approval_policy: ApprovalPolicy | None = None
    follow_up_policy: FollowUpPolicy | None = None
    budget: Budget | None = None
    some_amounts: dict[str, int] = {}
    """Fields of the budget to set; the others stay."""
    client_tools: tuple[ClientTool, ...] | None = None
    generation: Generation | None = None
    some_generation: dict[str, ReasoningEffort | float | int | None] = {}
    """Fields of the generation to set; the others stay."""
    mcp_servers: tuple[ChosenMcpServer, ...] | None = None


class SetGeneratedTitleCommand(Struct, frozen=True):
    """Set a title that a model wrote, unless the title was changed meanwhile. The result is the record."""

    title: str
    """The title; empty if the query failed, so that only its usage is recorded."""
    instead_of: str
    """The title that it may replace; if the present one differs, nothing changes."""
    usage: Usage | None = None
    """The usage of the query that wrote the title."""


class ArchiveConversationCommand(Struct, frozen=True):
    """Set or clear the archive flag; setting it kills the background jobs. The result is the record."""

    archived: bool


class ContinueConversationCommand(Struct, frozen=True):
    """Create, or find, the successor of an exhausted conversation. The result is the successor's record."""

    include_summary: bool = False
    request_id: str = ""
    body_hash: str = ""


class ForkConversationCommand(Struct, frozen=True):
    """Create a conversation with the history of another one up to the end of a run. The result is its record."""

    principal: str
    origin: str
    """The id of the conversation to fork."""
    run: str = ""
    """The id of the last run that the fork contains; "": the last one that has ended."""
    slug: str = ""
    title: str = ""
    """The title; "": that of the origin."""
    request_id: str = ""
    body_hash: str = ""


class DeleteConversationCommand(Struct, frozen=True):
    """Delete the conversation once all of its processes have exited. The result is a tuple of warnings."""

    force: bool = False
    """Whether to cancel a run first; without it, a busy conversation is not deleted."""
    archived_before: int | None = None
    """Delete only if it has been archived since before this time (Unix milliseconds); else EtagMismatchError."""
    etag: str = ""
    """Delete only if the conversation has this etag, unless empty; else EtagMismatchError."""


class SpawnSubAgentsTask(Struct, frozen=True):
    """The task of one sub-agent, as a client asks for it."""

    task: str
    model: str = ""
    """The model; "": that of the conversation."""
    max_turns: int = 0
    """Maximum number of turns; 0: the server's default."""
    timeout_ms: int = 0
    """Time limit in milliseconds; 0: the server's default."""
    read_first: tuple[str, ...] = ()
    working_directory: str = ""
    """The working directory; "": that of the conversation."""
    given: str = ""
    """The contents of the files of `read_first`, which the supervisor fills in before it delivers the command."""


class SpawnSubAgentsCommand(Struct, frozen=True):
    """Start a run that consists of sub-agents."""

    tasks: tuple[SpawnSubAgentsTask, ...]
    request_id: str = ""
    body_hash: str = ""


class SpawnSubAgentsResult(Struct, frozen=True):
    """The run and its sub-agents. Stored as JSON, to answer the same request again."""

    message: Message
    """The root message of the run."""
    run: str
    sub_agents: tuple[str, ...]
    """The ids of their conversations, in the order of the tasks."""
    revision: int
    """The newest revision before the command."""


class WithdrawMessageCommand(Struct, frozen=True):
    """Withdraw a queued steer or follow-up. The result is a WithdrawMessageResult."""

    message_id: str


class WithdrawMessageResult(Struct, frozen=True):
    """The message that was withdrawn, and when (Unix milliseconds)."""

    change: QueueChanged
    at: int


CreatingCommand: TypeAlias = CreateConversationCommand | ForkConversationCommand
"""A command to a conversation that does not exist yet."""
SettingsCommand: TypeAlias = (
    UpdateConversationCommand
    | SetGeneratedTitleCommand
    | ArchiveConversationCommand
    | CreateApprovalRuleCommand
    | DeleteApprovalRuleCommand
)
"""A command that changes what belongs to a conversation beside its machine."""

ConversationCommand: TypeAlias = (
    SendMessageCommand
    | CancelConversationCommand
    | ResolveApprovalCommand
    | SubmitToolResultCommand
    | AnswerQuestionCommand
    | SetModeCommand
    | TriggerContinuationCommand
    | ContinueConversationCommand
    | DeleteConversationCommand
    | SpawnSubAgentsCommand
    | WithdrawMessageCommand
    | SettingsCommand
)
"""A command to an existing conversation."""


def etag_of(record: ConversationRecord) -> str:
    """Return the etag: a hash of the settings, the mode and the archive time."""
    settings = (
        record.slug, record.title, record.model, sorted(record.labels.items()), record.approval_policy,
        record.follow_up_policy, record.budget, record.archived_at, record.mode, record.profile.client_tools,
        record.profile.generation,
        record.profile.mcp_servers,
    )  # fmt: skip
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
