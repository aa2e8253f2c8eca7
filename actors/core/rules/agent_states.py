"""The states AwaitingSubAgents and Cancelling, which end once everything that they wait for has ended."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import events
from actors.core.context import ConvContext
from actors.core.effects import CancelSubAgents, StartTimer, TransitionResult
from actors.core.errors import Reason
from actors.core.notifications import StopReason
from actors.core.states import AgentTimedOut, AwaitingSubAgents, CancelKind, Cancelling
from actors.core.steps.command_steps import find_agent, queue_input, record_outcome, refusal
from actors.core.steps.notices import queue_cancel_notice, set_mode
from actors.core.steps.runs import become_idle, interrupt_run, return_steers
from actors.core.steps.tool_rounds import cancel_calls, interrupt_calls
from actors.core.steps.transition_builder import TransitionBuilder, ignored


def when_awaiting_sub_agents(
    state: AwaitingSubAgents, context: ConvContext, event: events.GridEvent
) -> TransitionResult:
    match event:
        case events.SubAgentResult() | events.SubAgentTimeout():
            return _ended(state, context, event)
        case events.UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case events.UserCancel():
            return _cancel(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.Command():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            builder = TransitionBuilder(state, context, event.at)
            if state.tool_use_id:
                interrupt_calls(builder, (state.tool_use_id, *state.remaining_tool_ids))
            return interrupt_run(builder)
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer():
            return ignored(state)


def _ended(
    state: AwaitingSubAgents, context: ConvContext, event: events.SubAgentResult | events.SubAgentTimeout
) -> TransitionResult:
    agent = find_agent(state.pending, event.agent_id)
    if agent is None:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    if isinstance(event, events.SubAgentResult):
        return record_outcome(builder, state, agent, event.result)
    builder.add_effect(CancelSubAgents((agent.agent_id,)))
    return record_outcome(builder, state, agent, AgentTimedOut(event.partial_result))


def _cancel(state: AwaitingSubAgents, context: ConvContext, event: events.UserCancel) -> TransitionResult:
    """Give the open tool calls cancelled results at once; the sub-agents have a time limit in which to end."""
    builder = TransitionBuilder(state, context, event.at)
    if state.tool_use_id:
        cancel_calls(builder, state.tool_use_id, state.remaining_tool_ids)
    return_steers(builder)
    queue_cancel_notice(builder)
    builder.place_state()
    builder.add_effect(CancelSubAgents(state.pending_ids))
    builder.add_effect(StartTimer(context.limits.cancel_timeout_ms, builder.run))
    after = Cancelling(builder.ledger, CancelKind.AGENTS, state.pending, event.discard_queued)
    return builder.finish(after)


def when_cancelling(state: Cancelling, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.FinishCancel():
            return _finish(state, context, event.at) if state.kind is CancelKind.LLM else ignored(state)
        case events.LlmResponse() | events.LlmError() | events.LlmAborted():
            aborted = (state.request_id, state.attempt) == (event.request_id, event.attempt)
            concerns = state.kind is CancelKind.LLM and aborted
            return _finish(state, context, event.at) if concerns else ignored(state)
        case events.SubAgentResult() | events.SubAgentTimeout():
            return _agent_ended(state, context, event)
        case events.CancelTimeout():
            if event.run_id != TransitionBuilder(state, context, event.at).run:
                return ignored(state)
            return _finish(state, context, event.at, "cancel_timeout")
        case events.UserCancel():
            return _upgrade(state, context, event)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.UserMessage() | events.SpawnSubAgents():
            raise refusal(context, event, Reason.CANCELLING)
        case events.ApprovalResponse() | events.TriggerContinuation() | events.StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            return interrupt_run(TransitionBuilder(state, context, event.at))
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer():
            return ignored(state)


def _finish(state: Cancelling, context: ConvContext, at: int, detail: str = "") -> TransitionResult:
    return become_idle(
        TransitionBuilder(state, context, at), StopReason.INTERRUPTED, detail, drop_queue=state.discard_queued
    )


def _agent_ended(
    state: Cancelling, context: ConvContext, event: events.SubAgentResult | events.SubAgentTimeout
) -> TransitionResult:
    agent = find_agent(state.pending_agents, event.agent_id)
    if agent is None:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    if isinstance(event, events.SubAgentTimeout):
        builder.add_effect(CancelSubAgents((agent.agent_id,)))
    left = tuple(other for other in state.pending_agents if other is not agent)
    if left:
        return builder.stay(replace(state, pending_agents=left))
    return become_idle(builder, StopReason.INTERRUPTED, drop_queue=state.discard_queued)


def _upgrade(state: Cancelling, context: ConvContext, event: events.UserCancel) -> TransitionResult:
    """Apply a second cancel: it has an effect only if it discards queued messages and the first one did not."""
    if not event.discard_queued or state.discard_queued:
        return ignored(state)
    return TransitionBuilder(state, context, event.at).stay(replace(state, discard_queued=True))
