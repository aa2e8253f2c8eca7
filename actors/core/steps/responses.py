"""What follows a model-request attempt: its answer or failure, and the next attempt."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from actors.core import events
from actors.core.content import MessageType, SystemKind, ToolUse, distinct_calls, text_of, tool_uses
from actors.core.context import CallSubject, ConvContext, Rules
from actors.core.effects import TransitionResult
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.notifications import StopReason, TextDelta
from actors.core.states import (
    AwaitingContinuation,
    AwaitingLlm,
    CancelKind,
    Cancelling,
    LlmPhase,
    LlmReason,
    LlmRequesting,
)
from actors.core.steps import runs, texts
from actors.core.steps.approvals import CallVerdict, Evaluation, ask, denial, evaluate
from actors.core.steps.notices import queue_cancel_notice
from actors.core.steps.retries import back_off, may_retry, too_long
from actors.core.steps.tool_rounds import Failure, deny_calls, end_round, run_next_call, skip_calls
from actors.core.steps.transition_builder import TransitionBuilder, ignored
from actors.core.summary import ContextState

AttemptOutcome = (
    events.LlmStreamStarted | events.LlmStreamChunk | events.LlmResponse | events.LlmError | events.LlmAborted
)


def is_current(state: LlmRequesting | AwaitingContinuation, event: AttemptOutcome) -> bool:
    """Whether an outcome belongs to the running attempt; other outcomes come too late and are ignored."""
    identity = (event.request_id, event.attempt)
    return state.phase is not LlmPhase.BACKOFF and identity == (state.request_id, state.attempt)


def is_due(state: LlmRequesting | AwaitingContinuation, event: events.RetryTimeout) -> bool:
    """Whether the event belongs to the wait (backoff) that the state is in; other timers are out of date."""
    identity = (event.request_id, event.attempt)
    return state.phase is LlmPhase.BACKOFF and identity == (state.request_id, state.attempt)


def stream_started(builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation) -> TransitionResult:
    """Record that the response has begun to stream; ignored if the state is streaming already."""
    if state.phase is LlmPhase.STREAMING:
        return ignored(state)
    return builder.finish(replace(state, phase=LlmPhase.STREAMING))


def stream_chunk(
    builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation, event: events.LlmStreamChunk
) -> TransitionResult:
    """Pass text on to clients. Only an attempt's first chunk changes the state; later ones need no database write."""
    delta = TextDelta(state.request_id, state.attempt, event.content.text, event.reasoning)
    if state.phase is LlmPhase.STREAMING:
        builder.notify(delta)
        return TransitionResult(state, tuple(builder.effects))
    builder.place_state()
    builder.notify(delta)
    return builder.finish(replace(state, phase=LlmPhase.STREAMING))


def cancel_request(
    state: LlmRequesting | AwaitingContinuation, context: ConvContext, event: events.UserCancel
) -> TransitionResult:
    """Abort the request and cancel the run without waiting for the abort.

    The state passes through Cancelling in the same commit, except in a sub-agent or while the request is in backoff.
    """
    builder = TransitionBuilder(state, context, event.at)
    if context.is_sub_agent or state.phase is LlmPhase.BACKOFF:
        runs.abort_request(builder, state)
        return runs.cancel_run(builder, event)
    runs.return_steers(builder)
    queue_cancel_notice(builder)
    builder.place_state()
    runs.abort_request(builder, state)
    after = Cancelling(
        builder.ledger,
        CancelKind.LLM,
        discard_queued=event.discard_queued,
        request_id=state.request_id,
        attempt=state.attempt,
    )
    return builder.finish(after)


def request_failed(
    builder: TransitionBuilder, state: LlmRequesting, failure: LlmFailure, retry_after_ms: int | None = None
) -> TransitionResult:
    """Retry if the failure and the limits allow it; otherwise end the run, or summarize a full context.

    `retry_after_ms` is the wait that the provider asked for, if any.
    """
    if may_retry(failure, state.attempt, builder.context.limits, retry_after_ms):
        return back_off(builder, state, failure, retry_after_ms)
    runs.discard_stream(builder, state)
    if failure.kind is ErrorKind.CONTEXT_EXHAUSTED and not builder.context.is_sub_agent:
        if builder.context.rules < Rules.NOTHING_LOST:
            return runs.exhaust_with_fallback(builder, StopReason.ERROR)
        return runs.begin_summary(builder, (), ContextState.PROCESSING_LLM_RESPONSE, unanswered=True)
    through = (ContextState.TRANSIENT_FAILURE,) if failure.retryable else ()
    return runs.fail_run(builder, failure.kind, error_text(builder, state.attempt, failure, retry_after_ms), *through)


