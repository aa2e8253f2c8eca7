"""What becomes of a whole answer. One response is judged in one order (SEMANTICS §2.5; REQ-BED-003)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from actors.core import window
from actors.core.content import MessageType, SystemKind, ToolUse, Usage, distinct_calls, text_of, tool_uses
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmResponse
from actors.core.fsm import ContextState
from actors.core.notifications import ApprovalRequested, ContextWarning, StopReason, UsageChanged
from actors.core.states import ApprovalKind, AwaitingLlm, AwaitingToolApproval, LlmReason, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.inference import begin_request, begin_summary, discard_stream
from actors.core.steps.retries import request_failed
from actors.core.steps.run_endings import fail_sub_agent, rest
from actors.core.steps.submissions import submission_of, submits, take
from actors.core.steps.tool_results import not_executed
from actors.core.steps.tool_rounds import REQUEST_MODE_UPGRADE, asks, end_round, run_next

if TYPE_CHECKING:
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import Draft

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


def judge(draft: Draft, state: LlmRequesting, event: LlmResponse) -> TransitionResult:
    """Persist the answer and decide what follows from it."""
    event = replace(event, content=distinct_calls(event.content, state.request_id))
    used = event.usage.context_tokens if event.usage else 0
    answer = Answer(event, tool_uses(event.content), text_of(event.content).strip(), window.full(used, draft.context))
    empty = not answer.calls and not answer.text
    if empty and not event.end_turn and not answer.full:
        account(draft, event.usage, fills_window=False)
        return request_failed(draft, state, LlmFailure(ErrorKind.SERVER_ERROR, texts.EMPTY_ANSWER))
    if empty:
        discard_stream(draft, state)
    else:
        _persist(draft, state, event)
    account(draft, event.usage, fills_window=True)
    if draft.context.is_sub_agent:
        return _judge_sub_agent(draft, state, answer)
    return _judge_answer(draft, state, answer)


def account(draft: Draft, usage: Usage | None, *, fills_window: bool) -> None:
    """Add what a response cost; warn once when the window becomes nearly full (C49).

    `fills_window`: False for an attempt that failed, whose tokens are not in the history.
    """
    if usage is None:
        return
    ledger, context = draft.ledger, draft.context
    used = usage.context_tokens if fills_window else ledger.used_tokens
    warned = window.near_full(used, context)
    draft.ledger = replace(
        ledger,
        used_tokens=used,
        warned=warned,
        total_usage=ledger.total_usage + usage,
        run_usage=ledger.run_usage + usage if ledger.live else ledger.run_usage,
    )
    draft.notify(UsageChanged(used, context.usable_window, draft.ledger.total_usage, warned))
    if warned and not ledger.warned:
        draft.notify(ContextWarning(used, context.usable_window))


def _persist(draft: Draft, state: LlmRequesting, event: LlmResponse) -> None:
    draft.say(
        MessageType.AGENT,
        *event.content,
        request=(state.request_id, state.attempt),
        through_sequence=state.through_sequence,
        usage=event.usage,
    )


def _judge_sub_agent(draft: Draft, state: LlmRequesting, answer: Answer) -> TransitionResult:
    ledger = draft.ledger
    draft.ledger = replace(
        ledger, last_text=answer.text or ledger.last_text, nudges=0 if answer.calls else ledger.nudges
    )
    submission = submission_of(answer.calls, truncated=answer.event.truncated)
    if submission:
        return take(draft, answer.calls[0], submission)
    if answer.full:
        not_executed(draft, answer.call_ids, texts.CONTEXT_LIMIT)
        return _give_up(draft, ErrorKind.CONTEXT_EXHAUSTED, texts.SUB_AGENT_EXHAUSTED)
    if ledger.grace:
        not_executed(draft, answer.call_ids, texts.TURN_LIMIT)
        return _give_up(draft, ErrorKind.TURN_LIMIT, texts.SUB_AGENT_TURN_LIMIT)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(draft, answer, texts.CUT_OFF)
    if submits(answer.calls):
        return _refuse_calls(draft, answer, texts.BAD_SUBMISSION)
    if answer.calls:
        return run_next(draft, answer.calls, answer.call_ids, (), _PROCESSING)
    if _goes_on(draft, state, answer):
        return _continue(draft, state)
    return _nudge(draft)


def _judge_answer(draft: Draft, state: LlmRequesting, answer: Answer) -> TransitionResult:
    if answer.full:
        not_executed(draft, answer.call_ids, texts.CONTEXT_LIMIT)
        return begin_summary(draft, tuple(call.name for call in answer.calls), _PROCESSING)
    if answer.event.truncated and answer.calls:
        return _refuse_calls(draft, answer, texts.CUT_OFF)
    questions = tuple(call for call in answer.calls if asks(draft.context, call))
    if questions:
        return _ask(draft, state, answer, questions)
    if answer.calls:
        return run_next(draft, answer.calls, answer.call_ids, (), _PROCESSING)
    if _goes_on(draft, state, answer):
        return _continue(draft, state)
    if draft.ledger.steers:
        return draft.finish(AwaitingLlm(draft.ledger, LlmReason.STEER), _PROCESSING)
    return rest(draft, StopReason.COMPLETED, _detail(answer), _PROCESSING)


def _refuse_calls(draft: Draft, answer: Answer, text: str) -> TransitionResult:
    """No call of this response runs; the model may try again."""
    not_executed(draft, answer.call_ids, text)
    return end_round(draft, _PROCESSING)


def _ask(draft: Draft, state: LlmRequesting, answer: Answer, questions: tuple[ToolUse, ...]) -> TransitionResult:
    """The whole response waits for a person; nothing of it runs before (C16)."""
    draft.place_state()
    for call in questions:
        draft.notify(ApprovalRequested(call, approval_kind(call), draft.at))
    upgrade = any(call.name == REQUEST_MODE_UPGRADE for call in questions)
    waiting = AwaitingToolApproval(
        draft.ledger,
        answer.calls,
        tuple(call.id for call in questions),
        ApprovalKind.MODE_UPGRADE if upgrade else ApprovalKind.TOOL,
        state.request_id,
        draft.at,
    )
    return draft.finish(waiting, _PROCESSING)


def approval_kind(call: ToolUse) -> ApprovalKind:
    """What the person is asked for."""
    return ApprovalKind.MODE_UPGRADE if call.name == REQUEST_MODE_UPGRADE else ApprovalKind.TOOL


def _goes_on(draft: Draft, state: LlmRequesting, answer: Answer) -> bool:
    """Whether an unfinished text is continued; bounded per round (C24)."""
    return not answer.event.end_turn and state.continuations < draft.context.limits.max_continuations


def _continue(draft: Draft, state: LlmRequesting) -> TransitionResult:
    through = (_PROCESSING, ContextState.GENERATING_RESPONSE)
    return begin_request(draft, *through, continuations=state.continuations + 1)


def _nudge(draft: Draft) -> TransitionResult:
    """A sub-agent's text does not count as its result (C30)."""
    nudges = draft.ledger.nudges
    if nudges >= draft.context.limits.max_nudges:
        return _give_up(draft, ErrorKind.NO_RESULT, texts.SUB_AGENT_NO_RESULT)
    draft.say_system(SystemKind.NUDGE, texts.NUDGE, meta=True)
    draft.ledger = replace(draft.ledger, nudges=nudges + 1)
    return draft.finish(AwaitingLlm(draft.ledger, LlmReason.NUDGE), _PROCESSING)


def _give_up(draft: Draft, kind: ErrorKind, text: str) -> TransitionResult:
    return fail_sub_agent(draft, kind, text, StopReason.ERROR, kind.value, _PROCESSING)


def _detail(answer: Answer) -> str:
    """How a completed run ended, where "completed" does not say it all."""
    if answer.event.refusal:
        return "refusal"
    return "" if answer.event.end_turn else "max_tokens"
