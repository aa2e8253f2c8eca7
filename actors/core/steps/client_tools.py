"""Calls of tools that clients run: the state machine waits for a client's answer until the call's deadline.

Each wait ends in exactly one way, and clients are notified of it: answered, timed out, or withdrawn because the run was
cancelled, interrupted or failed. A late or second answer is refused, and so is an answer to any other call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import ToolError, ToolOutcome
from actors.core.errors import Reason, Rejected
from actors.core.notifications import CallStatus
from actors.core.result import TransitionResult, ignored
from actors.core.states import State, ToolExecuting
from actors.core.steps import texts
from actors.core.steps.approvals import traits_of
from actors.core.steps.tool_rounds import complete_call, current_call, end_waiting
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.events import SubmitToolResult, ToolDeadline


def take_answer(state: State, context: ConvContext, event: SubmitToolResult) -> TransitionResult:
    """Make a client's answer the result of its call. Raises Rejected if that call does not wait for an answer."""
    waiting = waiting_call(state)
    if waiting is None or waiting.current_tool_id != event.tool_use_id:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, texts.NO_SUCH_WAIT)
    builder = TransitionBuilder(waiting, context, event.at)
    end_waiting(builder, waiting, CallStatus.ANSWERED)
    took = max(0, event.at - waiting.deadline + _timeout(waiting, context))
    return complete_call(builder, waiting, replace(event.result, duration_ms=took))


def end_wait(state: State, context: ConvContext, event: ToolDeadline) -> TransitionResult:
    """Give a call that no client answered in time an error result; the run continues. Ignored for other calls."""
    waiting = waiting_call(state)
    if waiting is None or (waiting.current_tool_id, waiting.execution_id) != (event.tool_use_id, event.execution_id):
        return ignored(state)
    builder = TransitionBuilder(waiting, context, event.at)
    end_waiting(builder, waiting, CallStatus.TIMED_OUT)
    waited = _timeout(waiting, context)
    text = texts.client_silent(waited // 1_000)
    return complete_call(builder, waiting, ToolError(event.tool_use_id, text, ToolOutcome.TIMED_OUT, waited))


def waiting_call(state: State) -> ToolExecuting | None:
    """Return the state if its current call waits for a client's answer, else None."""
    return state if isinstance(state, ToolExecuting) and state.deadline else None


def _timeout(state: ToolExecuting, context: ConvContext) -> int:
    traits = traits_of(context, current_call(state).name)
    return traits.timeout_ms if traits is not None else 0
