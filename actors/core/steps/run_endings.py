"""How a run ends: at rest, in error, exhausted, or with a sub-agent's last word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, SystemKind, Text
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
    drop_queue: bool = False,
) -> TransitionResult:
    """Close the run and be ready for the next message."""
    close_run(builder, reason, detail, drop_queue=drop_queue)
    return builder.finish(Idle(builder.ledger), *through)


def fail_run(builder: TransitionBuilder, kind: ErrorKind, text: str, *through: ContextState) -> TransitionResult:
    """The run failed: a conversation waits in Error for the next message, a sub-agent is Failed (C13)."""
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
    """A sub-agent ends without a result; its last text goes to the parent as the partial one."""
    partial = builder.ledger.last_text if keep_partial else ""
    close_run(builder, reason, detail, message=text if reason is StopReason.ERROR else "")
    builder.add_effect(NotifyParent(AgentFailed(kind, text, partial)))
    return builder.finish(Failed(builder.ledger, kind, text, partial), *through)


def complete_sub_agent(builder: TransitionBuilder, result: str, *through: ContextState) -> TransitionResult:
    """A sub-agent submitted its result."""
    close_run(builder, StopReason.COMPLETED)
    builder.add_effect(NotifyParent(AgentSucceeded(result)))
    return builder.finish(Completed(builder.ledger, result), *through)


def cancel_run(builder: TransitionBuilder, cancel: UserCancel) -> TransitionResult:
    """A cancel that has nothing to wait for (REQ-BED-005)."""
    if builder.context.is_sub_agent:
        text = texts.sub_agent_cancelled(cancel.reason)
        return fail_sub_agent(builder, ErrorKind.CANCELLED, text, StopReason.INTERRUPTED, "")
    queue_cancel_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, drop_queue=cancel.discard_queued)


def interrupt_run(builder: TransitionBuilder) -> TransitionResult:
    """The server restarted, or is shutting down (C35): nothing goes on by itself, nothing waits."""
    if builder.context.is_sub_agent:
        text = texts.SUB_AGENT_INTERRUPTED
        return fail_sub_agent(builder, ErrorKind.INTERRUPTED, text, StopReason.INTERRUPTED, "restart")
    if not isinstance(builder.before, Cancelling):  # the cancel is what the agent is told of
        queue_restart_notice(builder)
    return become_idle(builder, StopReason.INTERRUPTED, "restart", drop_queue=True)


def exhaust_context(
    builder: TransitionBuilder, summary: str, reason: StopReason, *through: ContextState
) -> TransitionResult:
    """The context is used up for good; the summary message is already in the builder (REQ-BED-021)."""
    close_run(
        builder, reason, "context_exhausted", message=summary if reason is StopReason.ERROR else "", drop_queue=True
    )
    return builder.finish(ContextExhausted(builder.ledger, summary), *through)


def exhaust_with_fallback(builder: TransitionBuilder, reason: StopReason) -> TransitionResult:
    """No summary can be had: a fixed text takes its place (REQ-BED-020)."""
    builder.add_system_message(SystemKind.SUMMARY_FALLBACK, texts.FALLBACK_SUMMARY)
    return exhaust_context(builder, texts.FALLBACK_SUMMARY, reason)
