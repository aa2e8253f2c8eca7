"""How runs begin and end, what a sub-agent submits, what a run has used, and how its model requests begin.

The inference boundary is the point before a model request where queued messages are added.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.core import content, states
from actors.core.content import SystemKind
from actors.core.context import Budget, ConvContext, FollowUpPolicy, Rules
from actors.core.effects import AbortLlm, NotifyParent, RequestContinuation, RequestLlm, TransitionResult
from actors.core.errors import ErrorKind
from actors.core.events import LlmResponse, UsageReported, UserCancel
from actors.core.notifications import (
    ContextWarning,
    Fate,
    QueueChanged,
    RunStop,
    StopReason,
    StreamDiscarded,
    UsageChanged,
)
from actors.core.states import AwaitingContinuation, Error, Idle, LlmPhase, LlmRequesting, RunOptions
from actors.core.steps import texts
from actors.core.steps.notices import (
    deliver_interruption_notice,
    deliver_notices,
    notice_date,
    notice_hidden_images,
    queue_cancel_notice,
    queue_restart_notice,
)
from actors.core.steps.tool_rounds import add_result
from actors.core.steps.transition_builder import TransitionBuilder
from actors.core.summary import ContextState


def run_options(message: RunOptions) -> dict[str, Any]:
    """The run options of a message, by field name."""
    return {name: getattr(message, name) for name in RunOptions.__struct_fields__}


def open_run(builder: TransitionBuilder, message: RunOptions) -> None:
    """Open the next run, with the options of the message that begins it."""
    ledger, context = builder.ledger, builder.context
    mode = context.mode if any(traits.client for traits in context.tools) else None
    builder.ledger = replace(
        ledger,
        run=ledger.run + 1,
        live=True,
        rounds=0,
        run_usage=content.Usage(),
        run_mode=mode,
        output="",
        nudges=0,
        failure="",
        repeats=0,
        budget_warned=False,
        **run_options(message),
    )


def begin_run(builder: TransitionBuilder, message: RunOptions) -> None:
    """Deliver the notices of an interrupted run and of a new date, if there are any, and open the next run."""
    deliver_interruption_notice(builder)
    notice_date(builder)
    open_run(builder, message)


def close_run(
    builder: TransitionBuilder,
    reason: StopReason,
    detail: str = "",
    *,
    message: str = "",
    output: str = "",
    drop_queue: bool = False,
) -> None:
    """Return steers to their senders, persist the state, and stop the run if it is open.

    Follow-ups stay queued until PromoteFollowUp. They are discarded with `drop_queue`, or if this run did not complete
    and the policy allows them only after completed runs. Each one is then recorded as a run that was never executed.
    """
    return_steers(builder)
    builder.place_state()
    run = builder.run
    if run:
        builder.ledger = replace(builder.ledger, live=False)
        builder.notify(RunStop(run, reason, detail, message, output))
    only_completed = builder.context.follow_up_policy is FollowUpPolicy.COMPLETED_ONLY
    if drop_queue or (only_completed and reason is not StopReason.COMPLETED):
        _drop_follow_ups(builder)


def return_steers(builder: TransitionBuilder) -> None:
    """Return queued steers to their senders; they never enter the history."""
    for steer in builder.ledger.steers:
        builder.notify(QueueChanged(steer, "steer", Fate.RETURNED))
    if builder.ledger.steers:
        builder.ledger = replace(builder.ledger, steers=())


def deliver_steers(builder: TransitionBuilder) -> None:
    """Add queued steers to the history, oldest first. Any steer ends a series of equal failures."""
    steers = builder.ledger.steers
    if steers:
        builder.ledger = replace(builder.ledger, steers=(), failure="", repeats=0)
        notice_date(builder)
    for steer in steers:
        builder.notify(QueueChanged(steer, "steer", Fate.DELIVERED))
        builder.add_user_message(steer.message_id, steer.text, steer.images, "steer")


def begin_follow_up(builder: TransitionBuilder) -> None:
    deliver_interruption_notice(builder)
    notice_date(builder)
    _open_with(builder, builder.ledger.follows[0], Fate.DELIVERED)


def _drop_follow_ups(builder: TransitionBuilder) -> None:
    while builder.ledger.follows:
        _open_with(builder, builder.ledger.follows[0], Fate.DISCARDED)
        run = builder.run
        builder.ledger = replace(builder.ledger, live=False)
        builder.notify(RunStop(run, StopReason.INTERRUPTED, "not_run"))


def _open_with(builder: TransitionBuilder, follow_up: states.QueuedInput, fate: Fate) -> None:
    builder.ledger = replace(builder.ledger, follows=builder.ledger.follows[1:])
    builder.notify(QueueChanged(follow_up, "follow_up", fate))
    open_run(builder, follow_up)
    builder.add_user_message(follow_up.message_id, follow_up.text, follow_up.images, "follow_up")


def become_idle(
    builder: TransitionBuilder,
    reason: StopReason,
    detail: str = "",
    *through: ContextState,
    output: str = "",
    drop_queue: bool = False,
) -> TransitionResult:
    close_run(builder, reason, detail, output=output, drop_queue=drop_queue)
    return builder.finish(states.Idle(builder.ledger), *through)


def fail_run(builder: TransitionBuilder, kind: ErrorKind, text: str, *through: ContextState) -> TransitionResult:
    """Fail the run: a conversation becomes Error until the next message, a sub-agent becomes Failed."""
    if builder.context.is_sub_agent:
        return fail_sub_agent(builder, kind, text, StopReason.ERROR, kind.value, *through)
    builder.add_message(content.MessageType.ERROR, content.Text(text), error_kind=kind.value)
    close_run(builder, StopReason.ERROR, kind.value, message=text)
    return builder.finish(states.Error(builder.ledger, text, kind), *through)


def fail_sub_agent(
    builder: TransitionBuilder,
    kind: ErrorKind,
    text: str,
    reason: StopReason,
    detail: str,
    *through: ContextState,
    keep_partial: bool = True,
) -> TransitionResult:
    """End a sub-agent without a result; with `keep_partial`, its parent gets its last text as a partial result."""
    partial = builder.ledger.last_text if keep_partial else ""
    close_run(builder, reason, detail, message=text if reason is StopReason.ERROR else "")
    builder.add_effect(NotifyParent(states.AgentFailed(kind, text, partial)))
    return builder.finish(states.Failed(builder.ledger, kind, text, partial), *through)


def complete_sub_agent(builder: TransitionBuilder, result: str, *through: ContextState) -> TransitionResult:
    close_run(builder, StopReason.COMPLETED)
    builder.add_effect(NotifyParent(states.AgentSucceeded(result)))
    return builder.finish(states.Completed(builder.ledger, result), *through)


def cancel_run(builder: TransitionBuilder, cancel: UserCancel) -> TransitionResult:
    """End a cancelled run at once, in a state in which nothing has to stop first (REQ-BED-005)."""
    if builder.context.is_sub_agent:
        text = texts.sub_agent_cancelled(cancel.reason)
        return fail_sub_agent(builder, ErrorKind.CANCELLED, text, StopReason.INTERRUPTED, "")
    queue_cancel_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, drop_queue=cancel.discard_queued)


def interrupt_run(builder: TransitionBuilder) -> TransitionResult:
    """End a run that a restart or shutdown interrupted: the queue is dropped, and nothing resumes automatically."""
    if builder.context.is_sub_agent:
        text = texts.SUB_AGENT_INTERRUPTED
        return fail_sub_agent(builder, ErrorKind.INTERRUPTED, text, StopReason.INTERRUPTED, "restart")
    if not isinstance(builder.before, states.Cancelling):  # a cancelled run already has a cancel notice
        queue_restart_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, "restart", drop_queue=True)


def exhaust_context(
    builder: TransitionBuilder, summary: str, reason: StopReason, *through: ContextState
) -> TransitionResult:
    """End a conversation for good because its context is full (REQ-BED-021). Its summary must have been added."""
    close_run(
        builder,
        reason,
        "context_exhausted",
        message=summary if reason is StopReason.ERROR else "",
        output=builder.ledger.output,
        drop_queue=True,
    )
    return builder.finish(states.ContextExhausted(builder.ledger, summary), *through)


def exhaust_with_fallback(builder: TransitionBuilder, reason: StopReason) -> TransitionResult:
    """End the conversation with a fixed text in place of a summary, because none could be written (REQ-BED-020)."""
    first = builder.context.rules < Rules.NOTHING_LOST
    text = texts.FIRST_FALLBACK_SUMMARY if first else texts.FALLBACK_SUMMARY
    builder.add_system_message(content.SystemKind.SUMMARY_FALLBACK, text)
    return exhaust_context(builder, text, reason)


SUBMIT_RESULT = "submit_result"
SUBMIT_ERROR = "submit_error"
SUBMISSIONS = frozenset({SUBMIT_RESULT, SUBMIT_ERROR})
SUBMIT_OUTPUT = "submit_output"


class SubmitResult(Struct, frozen=True):
    result: str
    success: bool = True


class SubmitError(Struct, frozen=True):
    error: str


_RESULT, _ERROR = msgspec.json.Decoder(SubmitResult), msgspec.json.Decoder(SubmitError)


def submission_of(calls: tuple[content.ToolUse, ...], *, truncated: bool) -> SubmitResult | SubmitError | None:
    """The submission if the only call in the response is a complete and valid submission, else None."""
    if truncated or len(calls) != 1 or calls[0].name not in SUBMISSIONS:
        return None
    try:
        if calls[0].name == SUBMIT_RESULT:
            return _RESULT.decode(calls[0].input)
        return _ERROR.decode(calls[0].input)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def has_submission(calls: tuple[content.ToolUse, ...]) -> bool:
    return any(call.name in SUBMISSIONS for call in calls)


def accept_submission(
    builder: TransitionBuilder, call: content.ToolUse, submission: SubmitResult | SubmitError
) -> TransitionResult:
    """End the sub-agent with its submission; the call gets a result, so that the history stays valid."""
    through = ContextState.PROCESSING_LLM_RESPONSE
    if isinstance(submission, SubmitResult) and submission.success:
        add_result(builder, content.SubAgentComplete(call.id, texts.SUBMITTED))
        return complete_sub_agent(builder, submission.result, through)
    error = submission.result if isinstance(submission, SubmitResult) else submission.error
    add_result(
        builder, content.SubAgentComplete(call.id, texts.SUBMITTED, success=False, outcome=content.ToolOutcome.OK)
    )
    kind, reason = ErrorKind.SUB_AGENT_ERROR, StopReason.ERROR
    return fail_sub_agent(builder, kind, error, reason, kind.value, through, keep_partial=False)


def has_output_call(calls: tuple[content.ToolUse, ...]) -> bool:
    return any(call.name == SUBMIT_OUTPUT for call in calls)


def handle_output(
    builder: TransitionBuilder, event: LlmResponse, calls: tuple[content.ToolUse, ...]
) -> TransitionResult:
    """Handle an answer that tries to end a run with an output schema, with or without a submit_output call.

    A valid value completes the run. If steers (messages that join the run) are waiting, however, the run goes on, and a
    later value counts. If the value is missing or invalid, the agent is reminded; after too many reminders, the run
    fails.
    """
    through = ContextState.PROCESSING_LLM_RESPONSE
    if event.output:
        accept_output(builder, calls)
        if builder.ledger.steers:
            return builder.finish(states.AwaitingLlm(builder.ledger, states.LlmReason.STEER), through)
        return become_idle(builder, StopReason.COMPLETED, "", through, output=event.output)
    problem = event.output_problem or texts.OUTPUT_MISSING
    for call in calls:
        add_result(builder, content.ToolError(call.id, texts.output_misfit(problem)))
    if event.refusal:
        return fail_run(builder, ErrorKind.OUTPUT_INVALID, texts.OUTPUT_REFUSED, through)
    if builder.ledger.nudges >= builder.context.limits.max_nudges:
        return fail_run(builder, ErrorKind.OUTPUT_INVALID, texts.output_invalid(problem), through)
    builder.ledger = replace(builder.ledger, nudges=builder.ledger.nudges + 1)
    if not calls:
        builder.add_system_message(content.SystemKind.OUTPUT_NUDGE, texts.output_nudge(problem), meta=True)
    return builder.finish(states.AwaitingLlm(builder.ledger, states.LlmReason.NUDGE), through)


def accept_output(builder: TransitionBuilder, calls: tuple[content.ToolUse, ...]) -> None:
    """Give the submit_output call a success result; `calls` is empty if the answer's text was the submitted value."""
    for call in calls:
        add_result(builder, content.ToolSuccess(call.id, texts.OUTPUT_ACCEPTED))


