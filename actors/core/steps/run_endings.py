"""How a run ends: at rest, in error, exhausted, or with a sub-agent's last word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, SystemKind, Text
from actors.core.effects import NotifyParent
from actors.core.errors import ErrorKind
from actors.core.notifications import StopReason
from actors.core.states import AgentFailed, AgentSucceeded, Cancelling, Completed, ContextExhausted, Error, Failed, Idle
from actors.core.steps import texts
from actors.core.steps.interruptions import note_cancel, note_restart
from actors.core.steps.runs import close_run

if TYPE_CHECKING:
    from actors.core.events import UserCancel
    from actors.core.fsm import ContextState
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import Draft


def rest(
    draft: Draft,
    reason: StopReason,
    detail: str = "",
    *through: ContextState,
    drop_queue: bool = False,
) -> TransitionResult:
    """Close the run and be ready for the next message."""
    close_run(draft, reason, detail, drop_queue=drop_queue)
    return draft.finish(Idle(draft.ledger), *through)


def fail(draft: Draft, kind: ErrorKind, text: str, *through: ContextState) -> TransitionResult:
    """The run failed: a conversation waits in Error for the next message, a sub-agent is Failed (C13)."""
    if draft.context.is_sub_agent:
        return fail_sub_agent(draft, kind, text, StopReason.ERROR, kind.value, *through)
    draft.say(MessageType.ERROR, Text(text), error_kind=kind.value)
    close_run(draft, StopReason.ERROR, kind.value, message=text)
    return draft.finish(Error(draft.ledger, text, kind), *through)


def fail_sub_agent(
    draft: Draft,
    kind: ErrorKind,
    text: str,
    reason: StopReason,
    detail: str,
    *through: ContextState,
    keep_partial: bool = True,
) -> TransitionResult:
    """A sub-agent ends without a result; its last text goes to the parent as the partial one."""
    partial = draft.ledger.last_text if keep_partial else ""
    close_run(draft, reason, detail, message=text if reason is StopReason.ERROR else "")
    draft.act(NotifyParent(AgentFailed(kind, text, partial)))
    return draft.finish(Failed(draft.ledger, kind, text, partial), *through)


def complete_sub_agent(draft: Draft, result: str, *through: ContextState) -> TransitionResult:
    """A sub-agent submitted its result."""
    close_run(draft, StopReason.COMPLETED)
    draft.act(NotifyParent(AgentSucceeded(result)))
    return draft.finish(Completed(draft.ledger, result), *through)


def cancelled(draft: Draft, cancel: UserCancel) -> TransitionResult:
    """A cancel that has nothing to wait for (REQ-BED-005)."""
    if draft.context.is_sub_agent:
        text = texts.sub_agent_cancelled(cancel.reason)
        return fail_sub_agent(draft, ErrorKind.CANCELLED, text, StopReason.INTERRUPTED, "")
    note_cancel(draft)
    return rest(draft, StopReason.INTERRUPTED, drop_queue=cancel.discard_queued)


def interrupted(draft: Draft) -> TransitionResult:
    """The server restarted, or is shutting down (C35): nothing goes on by itself, nothing waits."""
    if draft.context.is_sub_agent:
        text = texts.SUB_AGENT_INTERRUPTED
        return fail_sub_agent(draft, ErrorKind.INTERRUPTED, text, StopReason.INTERRUPTED, "restart")
    if not isinstance(draft.before, Cancelling):  # the cancel is what the agent is told of
        note_restart(draft)
    return rest(draft, StopReason.INTERRUPTED, "restart", drop_queue=True)


def exhaust(draft: Draft, summary: str, reason: StopReason, *through: ContextState) -> TransitionResult:
    """The context is used up for good; the summary message is already in the draft (REQ-BED-021)."""
    close_run(
        draft, reason, "context_exhausted", message=summary if reason is StopReason.ERROR else "", drop_queue=True
    )
    return draft.finish(ContextExhausted(draft.ledger, summary), *through)


def exhaust_with_fallback(draft: Draft, reason: StopReason) -> TransitionResult:
    """No summary can be had: a fixed text takes its place (REQ-BED-020)."""
    draft.say_system(SystemKind.SUMMARY_FALLBACK, texts.FALLBACK_SUMMARY)
    return exhaust(draft, texts.FALLBACK_SUMMARY, reason)
