"""The ways in which a run ends: the conversation becomes idle or failed, its context is full, or a sub-agent ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, SystemKind, Text
from actors.core.context import Rules
from actors.core.effects import NotifyParent
from actors.core.errors import ErrorKind
from actors.core.notifications import StopReason
from actors.core.states import AgentFailed, AgentSucceeded, Cancelling, Completed, ContextExhausted, Error, Failed, Idle
from actors.core.steps import texts
from actors.core.steps.notices import queue_cancel_notice, queue_restart_notice
from actors.core.steps.runs import close_run

if TYPE_CHECKING:
    from actors.core.events import UserCancel
    from actors.core.fsm import ContextState
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder


def become_idle(
    builder: TransitionBuilder,
    reason: StopReason,
    detail: str = "",
    *through: ContextState,
    output: str = "",
    drop_queue: bool = False,
) -> TransitionResult:
    """Close the run, with its output if there is one, and become Idle."""
    close_run(builder, reason, detail, output=output, drop_queue=drop_queue)
    return builder.finish(Idle(builder.ledger), *through)


def fail_run(builder: TransitionBuilder, kind: ErrorKind, text: str, *through: ContextState) -> TransitionResult:
    """Fail the run: a conversation becomes Error until the next message, a sub-agent becomes Failed."""
    if builder.context.is_sub_agent:
        return fail_sub_agent(builder, kind, text, StopReason.ERROR, kind.value, *through)
    builder.add_message(MessageType.ERROR, Text(text), error_kind=kind.value)
    close_run(builder, StopReason.ERROR, kind.value, message=text)
    return builder.finish(Error(builder.ledger, text, kind), *through)


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
    builder.add_effect(NotifyParent(AgentFailed(kind, text, partial)))
    return builder.finish(Failed(builder.ledger, kind, text, partial), *through)


def complete_sub_agent(builder: TransitionBuilder, result: str, *through: ContextState) -> TransitionResult:
    """End a sub-agent with the result it submitted."""
    close_run(builder, StopReason.COMPLETED)
    builder.add_effect(NotifyParent(AgentSucceeded(result)))
    return builder.finish(Completed(builder.ledger, result), *through)


def cancel_run(builder: TransitionBuilder, cancel: UserCancel) -> TransitionResult:
    """End a cancelled run at once, because nothing has to stop first (REQ-BED-005)."""
    if builder.context.is_sub_agent:
        text = texts.sub_agent_cancelled(cancel.reason)
        return fail_sub_agent(builder, ErrorKind.CANCELLED, text, StopReason.INTERRUPTED, "")
    queue_cancel_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, drop_queue=cancel.discard_queued)


def interrupt_run(builder: TransitionBuilder) -> TransitionResult:
    """End a run that a restart or shutdown of the server interrupted.

    Queued messages are dropped and nothing resumes by itself.
    """
    if builder.context.is_sub_agent:
        text = texts.SUB_AGENT_INTERRUPTED
        return fail_sub_agent(builder, ErrorKind.INTERRUPTED, text, StopReason.INTERRUPTED, "restart")
    if not isinstance(builder.before, Cancelling):  # a cancelled run already has a cancel notice
        queue_restart_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, "restart", drop_queue=True)


def exhaust_context(
    builder: TransitionBuilder, summary: str, reason: StopReason, *through: ContextState
) -> TransitionResult:
    """End a conversation for good because its context is full (REQ-BED-021); its summary message is already added."""
    close_run(
        builder,
        reason,
        "context_exhausted",
        message=summary if reason is StopReason.ERROR else "",
        output=builder.ledger.output,
        drop_queue=True,
    )
    return builder.finish(ContextExhausted(builder.ledger, summary), *through)


def exhaust_with_fallback(builder: TransitionBuilder, reason: StopReason) -> TransitionResult:
    """End the conversation with a fixed text, because no summary could be written (REQ-BED-020)."""
    first = builder.context.rules < Rules.NOTHING_LOST
    text = texts.FIRST_FALLBACK_SUMMARY if first else texts.FALLBACK_SUMMARY
    builder.add_system_message(SystemKind.SUMMARY_FALLBACK, text)
    return exhaust_context(builder, text, reason)
