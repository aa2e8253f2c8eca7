"""What clients are told. Durable ones are stored with the transition and numbered; tokens are passing."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Message, ToolUse, Usage
from actors.core.context import Mode
from actors.core.errors import LlmFailure
from actors.core.fsm import ContextState
from actors.core.states import AgentReport, ApprovalKind, QueuedInput
from actors.core.summary import AgentSummary, StateSummary


class StateChanged(Struct, frozen=True, tag="state_changed"):
    """The state is another one, or shows something else."""

    state: StateSummary
    fsm_path: tuple[ContextState, ...]


class MessageAdded(Struct, frozen=True, tag="message_added"):
    """A message was stored; made by the actor for every PersistMessage."""

    message: Message


class TextDelta(Struct, frozen=True, tag="text_delta"):
    """Ephemeral: the next text of a request's attempt."""

    request_id: str
    attempt: int
    text: str
    reasoning: bool = False


class StreamDiscarded(Struct, frozen=True, tag="stream_discarded"):
    """The text streamed for this request and attempt is void (C6)."""

    request_id: str
    attempt: int


class Retrying(Struct, frozen=True, tag="retrying"):
    """An attempt failed, the next one is due at `retry_at`."""

    attempt: int
    """The attempt that comes."""
    max_attempts: int
    retry_at: int
    error: LlmFailure
    request_id: str = ""
    tool_use_id: str = ""


class Fate(StrEnum):
    """What became of an accepted input."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    RETURNED = "returned"
    DISCARDED = "discarded"
    WITHDRAWN = "withdrawn"


class QueueChanged(Struct, frozen=True, tag="queue_changed"):
    """A waiting input came or went."""

    input: QueuedInput
    delivery: str
    """"steer" or "follow_up"."""
    fate: Fate


class ApprovalRequested(Struct, frozen=True, tag="approval_requested"):
    """A person is asked."""

    call: ToolUse
    kind: ApprovalKind
    since: int


class Decision(StrEnum):
    """How a question ended."""

    APPROVE = "approve"
    DENY = "deny"
    WITHDRAWN = "withdrawn"


class ApprovalResolved(Struct, frozen=True, tag="approval_resolved"):
    """A question ended; every one that was asked does so exactly once."""

    tool_use_id: str
    decision: Decision
    reason: str = ""


class UsageChanged(Struct, frozen=True, tag="usage_changed"):
    """A response brought usage."""

    used_tokens: int
    window_tokens: int
    total: Usage
    warning: bool


class ContextWarning(Struct, frozen=True, tag="context_warning"):
    """The context crossed the warning threshold (C49)."""

    used_tokens: int
    window_tokens: int


class SubAgents(Struct, frozen=True, tag="sub_agents"):
    """A sub-agent ended that was waited for. After the last one the results of all follow in the same commit."""

    reports: tuple[AgentReport, ...]
    pending: tuple[AgentSummary, ...]


class ModeChanged(Struct, frozen=True, tag="mode_changed"):
    """The mode is another one."""

    mode: Mode


class StopReason(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class RunStop(Struct, frozen=True, tag="run_stop"):
    """A run ended; exactly one per run (decision 8 in docs/semantics.md)."""

    run: str
    reason: StopReason
    detail: str = ""
    message: str = ""
    """For errors: what happened and what to do."""


class ToolTreeReaped(Struct, frozen=True, tag="tool_tree_reaped"):
    """The processes of a cancelled call are gone: the cancel receipt. Made by the actor."""

    tool_use_id: str
    pids: tuple[int, ...]
    milliseconds: int
    leaked: bool = False
    """True: they could not be confirmed dead within the bound."""


class ConversationUpdated(Struct, frozen=True, tag="conversation_updated"):
    """A setting changed: title, slug, labels, model, policies, archive flag. Made by the actor."""

    fields: tuple[str, ...]


Durable: TypeAlias = (
    StateChanged
    | MessageAdded
    | StreamDiscarded
    | Retrying
    | QueueChanged
    | ApprovalRequested
    | ApprovalResolved
    | UsageChanged
    | ContextWarning
    | SubAgents
    | ModeChanged
    | RunStop
    | ToolTreeReaped
    | ConversationUpdated
)
Notification: TypeAlias = Durable | TextDelta
