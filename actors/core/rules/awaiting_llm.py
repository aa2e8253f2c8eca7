"""The state AwaitingLlm: a model request is due. The event BeginLlm always ends this state in the same commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import ErrorKind, Reason
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
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.inference import begin_request
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import cancel_run, fail_run, interrupt_run
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import AwaitingLlm


def when_awaiting_llm(state: AwaitingLlm, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in AwaitingLlm. Raises Rejected for commands that this state does not accept."""
    match event:
        case BeginLlm() if state.error:
            return fail_run(TransitionBuilder(state, context, event.at), ErrorKind.REPEATED_FAILURE, state.error)
        case BeginLlm():
            return begin_request(TransitionBuilder(state, context, event.at))
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return cancel_run(TransitionBuilder(state, context, event.at), event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            return interrupt_run(TransitionBuilder(state, context, event.at))
        case (
            FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError()
            | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted() | AgentsSpawned()
            | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)
