"""The rule for internal faults (bugs of the server): the run fails, with an error that clients see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import ToolError
from actors.core.effects import CancelSubAgents
from actors.core.errors import ErrorKind
from actors.core.result import TransitionResult, ignored
from actors.core.states import (
    QUIET,
    AwaitingContinuation,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    LlmRequesting,
    State,
    ToolExecuting,
    open_calls,
)
from actors.core.steps import texts
from actors.core.steps.approvals import withdraw_questions
from actors.core.steps.inference import abort_request
from actors.core.steps.run_endings import fail_run
from actors.core.steps.tool_results import add_result
from actors.core.steps.tool_rounds import stop_call
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.events import InternalFault


def handle_fault(state: State, context: ConvContext, event: InternalFault) -> TransitionResult:
    """End the run with kind UNKNOWN: abort its work and give each open tool call an error result.

    Ignored in the states in which nothing runs.
    """
    if isinstance(state, QUIET):
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    for call_id in open_calls(state):
        add_result(builder, ToolError(call_id, texts.FAULT))
    match state:
        case LlmRequesting() | AwaitingContinuation():
            abort_request(builder, state)
        case AwaitingToolApproval():
            withdraw_questions(builder, state.undecided)
        case ToolExecuting():
            stop_call(builder, state)
        case AwaitingSubAgents():
            builder.add_effect(CancelSubAgents(state.pending_ids))
        case Cancelling() if state.pending_agents:
            builder.add_effect(CancelSubAgents(tuple(agent.agent_id for agent in state.pending_agents)))
        case _:
            pass
    return fail_run(builder, ErrorKind.UNKNOWN, event.message)
