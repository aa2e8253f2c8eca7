"""The state Error: the last run failed; the next message begins another run (REQ-BED-006)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import Reason
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
from actors.core.notifications import StopReason
from actors.core.result import TransitionResult, ignored
from actors.core.rules.idle import promote
from actors.core.steps.command_steps import refusal, spawn_from_command, start_run, trigger_summary
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import become_idle
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import Error


def when_error(state: Error, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in Error. Raises Rejected for commands that this state does not accept."""
    match event:
        case UserMessage():
            return start_run(state, context, event)
        case SpawnSubAgents():
            return spawn_from_command(state, context, event)
        case TriggerContinuation():
            return trigger_summary(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | StartSubAgent():
            raise refusal(context, event, Reason.NOT_AWAITING_APPROVAL)
        case Restart():
            return become_idle(
                TransitionBuilder(state, context, event.at), StopReason.INTERRUPTED, "restart", drop_queue=True
            )
        case PromoteFollowUp():
            return promote(state, context, event)
        case UserCancel():
            return ignored(state)
        case (
            BeginLlm() | FinishCancel() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError()
            | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted() | AgentsSpawned()
            | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)
