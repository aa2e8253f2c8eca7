"""Tool rounds: the calls of one response run one after the other (REQ-BED-004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.effects import ExecuteTool
from actors.core.fsm import ContextState
from actors.core.states import AwaitingLlm, LlmReason, ToolExecuting, ToolPhase
from actors.core.steps import texts
from actors.core.steps.approvals import needs_approval
from actors.core.steps.tool_results import add_result, skipped_result

if TYPE_CHECKING:
    from actors.core.content import ToolResult, ToolUse
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder


def run_next_call(
    builder: TransitionBuilder,
    calls: tuple[ToolUse, ...],
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
) -> TransitionResult:
    """Start the first of the remaining calls, or return to the model if none remains.

    In a sub-agent, calls that need approval get an error result instead: there is no person to ask.
    """
    by_id = {call.id: call for call in calls}
    while remaining:
        call, remaining = by_id[remaining[0]], remaining[1:]
        if not (builder.context.is_sub_agent and needs_approval(builder.context, call)):
            return _start(builder, calls, call, remaining, completed, *through)
        completed = (*completed, add_result(builder, skipped_result(call.id, texts.CANNOT_ASK)))
    return end_round(builder, *through)


def end_round(builder: TransitionBuilder, *through: ContextState) -> TransitionResult:
    """End a round whose calls all have results; the next step is a model request."""
    passed = (*through, ContextState.EXECUTING_TOOLS) if through else ()
    reason = LlmReason.TOOL_RESULTS
    return builder.finish(AwaitingLlm(builder.ledger, reason), *passed, ContextState.PROCESSING_TOOL_RESULTS)


def start_execution(builder: TransitionBuilder, call: ToolUse, attempt: int) -> int:
    """Start a call; returns its execution id, which is never reused."""
    builder.place_state()
    xid = builder.ledger.xid + 1
    builder.ledger = replace(builder.ledger, xid=xid)
    builder.add_effect(ExecuteTool(call.id, xid, call.name, call.input, attempt))
    return xid


def _start(
    builder: TransitionBuilder,
    calls: tuple[ToolUse, ...],
    call: ToolUse,
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
) -> TransitionResult:
    xid = start_execution(builder, call, 1)
    state = ToolExecuting(builder.ledger, call.id, remaining, completed, calls, xid, 1, ToolPhase.RUNNING)
    return builder.finish(state, *through)
