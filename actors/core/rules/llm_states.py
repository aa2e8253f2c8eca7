"""The states of a model request: AwaitingLlm, LlmRequesting, and AwaitingContinuation, which asks for a summary."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import events
from actors.core.content import MessageType, SystemKind, Text, text_of
from actors.core.context import ConvContext
from actors.core.effects import TransitionResult
from actors.core.errors import ErrorKind, LlmFailure, Reason
from actors.core.notifications import StopReason
from actors.core.states import AwaitingContinuation, AwaitingLlm, LlmRequesting
from actors.core.steps import responses, runs, texts
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.notices import set_mode
from actors.core.steps.retries import back_off, may_retry
from actors.core.steps.transition_builder import TransitionBuilder, ignored


def when_awaiting_llm(state: AwaitingLlm, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.BeginLlm() if state.error:
            return runs.fail_run(TransitionBuilder(state, context, event.at), ErrorKind.REPEATED_FAILURE, state.error)
        case events.BeginLlm():
            return runs.begin_request(TransitionBuilder(state, context, event.at))
        case events.UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case events.UserCancel():
            return runs.cancel_run(TransitionBuilder(state, context, event.at), event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.Command():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            return runs.interrupt_run(TransitionBuilder(state, context, event.at))
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def when_llm_requesting(state: LlmRequesting, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.LlmOutcome():
            return _outcome(state, context, event) if responses.is_current(state, event) else ignored(state)
        case events.RetryTimeout():
            return (
                runs.retry_request(TransitionBuilder(state, context, event.at), state)
                if responses.is_due(state, event)
                else ignored(state)
            )
        case events.UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case events.UserCancel():
            return responses.cancel_request(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.Command():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            builder = TransitionBuilder(state, context, event.at)
            runs.discard_stream(builder, state)
            return runs.interrupt_run(builder)
        case events.SettleEvent() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def _outcome(state: LlmRequesting, context: ConvContext, event: responses.AttemptOutcome) -> TransitionResult:
    builder = TransitionBuilder(state, context, event.at)
    match event:
        case events.LlmStreamStarted():
            return responses.stream_started(builder, state)
        case events.LlmStreamChunk():
            return responses.stream_chunk(builder, state, event)
        case events.LlmResponse():
            return responses.handle_response(builder, state, event)
        case events.LlmError():
            runs.account_usage(builder, event.usage, fills_window=False)
            return responses.request_failed(builder, state, event.error, event.retry_after_ms)
        case events.LlmAborted():
            runs.account_usage(builder, event.usage, fills_window=False)
            return responses.request_failed(builder, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED))


def when_awaiting_continuation(
    state: AwaitingContinuation, context: ConvContext, event: events.GridEvent
) -> TransitionResult:
    match event:
        case events.LlmOutcome():
            return _summary_outcome(state, context, event) if responses.is_current(state, event) else ignored(state)
        case events.RetryTimeout():
            return (
                runs.retry_summary(TransitionBuilder(state, context, event.at), state)
                if responses.is_due(state, event)
                else ignored(state)
            )
        case events.UserMessage():
            raise refusal(context, event, Reason.CONTINUATION_IN_PROGRESS)
        case events.UserCancel():
            return responses.cancel_request(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.Command():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            builder = TransitionBuilder(state, context, event.at)
            runs.discard_stream(builder, state)
            if state.before is not None:
                _tell_failure(builder, LlmFailure(ErrorKind.INTERRUPTED, texts.RESTARTED))
            return runs.interrupt_run(builder)
        case events.SettleEvent() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def _summary_outcome(
    state: AwaitingContinuation, context: ConvContext, event: responses.AttemptOutcome
) -> TransitionResult:
    builder = TransitionBuilder(state, context, event.at)
    match event:
        case events.LlmStreamStarted():
            return responses.stream_started(builder, state)
        case events.LlmStreamChunk():
            return responses.stream_chunk(builder, state, event)
        case events.LlmResponse():
            runs.account_usage(builder, event.usage, fills_window=False)
            return _summarized(builder, state, event)
        case events.LlmError():
            runs.account_usage(builder, event.usage, fills_window=False)
            return _failed(builder, state, event.error, event.retry_after_ms)
        case events.LlmAborted():
            runs.account_usage(builder, event.usage, fills_window=False)
            return _failed(builder, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED), None)


def _summarized(builder: TransitionBuilder, state: AwaitingContinuation, event: events.LlmResponse) -> TransitionResult:
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
    return runs.exhaust_context(builder, summary, _reason(state))


def _kind_of(event: events.LlmResponse) -> ErrorKind:
    if event.refusal:
        return ErrorKind.CONTENT_FILTER
    return ErrorKind.CONTEXT_EXHAUSTED if event.context_full else ErrorKind.SERVER_ERROR


def _failed(
    builder: TransitionBuilder, state: AwaitingContinuation, failure: LlmFailure, retry_after_ms: int | None
) -> TransitionResult:
    if may_retry(failure, state.attempt, builder.context.limits, retry_after_ms):
        return back_off(builder, state, failure, retry_after_ms)
    cause = responses.error_text(builder, state.attempt, failure, retry_after_ms)
    return _not_summarized(builder, state, replace(failure, message=cause))


def _not_summarized(builder: TransitionBuilder, state: AwaitingContinuation, failure: LlmFailure) -> TransitionResult:
    """End the conversation without a summary if its context is full; otherwise return to the previous state."""
    runs.discard_stream(builder, state)
    if state.before is None or failure.kind is ErrorKind.CONTEXT_EXHAUSTED:
        return runs.exhaust_with_fallback(builder, StopReason.ERROR if state.unanswered else _reason(state))
    _tell_failure(builder, failure)
    return builder.finish(replace(state.before, ledger=builder.ledger))


def _tell_failure(builder: TransitionBuilder, failure: LlmFailure) -> None:
    text = texts.summary_failed(failure.message)
    builder.add_message(MessageType.ERROR, Text(text), error_kind=failure.kind.value)


def _reason(state: AwaitingContinuation) -> StopReason:
    return StopReason.INTERRUPTED if state.rejected or state.unanswered else StopReason.COMPLETED
