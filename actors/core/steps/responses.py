"""Handling of a complete model response: decides the next state (REQ-BED-003).

The first rule that applies decides: a full context is checked before truncated calls, truncated calls before approvals,
and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from actors.core import window
from actors.core.content import MessageType, SystemKind, ToolUse, distinct_calls, text_of, tool_uses
from actors.core.context import Rules
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmResponse
from actors.core.fsm import ContextState
from actors.core.notifications import StopReason
from actors.core.states import AwaitingLlm, LlmReason, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.approvals import CallVerdict, Judgement, ask, denial, judge
from actors.core.steps.inference import begin_request, begin_summary, discard_stream
from actors.core.steps.retries import request_failed
from actors.core.steps.run_endings import become_idle, fail_sub_agent
from actors.core.steps.submissions import (
    accept_output,
    accept_submission,
    has_output_call,
    has_submission,
    submission_of,
    take_output,
)
from actors.core.steps.tool_results import skip_calls
from actors.core.steps.tool_rounds import Failure, deny_calls, end_round, run_next_call
from actors.core.steps.usage import account_usage

if TYPE_CHECKING:
    from actors.core.approval.approval_rules import CallSubject
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder

_PROCESSING = ContextState.PROCESSING_LLM_RESPONSE


class Answer(Struct, frozen=True):
    """A response, with the facts that decide the next state."""

    event: LlmResponse
    calls: tuple[ToolUse, ...]
    text: str
    full: bool
    """Whether the response fills the context window up to the limit."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids of the tool calls, in the order of the response."""
        return tuple(call.id for call in self.calls)

    @property
    def subjects(self) -> dict[str, CallSubject]:
        """The commands and paths that the calls concern, by call id; {} if the response contains no such analysis."""
        subjects = self.event.subjects
        return dict(zip(self.call_ids, subjects, strict=True)) if len(subjects) == len(self.calls) else {}


def handle_response(builder: TransitionBuilder, state: LlmRequesting, event: LlmResponse) -> TransitionResult:
    """Persist the response, add its tokens to the totals and decide the next state."""
    event = replace(event, content=distinct_calls(event.content, state.request_id))
    if event.narrowed:
        builder.ledger = replace(builder.ledger, narrowed=state.through_sequence)
    used = event.usage.context_tokens if event.usage else 0
    full = event.context_full or window.full(used, builder.context)
    answer = Answer(event, tool_uses(event.content), text_of(event.content).strip(), full)
    empty = not answer.calls and not answer.text
    if empty and not event.end_turn and not answer.full and not _is_cut_reasoning(builder, answer):
        account_usage(builder, event.usage, fills_window=False)
        return request_failed(builder, state, LlmFailure(ErrorKind.SERVER_ERROR, texts.EMPTY_ANSWER))
    if empty:
        discard_stream(builder, state)
    else:
        _persist(builder, state, event)
    account_usage(builder, event.usage, fills_window=True)
    if builder.context.is_sub_agent:
        return _handle_sub_agent_response(builder, state, answer)
    return _handle_answer(builder, state, answer)


def _persist(builder: TransitionBuilder, state: LlmRequesting, event: LlmResponse) -> None:
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
    submission = submission_of(answer.calls, truncated=answer.event.truncated)
    if submission:
        return accept_submission(builder, answer.calls[0], submission)
    if answer.full:
        skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
        return _fail_sub_agent(builder, ErrorKind.CONTEXT_EXHAUSTED, texts.SUB_AGENT_EXHAUSTED)
    if ledger.grace:
        skip_calls(builder, answer.call_ids, texts.TURN_LIMIT)
        return _fail_sub_agent(builder, ErrorKind.TURN_LIMIT, texts.SUB_AGENT_TURN_LIMIT)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(builder, answer, texts.CUT_OFF)
    if has_submission(answer.calls):
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
    if with_output and has_output_call(answer.calls):
        if len(answer.calls) > 1:
            return _refuse_calls(builder, answer, texts.BAD_OUTPUT)
        return take_output(builder, answer.event, answer.calls)
    judged = _judged(builder, answer)
    if denied := _first(judged, CallVerdict.DENY):
        return _deny(builder, answer, denied, judged[denied])
    if _first(judged, CallVerdict.ASK):
        return ask(builder, answer.calls, judged, answer.subjects, state.request_id)
    if answer.calls:
        return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING)
    if _is_unfinished(builder, state, answer) and not _is_cut_reasoning(builder, answer):
        return _continue(builder, state)
    if with_output:
        return take_output(builder, answer.event, ())
    if builder.ledger.steers:
        return builder.finish(AwaitingLlm(builder.ledger, LlmReason.STEER), _PROCESSING)
    return become_idle(builder, StopReason.COMPLETED, _detail(builder, state, answer), _PROCESSING)