def error_text(builder: TransitionBuilder, attempt: int, failure: LlmFailure, retry_after_ms: int | None) -> str:
    """The message for users about a request that failed and is not retried."""
    limits = builder.context.limits
    if failure.kind is ErrorKind.AUTH:
        return texts.authentication_failed(failure.message)
    if failure.kind is ErrorKind.CONTEXT_EXHAUSTED:
        return texts.SUB_AGENT_EXHAUSTED
    if not failure.retryable:
        return failure.message
    if retry_after_ms is not None and too_long(retry_after_ms, limits):
        seconds = -(-retry_after_ms // 1_000)
        return texts.retry_after_too_long(seconds, limits.max_retry_after_ms // 1_000, failure.message)
    return texts.failed_after(attempt, failure.message)


_PROCESSING = ContextState.PROCESSING_LLM_RESPONSE


class Answer(Struct, frozen=True):
    event: events.LlmResponse
    calls: tuple[ToolUse, ...]
    text: str
    full: bool

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in self.calls)

    @property
    def subjects(self) -> dict[str, CallSubject]:
        """The commands and paths that the calls concern, by call id; {} if the calls were not analysed."""
        subjects = self.event.subjects
        return dict(zip(self.call_ids, subjects, strict=True)) if len(subjects) == len(self.calls) else {}


def handle_response(builder: TransitionBuilder, state: LlmRequesting, event: events.LlmResponse) -> TransitionResult:
    """Persist the response, add its tokens to the totals and decide the next state."""
    event = replace(event, content=distinct_calls(event.content, state.request_id))
    if event.narrowed:
        builder.ledger = replace(builder.ledger, narrowed=state.through_sequence)
    used = event.usage.context_tokens if event.usage else 0
    full = event.context_full or builder.context.full(used)
    answer = Answer(event, tool_uses(event.content), text_of(event.content).strip(), full)
    empty = not answer.calls and not answer.text
    if empty and not event.end_turn and not answer.full and not _is_cut_reasoning(builder, answer):
        runs.account_usage(builder, event.usage, fills_window=False)
        return request_failed(builder, state, LlmFailure(ErrorKind.SERVER_ERROR, texts.EMPTY_ANSWER))
    if empty:
        runs.discard_stream(builder, state)
    else:
        _persist(builder, state, event)
    runs.account_usage(builder, event.usage, fills_window=True)
    if builder.context.is_sub_agent:
        return _handle_sub_agent_response(builder, state, answer)
    return _handle_answer(builder, state, answer)


def _persist(builder: TransitionBuilder, state: LlmRequesting, event: events.LlmResponse) -> None:
    builder.add_message(
        MessageType.AGENT,
        *event.content,
        request=(state.request_id, state.attempt),
        through_sequence=state.through_sequence,
        usage=event.usage,
    )


def _handle_sub_agent_response(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> TransitionResult:
    ledger = builder.ledger
    builder.ledger = replace(
        ledger, last_text=answer.text or ledger.last_text, nudges=0 if answer.calls else ledger.nudges
    )
    submission = runs.submission_of(answer.calls, truncated=answer.event.truncated)
    if submission:
        return runs.accept_submission(builder, answer.calls[0], submission)
    if answer.full:
        skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
        return _fail_sub_agent(builder, ErrorKind.CONTEXT_EXHAUSTED, texts.SUB_AGENT_EXHAUSTED)
    if ledger.grace:
        skip_calls(builder, answer.call_ids, texts.TURN_LIMIT)
        return _fail_sub_agent(builder, ErrorKind.TURN_LIMIT, texts.SUB_AGENT_TURN_LIMIT)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(builder, answer, texts.CUT_OFF)
    if runs.has_submission(answer.calls):
        return _refuse_calls(builder, answer, texts.BAD_SUBMISSION)
    if answer.calls:
        return _run_unasked(builder, answer)
    if _is_unfinished(builder, state, answer):
        return _continue(builder, state)
    return _nudge(builder)


def _handle_answer(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> TransitionResult:
    if answer.full:
        return _use_up_context(builder, answer)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(builder, answer, texts.CUT_OFF)
    with_output = bool(builder.ledger.output_schema)
    if with_output and runs.has_output_call(answer.calls):
        if len(answer.calls) > 1:
            return _refuse_calls(builder, answer, texts.BAD_OUTPUT)
        return runs.handle_output(builder, answer.event, answer.calls)
    evaluated = _evaluate_calls(builder, answer)
    if denied := _first(evaluated, CallVerdict.DENY):
        return _deny(builder, answer, denied, evaluated[denied])
    if _first(evaluated, CallVerdict.ASK):
        return ask(builder, answer.calls, evaluated, answer.subjects, state.request_id)
    if answer.calls:
        return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING)
    if _is_unfinished(builder, state, answer) and not _is_cut_reasoning(builder, answer):
        return _continue(builder, state)
    if with_output:
        return runs.handle_output(builder, answer.event, ())
    if builder.ledger.steers:
        return builder.finish(AwaitingLlm(builder.ledger, LlmReason.STEER), _PROCESSING)
    return runs.become_idle(builder, StopReason.COMPLETED, _detail(builder, state, answer), _PROCESSING)


def _run_unasked(builder: TransitionBuilder, answer: Answer) -> TransitionResult:
    """Run a sub-agent's calls. Calls that need approval get an error result when their turn comes."""
    evaluated = _evaluate_calls(builder, answer)
    if denied := _first(evaluated, CallVerdict.DENY):
        return _deny(builder, answer, denied, evaluated[denied])
    asking: tuple[str, ...] = ()
    if builder.context.rules >= Rules.OWN_TOOLS:
        asking = tuple(call_id for call_id, judgement in evaluated.items() if judgement.verdict is CallVerdict.ASK)
    return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING, refused=asking)


def _evaluate_calls(builder: TransitionBuilder, answer: Answer) -> dict[str, Evaluation]:
    subjects = answer.subjects
    return {call.id: evaluate(builder.context, call, subjects.get(call.id)) for call in answer.calls}


def _first(evaluated: dict[str, Evaluation], verdict: CallVerdict) -> str:
    return next((call_id for call_id, judgement in evaluated.items() if judgement.verdict is verdict), "")


def _deny(builder: TransitionBuilder, answer: Answer, denied: str, judgement: Evaluation) -> TransitionResult:
    """Run none of a response's calls, because a rule denies one of them; each call gets a result."""
    text = texts.denied_by(denial(judgement.rule)) if judgement.rule else texts.DENIED
    return deny_calls(builder, answer.calls, denied, text, _PROCESSING)


def _use_up_context(builder: TransitionBuilder, answer: Answer) -> TransitionResult:
    """Request a summary, because the context is full. No call runs; a valid output is kept for the end of the run."""
    if builder.ledger.output_schema and answer.event.output:
        runs.accept_output(builder, answer.calls)
        builder.ledger = replace(builder.ledger, output=answer.event.output)
        return runs.begin_summary(builder, (), _PROCESSING)
    skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
    return runs.begin_summary(builder, tuple(call.name for call in answer.calls), _PROCESSING)


def _refuse_calls(builder: TransitionBuilder, answer: Answer, text: str) -> TransitionResult:
    skip_calls(builder, answer.call_ids, text)
    return end_round(builder, (Failure(text),), _PROCESSING)


def _is_cut_reasoning(builder: TransitionBuilder, answer: Answer) -> bool:
    """Whether the answer was cut off before its text began. This ends the run, because there is nothing to continue."""
    cut = answer.event.truncated and not answer.text and not answer.calls
    return cut and not builder.context.is_sub_agent and builder.context.rules >= Rules.NOTHING_LOST


def _is_unfinished(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> bool:
    return not answer.event.end_turn and state.continuations < builder.context.limits.max_continuations


def _continue(builder: TransitionBuilder, state: LlmRequesting) -> TransitionResult:
    through = (_PROCESSING, ContextState.GENERATING_RESPONSE)
    return runs.begin_request(builder, *through, continuations=state.continuations + 1)


def _nudge(builder: TransitionBuilder) -> TransitionResult:
    """Remind a sub-agent that answered with text alone to submit its result; fail it after too many reminders."""
    nudges = builder.ledger.nudges
    if nudges >= builder.context.limits.max_nudges:
        return _fail_sub_agent(builder, ErrorKind.NO_RESULT, texts.SUB_AGENT_NO_RESULT)
    builder.add_system_message(SystemKind.NUDGE, texts.NUDGE, meta=True)
    builder.ledger = replace(builder.ledger, nudges=nudges + 1)
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.NUDGE), _PROCESSING)


def _fail_sub_agent(builder: TransitionBuilder, kind: ErrorKind, text: str) -> TransitionResult:
    return runs.fail_sub_agent(builder, kind, text, StopReason.ERROR, kind.value, _PROCESSING)


def _detail(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> str:
    if answer.event.refusal:
        return "refusal"
    if not answer.event.end_turn:
        return "max_tokens"
    is_empty = not answer.text and not state.continuations
    return "empty" if is_empty and builder.context.rules >= Rules.NOTHING_LOST else ""
