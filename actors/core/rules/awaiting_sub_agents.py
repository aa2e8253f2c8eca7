"""AwaitingSubAgents: sub-agents are at work; the last one's end moves on (REQ-BED-008)."""

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
from actors.core.steps.interruptions import note_cancel
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import interrupted
from actors.core.steps.runs import return_steers
from actors.core.steps.sub_agent_steps import find_agent, report
from actors.core.steps.tool_results import cancel_calls, interrupt_calls
from actors.core.steps.transition_builder import Draft

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def when_awaiting_sub_agents(state: AwaitingSubAgents, context: ConvContext, event: GridEvent) -> TransitionResult:
    """What happens to each event in AwaitingSubAgents."""
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
            draft = Draft(state, context, event.at)
            if state.tool_use_id:
                interrupt_calls(draft, (state.tool_use_id, *state.remaining_tool_ids))
            return interrupted(draft)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


def _ended(state: AwaitingSubAgents, context: ConvContext, event: SubAgentResult | SubAgentTimeout) -> TransitionResult:
    """A sub-agent answered, or its deadline passed: then it is cancelled and not waited for (C31)."""
    agent = find_agent(state.pending, event.agent_id)
    if agent is None:
        return ignored(state)
    draft = Draft(state, context, event.at)
    if isinstance(event, SubAgentResult):
        return report(draft, state, agent, event.result)
    draft.act(CancelSubAgents((agent.agent_id,)))
    return report(draft, state, agent, AgentTimedOut(event.partial_result))


def _cancel(state: AwaitingSubAgents, context: ConvContext, event: UserCancel) -> TransitionResult:
    """The round is answered at once; the sub-agents have two seconds to end (I7)."""
    draft = Draft(state, context, event.at)
    if state.tool_use_id:
        cancel_calls(draft, state.tool_use_id, state.remaining_tool_ids)
    return_steers(draft)
    note_cancel(draft)
    draft.place_state()
    draft.act(CancelSubAgents(state.pending_ids))
    draft.act(StartTimer(context.limits.cancel_timeout_ms, draft.run))
    after = Cancelling(draft.ledger, CancelKind.AGENTS, state.pending, event.discard_queued)
    return draft.finish(after)