def _run_unasked(builder: TransitionBuilder, answer: Answer) -> TransitionResult:
    """Run the calls of a sub-agent. Calls that need approval get an error result when their turn comes."""
    judged = _judged(builder, answer)
    if denied := _first(judged, CallVerdict.DENY):
        return _deny(builder, answer, denied, judged[denied])
    asking: tuple[str, ...] = ()
    if builder.context.rules >= Rules.OWN_TOOLS:
        asking = tuple(call_id for call_id, judgement in judged.items() if judgement.verdict is CallVerdict.ASK)
    return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING, refused=asking)


def _judged(builder: TransitionBuilder, answer: Answer) -> dict[str, Judgement]:
    subjects = answer.subjects
    return {call.id: judge(builder.context, call, subjects.get(call.id)) for call in answer.calls}


def _first(judged: dict[str, Judgement], verdict: CallVerdict) -> str:
    return next((call_id for call_id, judgement in judged.items() if judgement.verdict is verdict), "")


def _deny(builder: TransitionBuilder, answer: Answer, denied: str, judgement: Judgement) -> TransitionResult:
    """Add a result to every call of a response in which a rule denies one call; none of the calls runs."""
    text = texts.denied_by(denial(judgement.rule)) if judgement.rule else texts.DENIED
    return deny_calls(builder, answer.calls, denied, text, _PROCESSING)


def _use_up_context(builder: TransitionBuilder, answer: Answer) -> TransitionResult:
    """Request a summary, because the context is full. No call runs; a valid output is kept for the end of the run."""
    if builder.ledger.output_schema and answer.event.output:
        accept_output(builder, answer.calls)
        builder.ledger = replace(builder.ledger, output=answer.event.output)
        return begin_summary(builder, (), _PROCESSING)
    skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
    return begin_summary(builder, tuple(call.name for call in answer.calls), _PROCESSING)


def _refuse_calls(builder: TransitionBuilder, answer: Answer, text: str) -> TransitionResult:
    skip_calls(builder, answer.call_ids, text)
    return end_round(builder, (Failure(text),), _PROCESSING)


def _is_cut_reasoning(builder: TransitionBuilder, answer: Answer) -> bool:
    """Return whether the answer was cut off before its text began. It then ends the run: nothing can be continued."""
    cut = answer.event.truncated and not answer.text and not answer.calls
    return cut and not builder.context.is_sub_agent and builder.context.rules >= Rules.NOTHING_LOST


def _is_unfinished(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> bool:
    return not answer.event.end_turn and state.continuations < builder.context.limits.max_continuations


def _continue(builder: TransitionBuilder, state: LlmRequesting) -> TransitionResult:
    through = (_PROCESSING, ContextState.GENERATING_RESPONSE)
    return begin_request(builder, *through, continuations=state.continuations + 1)


def _nudge(builder: TransitionBuilder) -> TransitionResult:
    """Remind a sub-agent that answered with text alone to submit its result; fail it after too many reminders."""
    nudges = builder.ledger.nudges
    if nudges >= builder.context.limits.max_nudges:
        return _fail_sub_agent(builder, ErrorKind.NO_RESULT, texts.SUB_AGENT_NO_RESULT)
    builder.add_system_message(SystemKind.NUDGE, texts.NUDGE, meta=True)
    builder.ledger = replace(builder.ledger, nudges=nudges + 1)
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.NUDGE), _PROCESSING)


def _fail_sub_agent(builder: TransitionBuilder, kind: ErrorKind, text: str) -> TransitionResult:
    return fail_sub_agent(builder, kind, text, StopReason.ERROR, kind.value, _PROCESSING)


def _detail(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> str:
    if answer.event.refusal:
        return "refusal"
    if not answer.event.end_turn:
        return "max_tokens"
    is_empty = not answer.text and not state.continuations
    return "empty" if is_empty and builder.context.rules >= Rules.NOTHING_LOST else ""
