"""AwaitingContinuation: the context is full, its summary is being written (REQ-BED-019 to 021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, SystemKind, Text, text_of
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
from actors.core.notifications import StopReason
from actors.core.result import TransitionResult, ignored
from actors.core.steps import texts
from actors.core.steps.attempts import AttemptOutcome, cancel_request, concerns, is_due, stream_chunk, stream_started
from actors.core.steps.command_steps import refusal
from actors.core.steps.inference import discard_stream, retry_summary
from actors.core.steps.modes import set_mode
from actors.core.steps.responses import account
from actors.core.steps.retries import back_off, may_retry
from actors.core.steps.run_endings import exhaust, exhaust_with_fallback, interrupted
from actors.core.steps.transition_builder import Draft

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import AwaitingContinuation


def when_awaiting_continuation(state: AwaitingContinuation, context: ConvContext, event: GridEvent) -> TransitionResult:
    """What happens to each event in AwaitingContinuation."""
    match event:
        case LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError() | LlmAborted():
            return _outcome(state, context, event) if concerns(state, event) else ignored(state)
        case RetryTimeout():
            return retry_summary(Draft(state, context, event.at), state) if is_due(state, event) else ignored(state)
        case UserMessage():
            raise refusal(context, event, Reason.CONTINUATION_IN_PROGRESS)
        case UserCancel():
            return cancel_request(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            draft = Draft(state, context, event.at)
            discard_stream(draft, state)
            return interrupted(draft)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


def _outcome(state: AwaitingContinuation, context: ConvContext, event: AttemptOutcome) -> TransitionResult:
    draft = Draft(state, context, event.at)
    match event:
        case LlmStreamStarted():
            return stream_started(draft, state)
        case LlmStreamChunk():
            return stream_chunk(draft, state, event)
        case LlmResponse():
            account(draft, event.usage, fills_window=False)
            return _summarized(draft, state, event)
        case LlmError():
            account(draft, event.usage, fills_window=False)
            return _failed(draft, state, event.error, event.retry_after_ms)
        case LlmAborted():
            account(draft, event.usage, fills_window=False)
            return _failed(draft, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED), None)


def _summarized(draft: Draft, state: AwaitingContinuation, event: LlmResponse) -> TransitionResult:
    summary = text_of(event.content).strip()
    if not summary or event.refusal:
        discard_stream(draft, state)
        return exhaust_with_fallback(draft, _reason(state))
    draft.say(
        MessageType.SYSTEM,
        Text(summary),
        request=(state.request_id, state.attempt),
        through_sequence=state.through_sequence,
        usage=event.usage,
        system_kind=SystemKind.SUMMARY,
    )
    return exhaust(draft, summary, _reason(state))


def _failed(
    draft: Draft, state: AwaitingContinuation, failure: LlmFailure, retry_after_ms: int | None
) -> TransitionResult:
    if may_retry(draft, state, failure, retry_after_ms):
        return back_off(draft, state, failure, retry_after_ms)
    discard_stream(draft, state)
    return exhaust_with_fallback(draft, _reason(state))


def _reason(state: AwaitingContinuation) -> StopReason:
    """A run whose tools were kept from running did not complete (C33)."""
    return StopReason.INTERRUPTED if state.rejected else StopReason.COMPLETED
