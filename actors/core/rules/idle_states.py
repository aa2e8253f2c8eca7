"""The states in which no run is open (Idle, Error, the three final ones), and how a fault of the server ends a run."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import events, states
from actors.core.content import ToolError
from actors.core.context import ConvContext
from actors.core.effects import CancelSubAgents, TransitionResult
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import StopReason
from actors.core.steps import runs, texts
from actors.core.steps.approvals import withdraw_questions
from actors.core.steps.command_steps import after_failure, refusal, spawn_from_command, start_run, trigger_summary
from actors.core.steps.notices import set_mode
from actors.core.steps.tool_rounds import add_result, stop_call
from actors.core.steps.transition_builder import TransitionBuilder, ignored


def when_idle(state: states.Idle, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.UserMessage():
            return start_run(state, context, event)
        case events.SpawnSubAgents():
            return spawn_from_command(state, context, event)
        case events.TriggerContinuation():
            return trigger_summary(state, context, event)
        case events.StartSubAgent():
            return _start_sub_agent(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.ApprovalResponse():
            raise refusal(context, event, Reason.NOT_AWAITING_APPROVAL)
        case events.UserCancel():
            if context.is_sub_agent:
                return runs.cancel_run(TransitionBuilder(state, context, event.at), event)
            return ignored(state)
        case events.Restart():
            if context.is_sub_agent:
                return runs.interrupt_run(TransitionBuilder(state, context, event.at))
            return ignored(state)
        case events.PromoteFollowUp():
            return promote(state, context, event)
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def promote(state: states.Idle | states.Error, context: ConvContext, event: events.PromoteFollowUp) -> TransitionResult:
    """Begin a run with the oldest queued follow-up message; the event is ignored if there is none."""
    if not state.ledger.follows:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    runs.begin_follow_up(builder)
    return builder.finish(states.AwaitingLlm(builder.ledger, states.LlmReason.USER_MESSAGE), *after_failure(state))


def _start_sub_agent(state: states.Idle, context: ConvContext, event: events.StartSubAgent) -> TransitionResult:
    if not context.is_sub_agent:
        raise Rejected(Reason.NOT_SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    runs.open_run(builder, states.RunOptions())
    builder.ledger = replace(builder.ledger, max_turns=event.max_turns)
    builder.add_user_message(event.message_id, event.task, (), "direct")
    return builder.finish(states.AwaitingLlm(builder.ledger, states.LlmReason.USER_MESSAGE))


def when_error(state: states.Error, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.UserMessage():
            return start_run(state, context, event)
        case events.SpawnSubAgents():
            return spawn_from_command(state, context, event)
        case events.TriggerContinuation():
            return trigger_summary(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.ApprovalResponse() | events.StartSubAgent():
            raise refusal(context, event, Reason.NOT_AWAITING_APPROVAL)
        case events.Restart():
            return runs.become_idle(
                TransitionBuilder(state, context, event.at), StopReason.INTERRUPTED, "restart", drop_queue=True
            )
        case events.PromoteFollowUp():
            return promote(state, context, event)
        case events.UserCancel():
            return ignored(state)
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def when_terminal(
    state: states.ContextExhausted | states.Completed | states.Failed, event: events.GridEvent
) -> TransitionResult:
    """Handle an event in a terminal state. Raises Rejected for all commands except a cancel, which is ignored."""
    match event:
        case events.UserMessage():
            exhausted = isinstance(state, states.ContextExhausted)
            raise Rejected(Reason.CONTEXT_EXHAUSTED if exhausted else Reason.TERMINAL)
        case events.UserCancel() | events.Restart():
            return ignored(state)
        case events.Command():
            raise Rejected(Reason.TERMINAL)
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def handle_fault(state: states.State, context: ConvContext, event: events.InternalFault) -> TransitionResult:
    """End the run with kind UNKNOWN: abort its work, and give open calls an error result. Ignored if nothing runs."""
    if isinstance(state, states.INACTIVE):
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    for call_id in states.open_calls(state):
        add_result(builder, ToolError(call_id, texts.FAULT))
    match state:
        case states.LlmRequesting() | states.AwaitingContinuation():
            runs.abort_request(builder, state)
        case states.AwaitingToolApproval():
            withdraw_questions(builder, state.undecided)
        case states.ToolExecuting():
            stop_call(builder, state)
        case states.AwaitingSubAgents():
            builder.add_effect(CancelSubAgents(state.pending_ids))
        case states.Cancelling() if state.pending_agents:
            builder.add_effect(CancelSubAgents(tuple(agent.agent_id for agent in state.pending_agents)))
        case _:
            pass
    return runs.fail_run(builder, ErrorKind.UNKNOWN, event.message)
