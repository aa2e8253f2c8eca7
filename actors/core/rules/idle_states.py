"""The states in which no run is open (Idle, Error, the three final ones), and how a fault of the server ends a run."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core.content import ToolError
from actors.core.context import ConvContext
from actors.core.effects import CancelSubAgents, TransitionResult, ignored
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import (
    ApprovalResponse,
    BeginLlm,
    Command,
    FinishCancel,
    GridEvent,
    InternalFault,
    LlmOutcome,
    PromoteFollowUp,
    Restart,
    SetMode,
    SettleEvent,
    SpawnSubAgents,
    StartSubAgent,
    SubAgentResult,
    Timer,
    ToolEvent,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import StopReason
from actors.core.states import (
    INACTIVE,
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    LlmReason,
    LlmRequesting,
    State,
    ToolExecuting,
    open_calls,
)
from actors.core.steps import texts
from actors.core.steps.approvals import withdraw_questions
from actors.core.steps.command_steps import after_failure, refusal, spawn_from_command, start_run, trigger_summary
from actors.core.steps.inference import abort_request
from actors.core.steps.notices import set_mode
from actors.core.steps.runs import become_idle, begin_follow_up, cancel_run, fail_run, interrupt_run, open_run
from actors.core.steps.tool_rounds import add_result, stop_call
from actors.core.steps.transition_builder import TransitionBuilder


def when_idle(state: Idle, context: ConvContext, event: GridEvent) -> TransitionResult:
    match event:
        case UserMessage():
            return start_run(state, context, event)
        case SpawnSubAgents():
            return spawn_from_command(state, context, event)
        case TriggerContinuation():
            return trigger_summary(state, context, event)
        case StartSubAgent():
            return _start_sub_agent(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse():
            raise refusal(context, event, Reason.NOT_AWAITING_APPROVAL)
        case UserCancel():
            if context.is_sub_agent:
                return cancel_run(TransitionBuilder(state, context, event.at), event)
            return ignored(state)
        case Restart():
            if context.is_sub_agent:
                return interrupt_run(TransitionBuilder(state, context, event.at))
            return ignored(state)
        case PromoteFollowUp():
            return promote(state, context, event)
        case LlmOutcome() | ToolEvent() | Timer() | BeginLlm() | FinishCancel() | SubAgentResult():
            return ignored(state)


def promote(state: Idle | Error, context: ConvContext, event: PromoteFollowUp) -> TransitionResult:
    """Begin a run with the oldest queued follow-up message; the event is ignored if there is none."""
    if not state.ledger.follows:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    begin_follow_up(builder)
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.USER_MESSAGE), *after_failure(state))


def _start_sub_agent(state: Idle, context: ConvContext, event: StartSubAgent) -> TransitionResult:
    if not context.is_sub_agent:
        raise Rejected(Reason.NOT_SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    open_run(builder)
    builder.ledger = replace(builder.ledger, max_turns=event.max_turns)
    builder.add_user_message(event.message_id, event.task, (), "direct")
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.USER_MESSAGE))


def when_error(state: Error, context: ConvContext, event: GridEvent) -> TransitionResult:
    match event:
        case UserMessage():
            return start_run(state, context, event)
        case SpawnSubAgents():
            return spawn_from_command(state, context, event)
        case TriggerContinuation():
            return trigger_summary(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | StartSubAgent():
            raise refusal(context, event, Reason.NOT_AWAITING_APPROVAL)
        case Restart():
            return become_idle(
                TransitionBuilder(state, context, event.at), StopReason.INTERRUPTED, "restart", drop_queue=True
            )
        case PromoteFollowUp():
            return promote(state, context, event)
        case UserCancel():
            return ignored(state)
        case LlmOutcome() | ToolEvent() | Timer() | BeginLlm() | FinishCancel() | SubAgentResult():
            return ignored(state)


def when_terminal(state: ContextExhausted | Completed | Failed, event: GridEvent) -> TransitionResult:
    """Handle an event in a terminal state. Raises Rejected for all commands except a cancel, which is ignored."""
    match event:
        case UserMessage():
            exhausted = isinstance(state, ContextExhausted)
            raise Rejected(Reason.CONTEXT_EXHAUSTED if exhausted else Reason.TERMINAL)
        case UserCancel() | Restart():
            return ignored(state)
        case Command():
            raise Rejected(Reason.TERMINAL)
        case SettleEvent() | LlmOutcome() | ToolEvent() | Timer() | SubAgentResult():
            return ignored(state)


def handle_fault(state: State, context: ConvContext, event: InternalFault) -> TransitionResult:
    """End the run with kind UNKNOWN: abort its work, give open calls an error result. Ignored where nothing runs."""
    if isinstance(state, INACTIVE):
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
