"""The states of a model request: AwaitingLlm, LlmRequesting, and AwaitingContinuation, which asks for a summary."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core.content import MessageType, SystemKind, Text, text_of
from actors.core.context import ConvContext
from actors.core.effects import TransitionResult, ignored
from actors.core.errors import ErrorKind, LlmFailure, Reason
from actors.core.events import (
    ApprovalResponse,
    BeginLlm,
    CancelTimeout,
    FinishCancel,
    GridEvent,
    LlmAborted,
    LlmError,
    LlmOutcome,
    LlmResponse,
    LlmStreamChunk,
    LlmStreamStarted,
    PromoteFollowUp,
    Restart,
    RetryTimeout,
    SetMode,
    SettleEvent,
    SpawnSubAgents,
    StartSubAgent,
    SubAgentResult,
    SubAgentTimeout,
    Timer,
    ToolEvent,
    ToolRetryTimeout,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import StopReason
from actors.core.states import AwaitingContinuation, AwaitingLlm, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.inference import begin_request, discard_stream, retry_request, retry_summary
from actors.core.steps.notices import set_mode
from actors.core.steps.responses import (
    AttemptOutcome,
    back_off,
    cancel_request,
    error_text,
    handle_response,
    is_current,
    is_due,
    may_retry,
    request_failed,
    stream_chunk,
    stream_started,
)
from actors.core.steps.runs import (
    account_usage,
    cancel_run,
    exhaust_context,
    exhaust_with_fallback,
    fail_run,
    interrupt_run,
)
from actors.core.steps.transition_builder import TransitionBuilder


def when_awaiting_llm(state: AwaitingLlm, context: ConvContext, event: GridEvent) -> TransitionResult:
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
        case LlmOutcome() | ToolEvent() | Timer() | FinishCancel() | PromoteFollowUp() | SubAgentResult():
            return ignored(state)


def when_llm_requesting(state: LlmRequesting, context: ConvContext, event: GridEvent) -> TransitionResult:
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
        case SettleEvent() | ToolEvent() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout():
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


def when_awaiting_continuation(state: AwaitingContinuation, context: ConvContext, event: GridEvent) -> TransitionResult:
    match event:
        case LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError() | LlmAborted():
            return _summary_outcome(state, context, event) if is_current(state, event) else ignored(state)
        case RetryTimeout():
            return (
                retry_summary(TransitionBuilder(state, context, event.at), state)
                if is_due(state, event)
                else ignored(state)
            )
        case UserMessage():
            raise refusal(context, event, Reason.CONTINUATION_IN_PROGRESS)
        case UserCancel():
            return cancel_request(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            builder = TransitionBuilder(state, context, event.at)
            discard_stream(builder, state)
            if state.before is not None:
                _tell_failure(builder, LlmFailure(ErrorKind.INTERRUPTED, texts.RESTARTED))
            return interrupt_run(builder)
        case SettleEvent() | ToolEvent() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout():
            return ignored(state)


def _summary_outcome(state: AwaitingContinuation, context: ConvContext, event: AttemptOutcome) -> TransitionResult:
    builder = TransitionBuilder(state, context, event.at)
    match event:
        case LlmStreamStarted():
            return stream_started(builder, state)
        case LlmStreamChunk():
            return stream_chunk(builder, state, event)
        case LlmResponse():
            account_usage(builder, event.usage, fills_window=False)
            return _summarized(builder, state, event)
        case LlmError():
            account_usage(builder, event.usage, fills_window=False)
            return _failed(builder, state, event.error, event.retry_after_ms)
        case LlmAborted():
            account_usage(builder, event.usage, fills_window=False)
            return _failed(builder, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED), None)


def _summarized(builder: TransitionBuilder, state: AwaitingContinuation, event: LlmResponse) -> TransitionResult:
    summary = text_of(event.content).strip()
    if not summary or event.refusal:
        cause = texts.SUMMARY_REFUSED if event.refusal else texts.NO_SUMMARY
        return _not_summarized(builder, state, LlmFailure(_kind_of(event), cause))
    builder.add_message(
        MessageType.SYSTEM,
        Text(summary),
        request=(state.request_id, state.attempt),
        through_sequence=state.through_sequence,
        usage=event.usage,
        system_kind=SystemKind.SUMMARY,
    )
    return exhaust_context(builder, summary, _reason(state))


def _kind_of(event: LlmResponse) -> ErrorKind:
    if event.refusal:
        return ErrorKind.CONTENT_FILTER
    return ErrorKind.CONTEXT_EXHAUSTED if event.context_full else ErrorKind.SERVER_ERROR


def _failed(
    builder: TransitionBuilder, state: AwaitingContinuation, failure: LlmFailure, retry_after_ms: int | None
) -> TransitionResult:
    if may_retry(builder, state, failure, retry_after_ms):
        return back_off(builder, state, failure, retry_after_ms)
    cause = error_text(builder, state.attempt, failure, retry_after_ms)
    return _not_summarized(builder, state, replace(failure, message=cause))


def _not_summarized(builder: TransitionBuilder, state: AwaitingContinuation, failure: LlmFailure) -> TransitionResult:
    """End the conversation without a summary if its context is full; otherwise lead it back to the state before."""
    discard_stream(builder, state)
    if state.before is None or failure.kind is ErrorKind.CONTEXT_EXHAUSTED:
        return exhaust_with_fallback(builder, StopReason.ERROR if state.unanswered else _reason(state))
    _tell_failure(builder, failure)
    return builder.finish(replace(state.before, ledger=builder.ledger))


def _tell_failure(builder: TransitionBuilder, failure: LlmFailure) -> None:
    text = texts.summary_failed(failure.message)
    builder.add_message(MessageType.ERROR, Text(text), error_kind=failure.kind.value)


def _reason(state: AwaitingContinuation) -> StopReason:
    return StopReason.INTERRUPTED if state.rejected or state.unanswered else StopReason.COMPLETED