def account_usage(builder: TransitionBuilder, usage: content.Usage | None, *, fills_window: bool) -> None:
    """Add a response's tokens to the totals, and warn clients when the window becomes nearly full.

    `fills_window` is False for failed attempts and summaries: they cost money, but no later request contains them.
    """
    if usage is None:
        return
    ledger, context = builder.ledger, builder.context
    used = usage.context_tokens if fills_window else ledger.used_tokens
    warned = context.near_full(used)
    builder.ledger = replace(
        ledger,
        used_tokens=used,
        warned=warned,
        total_usage=ledger.total_usage + usage,
        run_usage=ledger.run_usage + usage if ledger.live else ledger.run_usage,
    )
    builder.notify(UsageChanged(used, context.usable_window, builder.ledger.total_usage, warned))
    if warned and not ledger.warned:
        builder.notify(ContextWarning(used, context.usable_window))


def add_reported_usage(state: states.State, context: ConvContext, event: UsageReported) -> TransitionResult:
    """Add the tokens of aborted requests, side queries and sub-agents, in every state.

    They never count towards the window. Only those of sub-agents count towards the run: an aborted request reports
    its tokens after the run has ended.
    """
    builder = TransitionBuilder(state, context, event.at)
    ledger = builder.ledger
    if event.aside:
        builder.ledger = replace(ledger, aside_usage=ledger.aside_usage + event.usage)
    else:
        builder.ledger = replace(ledger, total_usage=ledger.total_usage + event.usage)
    if event.run and event.run == builder.run:
        builder.ledger = replace(builder.ledger, run_usage=ledger.run_usage + event.usage)
    builder.place_state()
    builder.notify(UsageChanged(ledger.used_tokens, context.usable_window, builder.ledger.total_usage, ledger.warned))
    return builder.stay_silently(replace(state, ledger=builder.ledger))


