"""Failed attempts of model requests: they are retried after a wait, or end the run (REQ-BED-006)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import retry
from actors.core.context import Rules
from actors.core.effects import RetryOf, ScheduleRetry
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.fsm import ContextState
from actors.core.notifications import Retrying, StopReason
from actors.core.states import AwaitingContinuation, LlmPhase, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.inference import begin_summary, discard_stream
from actors.core.steps.run_endings import exhaust_with_fallback, fail_run

if TYPE_CHECKING:
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder


def request_failed(
    builder: TransitionBuilder, state: LlmRequesting, failure: LlmFailure, retry_after_ms: int | None = None
) -> TransitionResult:
    """Retry if the failure is retryable and the limits allow it; otherwise end the run, or sum up a full context.

    `retry_after_ms` is the wait that the provider asked for.
    """
    if may_retry(builder, state, failure, retry_after_ms):
        return back_off(builder, state, failure, retry_after_ms)
    discard_stream(builder, state)
    if failure.kind is ErrorKind.CONTEXT_EXHAUSTED and not builder.context.is_sub_agent:
        if builder.context.rules < Rules.NOTHING_LOST:
            return exhaust_with_fallback(builder, StopReason.ERROR)
        return begin_summary(builder, (), ContextState.PROCESSING_LLM_RESPONSE, unanswered=True)
    through = (ContextState.TRANSIENT_FAILURE,) if failure.retryable else ()
    return fail_run(builder, failure.kind, error_text(builder, state.attempt, failure, retry_after_ms), *through)


def may_retry(
    builder: TransitionBuilder,
    state: LlmRequesting | AwaitingContinuation,
    failure: LlmFailure,
    retry_after_ms: int | None,
) -> bool:
    """Return whether to retry: the failure is retryable, attempts are left, and the wait is within the limit."""
    limits = builder.context.limits
    return (
        failure.retryable and retry.attempts_left(state.attempt, limits) and not retry.too_long(retry_after_ms, limits)
    )


def back_off(
    builder: TransitionBuilder,
    state: LlmRequesting | AwaitingContinuation,
    failure: LlmFailure,
    retry_after_ms: int | None,
) -> TransitionResult:
    """Enter the backoff (the wait before the next attempt) and notify clients of it."""
    limits, attempt = builder.context.limits, state.attempt + 1
    wait = retry.delay_with(retry_after_ms, attempt, limits)
    builder.place_state()
    discard_stream(builder, state)
    builder.add_effect(ScheduleRetry(wait, attempt, RetryOf.LLM, request_id=state.request_id))
    builder.notify(Retrying(attempt, limits.max_attempts, builder.at + wait, failure, request_id=state.request_id))
    return builder.finish(
        replace(
            state,
            ledger=builder.ledger,
            attempt=attempt,
            phase=LlmPhase.BACKOFF,
            retry_at=builder.at + wait,
            last_error=failure,
        )
    )


def error_text(builder: TransitionBuilder, attempt: int, failure: LlmFailure, retry_after_ms: int | None) -> str:
    """Return the message for people about a request that failed and is not retried."""
    limits = builder.context.limits
    if failure.kind is ErrorKind.AUTH:
        return texts.authentication_failed(failure.message)
    if failure.kind is ErrorKind.CONTEXT_EXHAUSTED:
        return texts.SUB_AGENT_EXHAUSTED
    if not failure.retryable:
        return failure.message
    if retry_after_ms is not None and retry.too_long(retry_after_ms, limits):
        seconds = -(-retry_after_ms // 1_000)
        return texts.retry_after_too_long(seconds, limits.max_retry_after_ms // 1_000, failure.message)
    return texts.failed_after(attempt, failure.message)
