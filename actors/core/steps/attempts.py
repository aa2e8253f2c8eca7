"""Steps for one attempt of a model request: its outcomes and its cancellation.

The states LlmRequesting (requests an answer) and AwaitingContinuation (requests a summary) share these steps, because
both request a text from the model in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.events import (
    LlmAborted,
    LlmError,
    LlmResponse,
    LlmStreamChunk,
    LlmStreamStarted,
    RetryTimeout,
    UserCancel,
)
from actors.core.notifications import TextDelta
from actors.core.result import TransitionResult, ignored
from actors.core.states import AwaitingContinuation, CancelKind, Cancelling, LlmPhase, LlmRequesting
from actors.core.steps.inference import abort_request
from actors.core.steps.notices import queue_cancel_notice
from actors.core.steps.run_endings import cancel_run
from actors.core.steps.runs import return_steers
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext

AttemptOutcome = LlmStreamStarted | LlmStreamChunk | LlmResponse | LlmError | LlmAborted


def is_current(state: LlmRequesting | AwaitingContinuation, event: AttemptOutcome) -> bool:
    """Return whether an outcome belongs to the running attempt; other outcomes come too late and are ignored."""
    identity = (event.request_id, event.attempt)
    return state.phase is not LlmPhase.BACKOFF and identity == (state.request_id, state.attempt)


def is_due(state: LlmRequesting | AwaitingContinuation, event: RetryTimeout) -> bool:
    """Return whether the event belongs to the wait (backoff) that the state is in; other timers are out of date."""
    identity = (event.request_id, event.attempt)
    return state.phase is LlmPhase.BACKOFF and identity == (state.request_id, state.attempt)


def stream_started(builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation) -> TransitionResult:
    """Record that the response has begun to stream; ignored if the state is streaming already."""
    if state.phase is LlmPhase.STREAMING:
        return ignored(state)
    return builder.finish(replace(state, phase=LlmPhase.STREAMING))


def stream_chunk(
    builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation, event: LlmStreamChunk
) -> TransitionResult:
    """Notify clients of streamed text.

    Only the first chunk of an attempt changes the state, so that chunks cost no database writes.
    """
    delta = TextDelta(state.request_id, state.attempt, event.content.text, event.reasoning)
    if state.phase is LlmPhase.STREAMING:
        builder.notify(delta)
        return TransitionResult(state, tuple(builder.effects))
    builder.place_state()
    builder.notify(delta)
    return builder.finish(replace(state, phase=LlmPhase.STREAMING))


def cancel_request(
    state: LlmRequesting | AwaitingContinuation, context: ConvContext, event: UserCancel
) -> TransitionResult:
    """Abort the request and cancel the run, without waiting for confirmation of the abort.

    A conversation passes through the state Cancelling and becomes idle in the same commit. For sub-agents, and for
    requests in backoff (the wait for the next attempt), the run ends directly, without that state.
    """
    builder = TransitionBuilder(state, context, event.at)
    if context.is_sub_agent or state.phase is LlmPhase.BACKOFF:
        abort_request(builder, state)
        return cancel_run(builder, event)
    return_steers(builder)
    queue_cancel_notice(builder)
    builder.place_state()
    abort_request(builder, state)
    after = Cancelling(
        builder.ledger,
        CancelKind.LLM,
        discard_queued=event.discard_queued,
        request_id=state.request_id,
        attempt=state.attempt,
    )
    return builder.finish(after)
