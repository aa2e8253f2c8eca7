"""A tool round: which calls ask, and which one runs next (REQ-BED-004; SEMANTICS C14-C16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.context import ApprovalPolicy, ConvContext, ToolTraits
from actors.core.effects import ExecuteTool
from actors.core.fsm import ContextState
from actors.core.states import AwaitingLlm, LlmReason, ToolExecuting, ToolPhase
from actors.core.steps import texts
from actors.core.steps.tool_results import record, skipped

if TYPE_CHECKING:
    from actors.core.content import ToolResult, ToolUse
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import Draft

REQUEST_MODE_UPGRADE = "request_mode_upgrade"


def traits_of(context: ConvContext, name: str) -> ToolTraits | None:
    """What is known about a tool; None for one that is not offered."""
    for traits in context.tools:
        if traits.name == name:
            return traits
    return None


def asks(context: ConvContext, call: ToolUse) -> bool:
    """Whether a person is asked before this call runs. A tool that is not known counts as writing."""
    traits = traits_of(context, call.name)
    if call.name == REQUEST_MODE_UPGRADE or (traits is not None and traits.always_asks):
        return True
    if context.approval_policy is ApprovalPolicy.AUTO or call.name in context.always_approved:
        return False
    return context.approval_policy is ApprovalPolicy.ASK_ALL or traits is None or traits.writes


def run_next(
    draft: Draft,
    calls: tuple[ToolUse, ...],
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
) -> TransitionResult:
    """Start the first of the remaining calls, or go back to the model if none is left.

    In a sub-agent, calls that would have to ask are answered in passing (C32).
    """
    by_id = {call.id: call for call in calls}
    while remaining:
        call, remaining = by_id[remaining[0]], remaining[1:]
        if not (draft.context.is_sub_agent and asks(draft.context, call)):
            return _start(draft, calls, call, remaining, completed, *through)
        completed = (*completed, record(draft, skipped(call.id, texts.CANNOT_ASK)))
    return end_round(draft, *through)


def end_round(draft: Draft, *through: ContextState) -> TransitionResult:
    """Every call has its result: the model is next."""
    passed = (*through, ContextState.EXECUTING_TOOLS) if through else ()
    reason = LlmReason.TOOL_RESULTS
    return draft.finish(AwaitingLlm(draft.ledger, reason), *passed, ContextState.PROCESSING_TOOL_RESULTS)


def execute(draft: Draft, call: ToolUse, attempt: int) -> int:
    """Have a call run; returns its execution id, which is never used again."""
    draft.place_state()
    xid = draft.ledger.xid + 1
    draft.ledger = replace(draft.ledger, xid=xid)
    draft.act(ExecuteTool(call.id, xid, call.name, call.input, attempt))
    return xid


def _start(
    draft: Draft,
    calls: tuple[ToolUse, ...],
    call: ToolUse,
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
) -> TransitionResult:
    xid = execute(draft, call, 1)
    state = ToolExecuting(draft.ledger, call.id, remaining, completed, calls, xid, 1, ToolPhase.RUNNING)
    return draft.finish(state, *through)
