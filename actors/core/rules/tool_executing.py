"""The state ToolExecuting: the tool calls of a response run one after the other, in order (REQ-BED-004, 005)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import retry
from actors.core.content import ToolCancelled, ToolError, ToolResult, ToolSuccess
from actors.core.effects import RetryOf, ScheduleRetry
from actors.core.errors import ErrorKind, LlmFailure, Reason, Rejected
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
from actors.core.notifications import CallStatus, Retrying
from actors.core.result import TransitionResult, ignored
from actors.core.states import ToolExecuting, ToolPhase
from actors.core.steps import texts
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, requested_mode, traits_of
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.modes import change_mode, grant, set_mode
from actors.core.steps.notices import drop_job_end
from actors.core.steps.run_endings import cancel_run, interrupt_run
from actors.core.steps.sub_agent_steps import spawn_agents
from actors.core.steps.tool_results import add_call_result, cancel_calls, interrupt_calls
from actors.core.steps.tool_rounds import (
    complete_call,
    current_call,
    end_waiting,
    run_next_call,
    start_execution,
    stop_call,
    withdraw_asked,
)
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def when_tool_executing(state: ToolExecuting, context: ConvContext, event: GridEvent) -> TransitionResult:
    """Handle an event in ToolExecuting. Raises Rejected for commands that this state does not accept."""
    match event:
        case ToolComplete() | ToolTransient() | ToolAborted() | AgentsSpawned():
            return _outcome(state, context, event) if _concerns(state, event) else ignored(state)
        case ToolRetryTimeout():
            return (
                _retry(TransitionBuilder(state, context, event.at), state) if _is_due(state, event) else ignored(state)
            )
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return _cancel(state, context, event)
        case SetMode():
            return _stop_for_mode(state, context, event) if _stops(state, event) else set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            builder = TransitionBuilder(state, context, event.at)
            interrupt_calls(builder, (state.current_tool_id, *state.remaining_tool_ids))
            withdraw_asked(builder, state)
            if state.deadline:
                end_waiting(builder, state, CallStatus.WITHDRAWN)
            return interrupt_run(builder)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


Outcome = ToolComplete | ToolTransient | ToolAborted | AgentsSpawned


def _outcome(state: ToolExecuting, context: ConvContext, event: Outcome) -> TransitionResult:
    if isinstance(event, AgentsSpawned) and context.is_sub_agent:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    withdraw_asked(builder, state)
    match event:
        case ToolComplete():
            drop_job_end(builder, event.ended_job)
            return _completed(builder, state, event.result)
        case ToolTransient():
            return _transient(builder, state, event)
        case ToolAborted():
            return _completed(builder, state, ToolError(state.current_tool_id, texts.TOOL_ABORTED))
        case AgentsSpawned():
            if not event.agents:
                return _completed(builder, state, ToolError(state.current_tool_id, texts.NO_TASKS))
            return spawn_agents(builder, event.agents, call=state)


def _concerns(state: ToolExecuting, event: Outcome) -> bool:
    identity = (event.tool_use_id, event.execution_id)
    runs = state.phase is ToolPhase.RUNNING and not state.deadline
    return runs and identity == (state.current_tool_id, state.execution_id)


def _is_due(state: ToolExecuting, event: ToolRetryTimeout) -> bool:
    identity = (event.tool_use_id, event.execution_id, event.attempt)
    return state.phase is ToolPhase.BACKOFF and identity == (
        state.current_tool_id,
        state.execution_id,
        state.attempt,
    )


def _completed(builder: TransitionBuilder, state: ToolExecuting, result: ToolResult) -> TransitionResult:
    call = current_call(state)
    answer = add_call_result(builder, call, result)
    if call.name == REQUEST_MODE_UPGRADE and isinstance(result, ToolSuccess) and not builder.context.is_sub_agent:
        grant(builder, requested_mode(call))
    done = (*state.completed_results, answer)
    return run_next_call(builder, state.calls, state.remaining_tool_ids, done, refused=state.refused_ids)


def _transient(builder: TransitionBuilder, state: ToolExecuting, event: ToolTransient) -> TransitionResult:
    """Retry a call that cannot have changed anything, while attempts are left; otherwise the failure is its result."""
    limits, traits = builder.context.limits, traits_of(builder.context, current_call(state).name)
    repeatable = not event.begun or (traits is not None and traits.retry_safe)
    if not repeatable or not retry.attempts_left(state.attempt, limits):
        text = texts.failed_after(state.attempt, event.message)
        return _completed(builder, state, ToolError(state.current_tool_id, text))
    attempt = state.attempt + 1
    wait = retry.delay(attempt, limits)
    call_id, execution_id = state.current_tool_id, state.execution_id
    builder.place_state()
    builder.add_effect(ScheduleRetry(wait, attempt, RetryOf.TOOL, tool_use_id=call_id, execution_id=execution_id))
    failure = LlmFailure(ErrorKind.UNKNOWN, event.message)
    builder.notify(Retrying(attempt, limits.max_attempts, builder.at + wait, failure, tool_use_id=call_id))
    waiting = replace(state, ledger=builder.ledger, questions=(), asked=0, attempt=attempt, phase=ToolPhase.BACKOFF)
    return builder.finish(replace(waiting, retry_at=builder.at + wait))


def _retry(builder: TransitionBuilder, state: ToolExecuting) -> TransitionResult:
    xid = start_execution(builder, current_call(state), state.attempt)
    return builder.finish(replace(state, ledger=builder.ledger, execution_id=xid, phase=ToolPhase.RUNNING, retry_at=0))


def _cancel(state: ToolExecuting, context: ConvContext, event: UserCancel) -> TransitionResult:
    """Become idle at once. The tool runner delays the next execution until the killed process tree has exited."""
    builder = TransitionBuilder(state, context, event.at)
    cancel_calls(builder, state.current_tool_id, state.remaining_tool_ids)
    stop_call(builder, state)
    return cancel_run(builder, event)


def _stops(state: ToolExecuting, event: SetMode) -> bool:
    return state.phase is ToolPhase.RUNNING and state.current_tool_id in event.stop


def _stop_for_mode(state: ToolExecuting, context: ConvContext, event: SetMode) -> TransitionResult:
    """Stop the running call, which has more rights than the new mode gives; the run continues (REQ-BED-016)."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    change_mode(builder, event.mode)
    stop_call(builder, state)
    return complete_call(builder, state, ToolCancelled(state.current_tool_id, texts.STOPPED_FOR_MODE[event.mode]))
