"""The state AwaitingSubAgents: sub-agents are running; the outcome of the last one ends the state (REQ-BED-008)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.effects import CancelSubAgents, StartTimer
from actors.core.errors import Reason
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
from actors.core.result import TransitionResult, ignored
from actors.core.states import AgentTimedOut, AwaitingSubAgents, CancelKind, Cancelling
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.modes import set_mode
from actors.core.steps.notices import queue_cancel_notice
from actors.core.steps.run_endings import interrupt_run
from actors.core.steps.runs import return_steers
from actors.core.steps.sub_agent_steps import find_agent, record_outcome
from actors.core.steps.tool_results import cancel_calls, interrupt_calls
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def when_awaiting_sub_agents(state: AwaitingSubAgents, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in AwaitingSubAgents. Raises Rejected for commands that this state does not accept."""
    match event:
        case SubAgentResult() | SubAgentTimeout():
            return _ended(state, context, event)
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return _cancel(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            builder = TransitionBuilder(state, context, event.at)
            if state.tool_use_id:
                interrupt_calls(builder, (state.tool_use_id, *state.remaining_tool_ids))
            return interrupt_run(builder)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


def _ended(state: AwaitingSubAgents, context: ConvContext, event: SubAgentResult | SubAgentTimeout) -> TransitionResult:
    agent = find_agent(state.pending, event.agent_id)
    if agent is None:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    if isinstance(event, SubAgentResult):
        return record_outcome(builder, state, agent, event.result)
    builder.add_effect(CancelSubAgents((agent.agent_id,)))
    return record_outcome(builder, state, agent, AgentTimedOut(event.partial_result))


def _cancel(state: AwaitingSubAgents, context: ConvContext, event: UserCancel) -> TransitionResult:
    """Give the open tool calls cancelled results at once, and the sub-agents two seconds to end."""
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
