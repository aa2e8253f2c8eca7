"""The state AwaitingToolApproval: a person must decide before any call of a response runs (REQ-BED-015)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.errors import Reason, Rejected
from actors.core.events import (
    AgentsSpawned,
    ApprovalResponse,
    BeginLlm,
    CancelTimeout,
    FinishCancel,
    GridEvent,
    LlmAborted,
    LlmError,
    LlmResponse,
    LlmStreamChunk,
    LlmStreamStarted,
    PromoteFollowUp,
    Restart,
    RetryTimeout,
    SetMode,
    SpawnSubAgents,
    StartSubAgent,
    SubAgentResult,
    SubAgentTimeout,
    ToolAborted,
    ToolComplete,
    ToolRetryTimeout,
    ToolTransient,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import ApprovalDecision
from actors.core.result import TransitionResult, ignored
from actors.core.steps import texts
from actors.core.steps.approvals import resolve_question, withdraw_questions
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import cancel_run, interrupt_run
from actors.core.steps.tool_results import cancel_undecided, interrupt_calls
from actors.core.steps.tool_rounds import deny_calls, run_next_call
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import AwaitingToolApproval


def when_awaiting_tool_approval(
    state: AwaitingToolApproval, context: ConvContext, event: GridEvent
) -> TransitionResult:
    """Handle an event in AwaitingToolApproval. Raises Rejected for commands that this state does not accept."""
    match event:
        case ApprovalResponse():
            return _answer(state, context, event)
        case UserMessage():
            return queue_input(state, context, event, Reason.AWAITING_APPROVAL)
        case TriggerContinuation():
            raise refusal(context, event, Reason.AWAITING_APPROVAL)
        case SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case SetMode():
            return set_mode(state, context, event)
        case UserCancel():
            builder = TransitionBuilder(state, context, event.at)
            withdraw_questions(builder, state.undecided)
            cancel_undecided(builder, _ids(state))
            return cancel_run(builder, event)
        case Restart():
            builder = TransitionBuilder(state, context, event.at)
            withdraw_questions(builder, state.undecided)
            interrupt_calls(builder, _ids(state))
            return interrupt_run(builder)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


def _answer(state: AwaitingToolApproval, context: ConvContext, event: ApprovalResponse) -> TransitionResult:
    """Apply a person's decision about one call: the last approval starts all calls, the first denial skips them all."""
    if event.tool_use_id not in state.undecided:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED)
    builder = TransitionBuilder(state, context, event.at)
    others = tuple(call_id for call_id in state.undecided if call_id != event.tool_use_id)
    if not event.approve:
        resolve_question(builder, event.tool_use_id, ApprovalDecision.DENY, event.reason)
        withdraw_questions(builder, others)
        return deny_calls(builder, state.calls, event.tool_use_id, texts.denied(event.reason))
    resolve_question(builder, event.tool_use_id, ApprovalDecision.APPROVE, event.reason)
    if others:
        return builder.stay(replace(state, undecided=others))
    return run_next_call(builder, state.calls, _ids(state), ())


def _ids(state: AwaitingToolApproval) -> tuple[str, ...]:
    return tuple(call.id for call in state.calls)
