"""What becomes of a whole answer. One response is judged in one order (REQ-BED-003)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from actors.core import window
from actors.core.content import MessageType, SystemKind, ToolUse, distinct_calls, text_of, tool_uses
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmResponse
from actors.core.fsm import ContextState
from actors.core.notifications import StopReason
from actors.core.states import AwaitingLlm, LlmReason, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.approvals import ask, needs_approval
from actors.core.steps.inference import begin_request, begin_summary, discard_stream
from actors.core.steps.retries import request_failed
from actors.core.steps.run_endings import become_idle, fail_sub_agent
from actors.core.steps.submissions import accept_submission, has_submission, submission_of
from actors.core.steps.tool_results import skip_calls
from actors.core.steps.tool_rounds import end_round, run_next_call
from actors.core.steps.usage import account_usage

if TYPE_CHECKING:
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder

_PROCESSING = ContextState.PROCESSING_LLM_RESPONSE


class Answer(Struct, frozen=True):
    """A response with what the judgement looks at."""

    event: LlmResponse
    calls: tuple[ToolUse, ...]
    text: str
    full: bool
    """Whether it leaves no room in the window."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in self.calls)


def handle_response(builder: TransitionBuilder, state: LlmRequesting, event: LlmResponse) -> TransitionResult:
    """Persist the answer and decide what follows from it."""
    event = replace(event, content=distinct_calls(event.content, state.request_id))
    used = event.usage.context_tokens if event.usage else 0
    answer = Answer(event, tool_uses(event.content), text_of(event.content).strip(), window.full(used, builder.context))
    empty = not answer.calls and not answer.text
    if empty and not event.end_turn and not answer.full:
        account_usage(builder, event.usage, fills_window=False)
        return request_failed(builder, state, LlmFailure(ErrorKind.SERVER_ERROR, texts.EMPTY_ANSWER))
    if empty:
        discard_stream(builder, state)
    else:
        _persist(builder, state, event)
    account_usage(builder, event.usage, fills_window=True)
    if builder.context.is_sub_agent:
        return _judge_sub_agent(builder, state, answer)
    return _judge_answer(builder, state, answer)


def _persist(builder: TransitionBuilder, state: LlmRequesting, event: LlmResponse) -> None:
    builder.add_message(
        MessageType.AGENT,
        *event.content,
        request=(state.request_id, state.attempt),
        through_sequence=state.through_sequence,
        usage=event.usage,
    )


def _judge_sub_agent(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> TransitionResult:
    ledger = builder.ledger
    builder.ledger = replace(
        ledger, last_text=answer.text or ledger.last_text, nudges=0 if answer.calls else ledger.nudges
    )
    submission = submission_of(answer.calls, truncated=answer.event.truncated)
    if submission:
        return accept_submission(builder, answer.calls[0], submission)
    if answer.full:
        skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
        return _give_up(builder, ErrorKind.CONTEXT_EXHAUSTED, texts.SUB_AGENT_EXHAUSTED)
    if ledger.grace:
        skip_calls(builder, answer.call_ids, texts.TURN_LIMIT)
        return _give_up(builder, ErrorKind.TURN_LIMIT, texts.SUB_AGENT_TURN_LIMIT)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(builder, answer, texts.CUT_OFF)
    if has_submission(answer.calls):
        return _refuse_calls(builder, answer, texts.BAD_SUBMISSION)
    if answer.calls:
        return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING)
    if _goes_on(builder, state, answer):
        return _continue(builder, state)
    return _nudge(builder)


def _judge_answer(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> TransitionResult:
    if answer.full:
        skip_calls(builder, answer.call_ids, texts.CONTEXT_LIMIT)
        return begin_summary(builder, tuple(call.name for call in answer.calls), _PROCESSING)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(builder, answer, texts.CUT_OFF)
    questions = tuple(call for call in answer.calls if needs_approval(builder.context, call))
    if questions:
        return ask(builder, answer.calls, questions, state.request_id)
    if answer.calls:
        return run_next_call(builder, answer.calls, answer.call_ids, (), _PROCESSING)
    if _goes_on(builder, state, answer):
        return _continue(builder, state)
    if builder.ledger.steers:
        return builder.finish(AwaitingLlm(builder.ledger, LlmReason.STEER), _PROCESSING)
    return become_idle(builder, StopReason.COMPLETED, _detail(answer), _PROCESSING)


def _refuse_calls(builder: TransitionBuilder, answer: Answer, text: str) -> TransitionResult:
    """No call of this response runs; the model may try again."""
    skip_calls(builder, answer.call_ids, text)
    return end_round(builder, _PROCESSING)


def _goes_on(builder: TransitionBuilder, state: LlmRequesting, answer: Answer) -> bool:
    """Whether an unfinished text is continued; bounded per round (C24)."""
    return not answer.event.end_turn and state.continuations < builder.context.limits.max_continuations


def _continue(builder: TransitionBuilder, state: LlmRequesting) -> TransitionResult:
    through = (_PROCESSING, ContextState.GENERATING_RESPONSE)
    return begin_request(builder, *through, continuations=state.continuations + 1)


def _nudge(builder: TransitionBuilder) -> TransitionResult:
    """A sub-agent's text does not count as its result (C30)."""
    nudges = builder.ledger.nudges
    if nudges >= builder.context.limits.max_nudges:
        return _give_up(builder, ErrorKind.NO_RESULT, texts.SUB_AGENT_NO_RESULT)
    builder.add_system_message(SystemKind.NUDGE, texts.NUDGE, meta=True)
    builder.ledger = replace(builder.ledger, nudges=nudges + 1)
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.NUDGE), _PROCESSING)


def _give_up(builder: TransitionBuilder, kind: ErrorKind, text: str) -> TransitionResult:
    return fail_sub_agent(builder, kind, text, StopReason.ERROR, kind.value, _PROCESSING)


def _detail(answer: Answer) -> str:
    """How a completed run ended, where "completed" does not say it all."""
    if answer.event.refusal:
        return "refusal"
    return "" if answer.event.end_turn else "max_tokens"
