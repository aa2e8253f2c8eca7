"""The state LlmRequesting: a model request is running, or waits for its next attempt (REQ-BED-003, 005, 006)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import ErrorKind, LlmFailure, Reason
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
from actors.core.steps import texts
from actors.core.steps.attempts import AttemptOutcome, cancel_request, is_current, is_due, stream_chunk, stream_started
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.inference import discard_stream, retry_request
from actors.core.steps.modes import set_mode
from actors.core.steps.responses import handle_response
from actors.core.steps.retries import request_failed
from actors.core.steps.run_endings import interrupt_run
from actors.core.steps.transition_builder import TransitionBuilder
from actors.core.steps.usage import account_usage

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import LlmRequesting


def when_llm_requesting(state: LlmRequesting, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in LlmRequesting. Raises Rejected for commands that this state does not accept."""
    match event:
        case LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError() | LlmAborted():
            return _outcome(state, context, event) if is_current(state, event) else ignored(state)
        case RetryTimeout():
            return (
                retry_request(TransitionBuilder(state, context, event.at), state)
                if is_due(state, event)
                else ignored(state)
            )
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return cancel_request(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            builder = TransitionBuilder(state, context, event.at)
            discard_stream(builder, state)
            return interrupt_run(builder)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


def _outcome(state: LlmRequesting, context: ConvContext, event: AttemptOutcome) -> TransitionResult:
    builder = TransitionBuilder(state, context, event.at)
    match event:
        case LlmStreamStarted():
            return stream_started(builder, state)
        case LlmStreamChunk():
            return stream_chunk(builder, state, event)
        case LlmResponse():
            return handle_response(builder, state, event)
        case LlmError():
            account_usage(builder, event.usage, fills_window=False)
            return request_failed(builder, state, event.error, event.retry_after_ms)
        case LlmAborted():
            account_usage(builder, event.usage, fills_window=False)
            return request_failed(builder, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED))
