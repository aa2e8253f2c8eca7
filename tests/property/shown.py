"""What people see of a state, written down a second time: each field of the summary by its own way to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from actors.core.states import (
    AwaitingContinuation,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Completed,
    Error,
    Failed,
    LlmRequesting,
    State,
    ToolExecuting,
)

if TYPE_CHECKING:
    from actors.core.context import ConvContext

QUIET = {"idle", "error", "context_exhausted", "completed", "failed"}


def shown(state: State, context: ConvContext) -> dict[str, Any]:
    """The fields of the summary that are not at their defaults."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(state).__name__).lower()
    ledger = state.ledger
    fields: dict[str, Any] = {
        "kind": kind,
        "run": f"{context.conversation_id}:{ledger.run}" * ledger.live,
        "busy": kind not in QUIET,
        **_details(state, context),
    }
    return {name: value for name, value in fields.items() if value not in ("", 0, (), None)}


def _details(state: State, context: ConvContext) -> dict[str, Any]:
    match state:
        case LlmRequesting() | AwaitingContinuation():
            same = ("request_id", "attempt", "retry_at", "last_error")
            retries = {"max_attempts": context.limits.max_attempts, "phase": str(state.phase)}
            return {name: getattr(state, name) for name in same} | retries
        case ToolExecuting():
            count = len(state.calls)
            done = len(state.completed_results)
            return {
                "attempt": state.attempt,
                "max_attempts": context.limits.max_attempts,
                "phase": str(state.phase),
                "retry_at": state.retry_at,
                "current_call": state.calls[count - len(state.remaining_tool_ids) - 1],
                "remaining_count": count - done - 1,
                "completed_count": done,
            }
        case AwaitingToolApproval():
            upgrades = {call.id for call in state.calls if call.name == "request_mode_upgrade"}
            return {
                "undecided": tuple(call for call in state.calls if call.id in state.undecided),
                "approval_kind": "mode_upgrade" if upgrades else "tool",
                "since": state.since,
            }
        case AwaitingSubAgents():
            agents = [
                (each.agent_id, each.index, each.task.strip().partition("\n")[0], each.deadline)
                for each in state.pending
            ]
            return {"pending_agents": tuple(agents), "completed_count": len(state.completed_results)}
        case Error():
            return {"error_kind": state.error_kind, "error_message": state.message}
        case Completed():
            return {"result": state.result}
        case Failed():
            return {"error_kind": state.kind, "error_message": state.error, "partial_result": state.partial_result}
        case _:
            return {}


def fields_of(summary: Any) -> dict[str, Any]:
    """A summary as `shown` has it."""
    fields = msgspec.structs.asdict(summary)
    fields["pending_agents"] = tuple(msgspec.structs.astuple(agent) for agent in summary.pending_agents)
    return {name: value for name, value in fields.items() if value not in ("", 0, (), None)}
