"""The inference boundary: the point before a model request where queued messages are added and the request is built."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import states
from actors.core.content import SystemKind
from actors.core.context import Rules
from actors.core.effects import AbortLlm, RequestContinuation, RequestLlm, TransitionResult
from actors.core.errors import ErrorKind
from actors.core.notifications import StopReason, StreamDiscarded
from actors.core.states import AwaitingContinuation, Error, Idle, LlmPhase, LlmRequesting
from actors.core.steps import texts
from actors.core.steps.notices import deliver_notices, notice_hidden_images
from actors.core.steps.runs import become_idle, deliver_steers, fail_sub_agent
from actors.core.steps.transition_builder import TransitionBuilder
from actors.core.summary import ContextState


def begin_request(builder: TransitionBuilder, *through: ContextState, continuations: int = 0) -> TransitionResult:
    """Deliver notices and steers, then start the next model request, or end the run at its budget or round limit.

    `continuations` counts the requests, this one included, that continue the same unfinished text.
    """
    if spent := _spent(builder):
        return _stop_for_budget(builder, spent, *through)
    limits, ledger = builder.context.limits, builder.ledger
    if ledger.rounds >= limits.max_rounds and not builder.context.is_sub_agent:
        builder.add_system_message(SystemKind.ROUND_CAP, texts.round_cap(ledger.rounds))
        return become_idle(builder, StopReason.INTERRUPTED, "round_cap", *through)
    deliver_notices(builder)
    notice_hidden_images(builder)
    _notice_limits(builder)
    if builder.context.is_sub_agent:
        _count_turn(builder)
    deliver_steers(builder)
    request_id = _next_request(builder)
    builder.ledger = replace(builder.ledger, rounds=builder.ledger.rounds + 1)
    model, seq = builder.context.model_id, builder.ledger.seq
    builder.place_state()
    builder.add_effect(RequestLlm(request_id, 1, model, seq))
    state = LlmRequesting(
        builder.ledger, request_id, 1, LlmPhase.CONNECTING, seq, continuations=continuations, model=model
    )
    return builder.finish(state, *through)


def retry_request(builder: TransitionBuilder, state: LlmRequesting) -> TransitionResult:
    """Add steers and start the next attempt with the same request id and model, unless the budget is used up."""
    spent = _spent(builder)
    if spent and builder.context.rules >= Rules.INTERRUPTIONS:
        return _stop_for_budget(builder, spent)
    deliver_steers(builder)
    seq = builder.ledger.seq
    builder.place_state()
    builder.add_effect(RequestLlm(state.request_id, state.attempt, state.model, seq))
    return builder.finish(
        replace(state, ledger=builder.ledger, phase=LlmPhase.CONNECTING, retry_at=0, through_sequence=seq)
    )


def begin_summary(
    builder: TransitionBuilder,
    rejected: tuple[str, ...],
    *through: ContextState,
    before: Idle | Error | None = None,
    unanswered: bool = False,
) -> TransitionResult:
    """Start the tool-less request for a summary (REQ-BED-020).

    `rejected` names the tools whose calls did not run; `before` is where a failure leads back, None if the context is
    full; `unanswered`: the run ends without an answer.
    """
    deliver_notices(builder)
    notice_hidden_images(builder)
    request_id = _next_request(builder)
    model, seq = builder.context.model_id, builder.ledger.seq
    builder.place_state()
    builder.add_effect(RequestContinuation(request_id, 1, model, seq, rejected))
    phase = LlmPhase.CONNECTING
    state = AwaitingContinuation(
        builder.ledger, request_id, 1, phase, rejected, seq, model=model, before=before, unanswered=unanswered
    )
    return builder.finish(state, *through)


def retry_summary(builder: TransitionBuilder, state: AwaitingContinuation) -> TransitionResult:
    seq = builder.ledger.seq
    builder.place_state()
    builder.add_effect(RequestContinuation(state.request_id, state.attempt, state.model, seq, state.rejected))
    return builder.finish(
        replace(state, ledger=builder.ledger, phase=LlmPhase.CONNECTING, retry_at=0, through_sequence=seq)
    )


def discard_stream(builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation) -> None:
    """If any text of this attempt was streamed, notify clients that it is no longer valid."""
    if state.phase is LlmPhase.STREAMING:
        builder.notify(StreamDiscarded(state.request_id, state.attempt))


def abort_request(builder: TransitionBuilder, state: LlmRequesting | AwaitingContinuation) -> None:
    """Discard the streamed text and abort the request; in backoff (between two attempts) there is nothing to abort."""
    discard_stream(builder, state)
    if state.phase is not LlmPhase.BACKOFF:
        builder.add_effect(AbortLlm(state.request_id))


def _next_request(builder: TransitionBuilder) -> str:
    builder.ledger = replace(builder.ledger, req=builder.ledger.req + 1)
    return f"{builder.context.conversation_id}:r{builder.ledger.req}"


def _count_turn(builder: TransitionBuilder) -> None:
    """Count a turn of a sub-agent. At the turn limit, tell the model that this request is its last."""
    turns, grace = builder.ledger.turns, builder.ledger.grace
    if turns >= (builder.ledger.max_turns or builder.context.limits.max_turns):
        builder.add_system_message(SystemKind.GRACE, texts.GRACE, meta=True)
        grace = True
    builder.ledger = replace(builder.ledger, turns=turns + 1, grace=grace)


def _spent(builder: TransitionBuilder) -> str:
    """The message about a used-up budget of the conversation, or quota of its principal; "" if there is none."""
    context = builder.context
    if spent := states.spent(context.budget, builder.ledger):
        return texts.budget_reached(spent)
    return texts.quota_reached(context.quota_spent) if context.quota_spent else ""


def _notice_limits(builder: TransitionBuilder) -> None:
    """Add notices, once a run, when most of the budget or of the requests is used up. People read them, too."""
    context, ledger = builder.context, builder.ledger
    ratio = context.limits.warn_ratio
    if context.rules < Rules.NOTHING_LOST:
        return
    if not ledger.budget_warned and (what := states.spent(context.budget, ledger, ratio)):
        builder.ledger = replace(ledger, budget_warned=True)
        builder.add_system_message(SystemKind.NONE, texts.budget_nears(ratio, what))
    cap = context.limits.max_rounds
    if 0 < ledger.rounds == int(cap * ratio) and not context.is_sub_agent:
        builder.add_system_message(SystemKind.NONE, texts.round_cap_nears(ledger.rounds, cap))


def _stop_for_budget(builder: TransitionBuilder, message: str, *through: ContextState) -> TransitionResult:
    builder.add_system_message(SystemKind.BUDGET, message)
    if builder.context.is_sub_agent:
        text, reason = texts.SUB_AGENT_BUDGET, StopReason.INTERRUPTED
        return fail_sub_agent(builder, ErrorKind.BUDGET, text, reason, "budget", *through)
    return become_idle(builder, StopReason.INTERRUPTED, "budget", *through)
