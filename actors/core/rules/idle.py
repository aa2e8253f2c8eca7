"""The state Idle: the conversation is ready for a message. A sub-agent is Idle only until its task arrives."""

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
from actors.core.result import TransitionResult, ignored
from actors.core.states import AwaitingLlm, Error, Idle, LlmReason
from actors.core.steps.command_steps import after_failure, refusal, spawn_from_command, start_run, trigger_summary
from actors.core.steps.modes import set_mode
from actors.core.steps.run_endings import cancel_run, interrupt_run
from actors.core.steps.runs import begin_follow_up, open_run
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def when_idle(state: Idle, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in Idle. Raises Rejected for commands that this state does not accept."""
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
        case (
            BeginLlm() | FinishCancel() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError()
            | LlmAborted() | RetryTimeout() | ToolComplete() | ToolTransient() | ToolAborted() | AgentsSpawned()
            | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
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
