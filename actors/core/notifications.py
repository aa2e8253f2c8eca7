"""Notifications to clients.

They are stored with their transition and numbered (durable), except text deltas, which are never stored (ephemeral).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Message, ToolUse, Usage
from actors.core.context import ApprovalRule, Mode
from actors.core.errors import LlmFailure
from actors.core.states import AgentReport, ApprovalKind, BackgroundJob, Question, QuestionStatus, QueuedInput
from actors.core.summary import AgentSummary, ContextState, StateSummary


class StateChanged(Struct, frozen=True, tag="state_changed"):
    """The conversation's state has changed in a part that clients see."""

    state: StateSummary
    fsm_path: tuple[ContextState, ...]


class MessageAdded(Struct, frozen=True, tag="message_added"):
    """A message was stored. The conversation's actor creates this notification for every PersistMessage effect."""

    message: Message


class TextDelta(Struct, frozen=True, tag="text_delta"):
    """Ephemeral: the next part of the text that a model-request attempt streams."""

    request_id: str
    attempt: int
    text: str
    reasoning: bool = False


class StreamDiscarded(Struct, frozen=True, tag="stream_discarded"):
    """Clients must remove the text that was streamed for this attempt, because no message will contain it."""

    request_id: str
    attempt: int


class Retrying(Struct, frozen=True, tag="retrying"):
    """An attempt at a model request or tool call failed; the next one is due at `retry_at` (ms since the epoch)."""

    attempt: int
    max_attempts: int
    retry_at: int
    error: LlmFailure
    request_id: str = ""
    tool_use_id: str = ""


class Fate(StrEnum):
    QUEUED = "queued"
    DELIVERED = "delivered"
    RETURNED = "returned"
    DISCARDED = "discarded"
    WITHDRAWN = "withdrawn"


class QueueChanged(Struct, frozen=True, tag="queue_changed"):
    input: QueuedInput
    delivery: str
    """How the message reaches the agent: "steer" (joins the open run) or "follow_up" (begins the next run)."""
    fate: Fate


class ApprovalRequested(Struct, frozen=True, omit_defaults=True, tag="approval_requested"):
    call: ToolUse
    kind: ApprovalKind
    since: int
    suggestions: tuple[ApprovalRule, ...] = ()
    asked_by: ApprovalRule | None = None
    """The rule that made approval necessary: one that asks, or denies and might match the call. None if no rule did."""
    workspace: bool = False


class ApprovalDecision(StrEnum):
    APPROVE = "approve"
    DENY = "deny"
    WITHDRAWN = "withdrawn"


class ApprovalResolved(Struct, frozen=True, tag="approval_resolved"):
    """An approval request was decided or withdrawn. Each request has exactly one such notification."""

    tool_use_id: str
    decision: ApprovalDecision
    reason: str = ""


class CallStatus(StrEnum):
    """Whether a call still waits for a client's answer. PENDING is followed by exactly one of the other values."""

    PENDING = "pending"
    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


class ClientToolCall(Struct, frozen=True, tag="client_tool_call"):
    """A tool call began to wait for a client's answer, until `deadline` (ms since the epoch), or stopped waiting."""

    call: ToolUse
    status: CallStatus
    deadline: int


class QuestionChanged(Struct, frozen=True, tag="question_changed"):
    """A tool call began to wait for a person's answer to its question, or stopped waiting."""

    call: ToolUse
    question: Question
    status: QuestionStatus


class BackgroundJobChanged(Struct, frozen=True, tag="background_job_changed"):
    job: BackgroundJob


class UsageChanged(Struct, frozen=True, tag="usage_changed"):
    used_tokens: int
    window_tokens: int
    total: Usage
    warning: bool


class ContextWarning(Struct, frozen=True, tag="context_warning"):
    used_tokens: int
    window_tokens: int


class SubAgents(Struct, frozen=True, tag="sub_agents"):
    """A sub-agent ended. If it was the last one, the same commit adds all results to the history."""

    reports: tuple[AgentReport, ...]
    pending: tuple[AgentSummary, ...]


class ModeChanged(Struct, frozen=True, tag="mode_changed"):
    mode: Mode


class StopReason(StrEnum):
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class RunStop(Struct, frozen=True, tag="run_stop"):
    """A run ended; there is exactly one such notification per run."""

    run: str
    reason: StopReason
    detail: str = ""
    message: str = ""
    output: str = ""
    """For completed runs with an output schema: the value that the run ended with, as JSON."""


class ToolTreeReaped(Struct, frozen=True, tag="tool_tree_reaped"):
    """The processes of a killed call or job have ended, except leaked ones. Created by the actor."""

    tool_use_id: str
    pids: tuple[int, ...]
    milliseconds: int
    leaked: bool = False
    """Whether some processes could not be confirmed as ended before the time limit."""


class ConversationUpdated(Struct, frozen=True, tag="conversation_updated"):
    """Settings such as the title, the labels or the model changed. Created by the actor, not by the machine."""

    fields: tuple[str, ...]


Durable: TypeAlias = (
    StateChanged | MessageAdded | StreamDiscarded | Retrying | QueueChanged | ApprovalRequested | ApprovalResolved
    | ClientToolCall | QuestionChanged | BackgroundJobChanged | UsageChanged | ContextWarning | SubAgents
    | ModeChanged | RunStop | ToolTreeReaped | ConversationUpdated
)  # fmt: skip
Notification: TypeAlias = Durable | TextDelta