# --- budgets ----------------------------------------------------------------------------------------------------------


def spent(budget: Budget, ledger: states.Ledger, ratio: float = 1.0) -> str:
    """The first limit whose used part has reached `ratio`, in words such as "5000 tokens per run"; "" for none."""
    if 0 < budget.run_tokens * ratio <= ledger.run_usage.context_tokens:
        return f"{budget.run_tokens} tokens per run"
    return spent_for_good(budget, ledger, ratio)


def spent_for_good(budget: Budget, ledger: states.Ledger, ratio: float = 1.0) -> str:
    """Like `spent`, for the limits that a new run does not reset."""
    if 0 < budget.conversation_tokens * ratio <= ledger.whole_usage.context_tokens:
        return f"{budget.conversation_tokens} tokens"
    if 0 < budget.conversation_cost_micros * ratio <= ledger.whole_usage.cost_micros:
        return f"${budget.conversation_cost_micros / 1_000_000:.2f}"
    return ""


def share(budget: Budget, ledger: states.Ledger, among: int) -> Budget:
    """The budget of each of `among` sub-agents: an equal part of what is left of the parent's budget.

    Call this only while `spent` returns "".
    """
    whole = ledger.whole_usage
    limits = ((budget.run_tokens, ledger.run_usage.context_tokens), (budget.conversation_tokens, whole.context_tokens))
    tokens = [limit - used for limit, used in limits if limit]
    money = budget.conversation_cost_micros
    return Budget(
        conversation_tokens=max(1, min(tokens) // among) if tokens else 0,
        conversation_cost_micros=max(1, (money - whole.cost_micros) // among) if money else 0,
    )


# --- the inference boundary -------------------------------------------------------------------------------------------


def begin_request(builder: TransitionBuilder, *through: ContextState, continuations: int = 0) -> TransitionResult:
    """Deliver notices and steers, then start the next model request; at the budget or round limit, end the run instead.

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

    `rejected` names the tools whose calls did not run; `before` is the state to return to after a failure, None if the
    context is full; with `unanswered`, the run ends without an answer.
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
    """The message that the conversation's budget or its principal's quota is used up; "" if neither is."""
    context = builder.context
    if limit := spent(context.budget, builder.ledger):
        return texts.budget_reached(limit)
    return texts.quota_reached(context.quota_spent) if context.quota_spent else ""


def _notice_limits(builder: TransitionBuilder) -> None:
    """Once per run, add a notice when most of the budget is used up, and when most requests are. Users see it, too."""
    context, ledger = builder.context, builder.ledger
    ratio = context.limits.warn_ratio
    if context.rules < Rules.NOTHING_LOST:
        return
    if not ledger.budget_warned and (what := spent(context.budget, ledger, ratio)):
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
