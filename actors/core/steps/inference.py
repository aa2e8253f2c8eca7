"""The inference boundary: the one place where a model request is built (SEMANTICS §2.5, C19, C21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import budget
from actors.core.content import SystemKind
from actors.core.context import Rules
from actors.core.effects import AbortLlm, RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind
from actors.core.notifications import StopReason, StreamDiscarded
from actors.core.states import AwaitingContinuation, LlmRequesting, Phase
from actors.core.steps import texts
from actors.core.steps.pending_notices import deliver
from actors.core.steps.run_endings import fail_sub_agent, rest
from actors.core.steps.runs import deliver_steers

if TYPE_CHECKING:
    from actors.core.fsm import ContextState
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import Draft


def begin_request(draft: Draft, *through: ContextState, continuations: int = 0) -> TransitionResult:
    """Budget and round cap first, then what waits to be said, then the request."""
    spent = budget.spent(draft.context.budget, draft.ledger)
    if spent:
        return _stop_for_budget(draft, spent, *through)
    limits, ledger = draft.context.limits, draft.ledger
    if ledger.rounds >= limits.max_rounds and not draft.context.is_sub_agent:
        draft.say_system(SystemKind.ROUND_CAP, texts.round_cap(ledger.rounds))
        return rest(draft, StopReason.INTERRUPTED, "round_cap", *through)
    deliver(draft)
    if draft.context.is_sub_agent:
        _count_turn(draft)
    deliver_steers(draft)
    request_id = _next_request(draft)
    draft.ledger = replace(draft.ledger, rounds=draft.ledger.rounds + 1)
    model, seq = draft.context.model_id, draft.ledger.seq
    draft.place_state()
    draft.act(RequestLlm(request_id, 1, model, seq))
    state = LlmRequesting(draft.ledger, request_id, 1, Phase.CONNECTING, seq, continuations=continuations, model=model)
    return draft.finish(state, *through)


def retry_request(draft: Draft, state: LlmRequesting) -> TransitionResult:
    """The next attempt: the same request and model, over what has been said by now, if the budget has room."""
    spent = budget.spent(draft.context.budget, draft.ledger)
    if spent and draft.context.rules >= Rules.INTERRUPTIONS:
        return _stop_for_budget(draft, spent)
    deliver_steers(draft)
    seq = draft.ledger.seq
    draft.place_state()
    draft.act(RequestLlm(state.request_id, state.attempt, state.model, seq))
    return draft.finish(replace(state, ledger=draft.ledger, phase=Phase.CONNECTING, retry_at=0, through_sequence=seq))


def begin_summary(draft: Draft, rejected: tuple[str, ...], *through: ContextState) -> TransitionResult:
    """The tool-less request that sums the conversation up (REQ-BED-020)."""
    deliver(draft)
    request_id = _next_request(draft)
    model, seq = draft.context.model_id, draft.ledger.seq
    draft.place_state()
    draft.act(RequestContinuation(request_id, 1, model, seq, rejected))
    state = AwaitingContinuation(draft.ledger, request_id, 1, Phase.CONNECTING, rejected, seq, model=model)
    return draft.finish(state, *through)


def retry_summary(draft: Draft, state: AwaitingContinuation) -> TransitionResult:
    """The next attempt of the summary request."""
    seq = draft.ledger.seq
    draft.place_state()
    draft.act(RequestContinuation(state.request_id, state.attempt, state.model, seq, state.rejected))
    return draft.finish(replace(state, ledger=draft.ledger, phase=Phase.CONNECTING, retry_at=0, through_sequence=seq))


def discard_stream(draft: Draft, state: LlmRequesting | AwaitingContinuation) -> None:
    """A request that had begun to stream ends without its message: its delta slot is closed (C6, I43)."""
    if state.phase is Phase.STREAMING:
        draft.notify(StreamDiscarded(state.request_id, state.attempt))


def abort_request(draft: Draft, state: LlmRequesting | AwaitingContinuation) -> None:
    """Void what streamed and hang up; nobody waits for the abort. In backoff nothing is in flight."""
    discard_stream(draft, state)
    if state.phase is not Phase.BACKOFF:
        draft.act(AbortLlm(state.request_id))


def _next_request(draft: Draft) -> str:
    draft.ledger = replace(draft.ledger, req=draft.ledger.req + 1)
    return f"{draft.context.conversation_id}:r{draft.ledger.req}"


def _count_turn(draft: Draft) -> None:
    """Sub-agents: after the last turn comes one grace turn, announced to the model (C31)."""
    turns, grace = draft.ledger.turns, draft.ledger.grace
    if turns >= (draft.ledger.max_turns or draft.context.limits.max_turns):
        draft.say_system(SystemKind.GRACE, texts.GRACE, meta=True)
        grace = True
    draft.ledger = replace(draft.ledger, turns=turns + 1, grace=grace)


def _stop_for_budget(draft: Draft, spent: str, *through: ContextState) -> TransitionResult:
    draft.say_system(SystemKind.BUDGET, texts.budget_reached(spent))
    if draft.context.is_sub_agent:
        text, reason = texts.SUB_AGENT_BUDGET, StopReason.INTERRUPTED
        return fail_sub_agent(draft, ErrorKind.BUDGET, text, reason, "budget", *through)
    return rest(draft, StopReason.INTERRUPTED, "budget", *through)
