"""The state Cancelling: a cancel is being carried out.

The state lasts only while sub-agents end, for at most two seconds (REQ-BED-005).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.effects import CancelSubAgents
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
from actors.core.notifications import StopReason
from actors.core.result import TransitionResult, ignored
from actors.core.states import CancelKind, Cancelling
from actors.core.steps.command_steps import refusal
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import become_idle, interrupt_run
from actors.core.steps.sub_agent_steps import find_agent
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def when_cancelling(state: Cancelling, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in Cancelling. Raises Rejected for commands that this state does not accept."""
    match event:
        case FinishCancel():
            return _finish(state, context, event.at) if state.kind is CancelKind.LLM else ignored(state)
        case LlmResponse() | LlmError() | LlmAborted():
            aborted = (state.request_id, state.attempt) == (event.request_id, event.attempt)
            concerns = state.kind is CancelKind.LLM and aborted
            return _finish(state, context, event.at) if concerns else ignored(state)
        case SubAgentResult() | SubAgentTimeout():
            return _agent_ended(state, context, event)
        case CancelTimeout():
            if event.run_id != TransitionBuilder(state, context, event.at).run:
                return ignored(state)
            return _finish(state, context, event.at, "cancel_timeout")
        case UserCancel():
            return _upgrade(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case UserMessage() | SpawnSubAgents():
            raise refusal(context, event, Reason.CANCELLING)
        case ApprovalResponse() | TriggerContinuation() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            return interrupt_run(TransitionBuilder(state, context, event.at))
        case (
            BeginLlm() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | RetryTimeout() | ToolComplete()
            | ToolTransient() | ToolAborted() | AgentsSpawned() | ToolRetryTimeout()
        ):  # fmt: skip
            return ignored(state)


def _finish(state: Cancelling, context: ConvContext, at: int, detail: str = "") -> TransitionResult:
    return become_idle(
        TransitionBuilder(state, context, at), StopReason.INTERRUPTED, detail, drop_queue=state.discard_queued
    )


def _agent_ended(state: Cancelling, context: ConvContext, event: SubAgentResult | SubAgentTimeout) -> TransitionResult:
    agent = find_agent(state.pending_agents, event.agent_id)
    if agent is None:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    if isinstance(event, SubAgentTimeout):
        builder.add_effect(CancelSubAgents((agent.agent_id,)))
    left = tuple(other for other in state.pending_agents if other is not agent)
    if left:
        return builder.stay(replace(state, pending_agents=left))
    return become_idle(builder, StopReason.INTERRUPTED, drop_queue=state.discard_queued)


def _upgrade(state: Cancelling, context: ConvContext, event: UserCancel) -> TransitionResult:
    """Apply a second cancel: it has an effect only if it discards queued messages and the first one did not."""
    if not event.discard_queued or state.discard_queued:
        return ignored(state)
    return TransitionBuilder(state, context, event.at).stay(replace(state, discard_queued=True))
