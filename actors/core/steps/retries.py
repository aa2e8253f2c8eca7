"""Retries: which failed model requests and tool calls are tried again, and after which delay.

`errors.RETRYABLE` lists the kinds of errors that are worth another attempt.
"""

from __future__ import annotations

from msgspec.structs import replace

from actors.core.context import Limits
from actors.core.effects import RetryOf, ScheduleRetry, TransitionResult
from actors.core.errors import LlmFailure
from actors.core.notifications import Retrying
from actors.core.states import AwaitingContinuation, LlmPhase, LlmRequesting, ToolExecuting, ToolPhase
from actors.core.steps.runs import discard_stream
from actors.core.steps.transition_builder import TransitionBuilder


def attempts_left(attempt: int, limits: Limits) -> bool:
    return attempt < limits.max_attempts


def may_retry(failure: LlmFailure, attempt: int, limits: Limits, retry_after_ms: int | None) -> bool:
    """Whether a model request is tried again after this attempt; `retry_after_ms` is the provider's Retry-After."""
    return failure.retryable and attempts_left(attempt, limits) and not too_long(retry_after_ms, limits)


def too_long(retry_after_ms: int | None, limits: Limits) -> bool:
    """Whether the provider demands a longer wait than the limit; such a request fails at once."""
    return retry_after_ms is not None and retry_after_ms > limits.max_retry_after_ms


def delay(attempt: int, limits: Limits, retry_after_ms: int | None = None) -> int:
    """The wait before this attempt, in ms: 1 s before the second, then twice as long each time.

    It is at most `max_retry_after_ms`, and at least the provider's Retry-After, which must not be `too_long`.
    """
    return max(min(limits.retry_base_ms << (attempt - 2), limits.max_retry_after_ms), retry_after_ms or 0)


def back_off(
    builder: TransitionBuilder,
    state: LlmRequesting | AwaitingContinuation,
    failure: LlmFailure,
    retry_after_ms: int | None,
) -> TransitionResult:
    """Wait before the next attempt at a model request."""
    attempt, request_id = state.attempt + 1, state.request_id
    wait = delay(attempt, builder.context.limits, retry_after_ms)
    builder.place_state()
    discard_stream(builder, state)
    builder.add_effect(ScheduleRetry(wait, attempt, RetryOf.LLM, request_id=request_id))
    retry_at = _notify(builder, attempt, wait, failure, request_id=request_id)
    waiting = replace(state, ledger=builder.ledger, attempt=attempt, phase=LlmPhase.BACKOFF)
    return builder.finish(replace(waiting, retry_at=retry_at, last_error=failure))


def back_off_call(builder: TransitionBuilder, state: ToolExecuting, failure: LlmFailure) -> TransitionResult:
    """Wait before the next attempt at a tool call."""
    attempt, call_id = state.attempt + 1, state.current_tool_id
    wait = delay(attempt, builder.context.limits)
    builder.place_state()
    builder.add_effect(ScheduleRetry(wait, attempt, RetryOf.TOOL, tool_use_id=call_id, execution_id=state.execution_id))
    retry_at = _notify(builder, attempt, wait, failure, tool_use_id=call_id)
    waiting = replace(state, ledger=builder.ledger, questions=(), asked=0, attempt=attempt, phase=ToolPhase.BACKOFF)
    return builder.finish(replace(waiting, retry_at=retry_at))


def _notify(builder: TransitionBuilder, attempt: int, wait: int, failure: LlmFailure, **retried: str) -> int:
    retry_at = builder.at + wait
    builder.notify(Retrying(attempt, builder.context.limits.max_attempts, retry_at, failure, **retried))
    return retry_at
