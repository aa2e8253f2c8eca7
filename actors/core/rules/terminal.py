"""The terminal states: ContextExhausted, and for sub-agents Completed and Failed. No event leads out of them."""

from __future__ import annotations

from actors.core.errors import Reason, Rejected
from actors.core.events import (
    AgentsSpawned,
    ApprovalResponse,
    BeginLlm,
    CancelTimeout,
    FinishCancel,
    GridEvent,
    LlmAborted,
    LlmError,
    LlmResponse,
    LlmStreamChunk,
    LlmStreamStarted,
    PromoteFollowUp,
    Restart,
    RetryTimeout,
    SetMode,
    SpawnSubAgents,
    StartSubAgent,
    SubAgentResult,
    SubAgentTimeout,
    ToolAborted,
    ToolComplete,
    ToolRetryTimeout,
    ToolTransient,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.result import TransitionResult, ignored
from actors.core.states import Completed, ContextExhausted, Failed


def when_terminal(state: ContextExhausted | Completed | Failed, event: GridEvent) -> TransitionResult:
    """Handle an event in a terminal state. Raises Rejected for all commands except a cancel, which is ignored."""
    match event:
        case UserMessage():
            exhausted = isinstance(state, ContextExhausted)
            raise Rejected(Reason.CONTEXT_EXHAUSTED if exhausted else Reason.TERMINAL)
        case SetMode() | ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise Rejected(Reason.TERMINAL)
        case UserCancel() | Restart():
            return ignored(state)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)
