"""ToolExecuting: tools run one after the other, in request order (REQ-BED-004, 005)."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import retry
from actors.core.content import ToolCancelled, ToolError, ToolResult, ToolSuccess, ToolUse
from actors.core.context import ConvContext, Mode
from actors.core.effects import AbortTool, RetryOf, ScheduleRetry
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
from actors.core.notifications import Retrying
from actors.core.result import TransitionResult, ignored
from actors.core.states import ToolExecuting, ToolPhase
from actors.core.steps import texts
from actors.core.steps.command_steps import queue_input, refusal
from actors.core.steps.modes import change_mode, set_mode
from actors.core.steps.run_endings import cancelled, interrupted
from actors.core.steps.sub_agent_steps import spawn
from actors.core.steps.tool_results import cancel_calls, interrupt_calls, record
from actors.core.steps.tool_rounds import REQUEST_MODE_UPGRADE, execute, run_next, traits_of
from actors.core.steps.transition_builder import Draft


def when_tool_executing(state: ToolExecuting, context: ConvContext, event: GridEvent) -> TransitionResult:
    """What happens to each event in ToolExecuting."""
    match event:
        case ToolComplete() | ToolTransient() | ToolAborted() | AgentsSpawned():
            return _outcome(state, context, event) if _concerns(state, event) else ignored(state)
        case ToolRetryTimeout():
            return _retry(Draft(state, context, event.at), state) if _is_due(state, event) else ignored(state)
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return _cancel(state, context, event)
        case SetMode():
            return _stop_for_mode(state, context, event) if _stops(state, event) else set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            draft = Draft(state, context, event.at)
            interrupt_calls(draft, (state.current_tool_id, *state.remaining_tool_ids))
            return interrupted(draft)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | LlmStreamStarted() | LlmStreamChunk() | LlmResponse()
            | LlmError() | LlmAborted() | RetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


Outcome = ToolComplete | ToolTransient | ToolAborted | AgentsSpawned


def _outcome(state: ToolExecuting, context: ConvContext, event: Outcome) -> TransitionResult:
    draft = Draft(state, context, event.at)
    match event:
        case ToolComplete():
            return _completed(draft, state, event.result)
        case ToolTransient():
            return _transient(draft, state, event)
        case ToolAborted():
            return _completed(draft, state, ToolError(state.current_tool_id, texts.TOOL_ABORTED))
        case AgentsSpawned():
            if context.is_sub_agent:
                return ignored(state)
            if not event.agents:
                return _completed(draft, state, ToolError(state.current_tool_id, texts.NO_TASKS))
            return spawn(draft, event.agents, call=state)


def _concerns(state: ToolExecuting, event: Outcome) -> bool:
    """Whether an outcome is of the execution under way; anything else is stale."""
    identity = (event.tool_use_id, event.execution_id)
    return state.phase is ToolPhase.RUNNING and identity == (state.current_tool_id, state.execution_id)


def _is_due(state: ToolExecuting, event: ToolRetryTimeout) -> bool:
    identity = (event.tool_use_id, event.execution_id, event.attempt)
    return state.phase is ToolPhase.BACKOFF and identity == (
        state.current_tool_id,
        state.execution_id,
        state.attempt,
    )


def _completed(draft: Draft, state: ToolExecuting, result: ToolResult) -> TransitionResult:
    """Persist the result and start the next call, or go back to the model."""
    answer = record(draft, replace(result, tool_use_id=state.current_tool_id))
    upgrade = _current(state).name == REQUEST_MODE_UPGRADE and isinstance(result, ToolSuccess)
    if upgrade and not draft.context.is_sub_agent:
        change_mode(draft, Mode.UNRESTRICTED)
    return run_next(draft, state.calls, state.remaining_tool_ids, (*state.completed_results, answer))


def _transient(draft: Draft, state: ToolExecuting, event: ToolTransient) -> TransitionResult:
    """Try again what cannot have changed anything; otherwise the failure is the result (C14)."""
    limits, traits = draft.context.limits, traits_of(draft.context, _current(state).name)
    harmless = not event.begun or (traits is not None and traits.retry_safe)
    if not harmless or not retry.attempts_left(state.attempt, limits):
        text = texts.failed_after(state.attempt, event.message)
        return _completed(draft, state, ToolError(state.current_tool_id, text))
    attempt = state.attempt + 1
    wait = retry.delay(attempt, limits)
    call_id, execution_id = state.current_tool_id, state.execution_id
    draft.place_state()
    draft.act(ScheduleRetry(wait, attempt, RetryOf.TOOL, tool_use_id=call_id, execution_id=execution_id))
    failure = LlmFailure(ErrorKind.UNKNOWN, event.message)
    draft.notify(Retrying(attempt, limits.max_attempts, draft.at + wait, failure, tool_use_id=call_id))
    return draft.finish(replace(state, attempt=attempt, phase=ToolPhase.BACKOFF, retry_at=draft.at + wait))


def _retry(draft: Draft, state: ToolExecuting) -> TransitionResult:
    xid = execute(draft, _current(state), state.attempt)
    return draft.finish(replace(state, ledger=draft.ledger, execution_id=xid, phase=ToolPhase.RUNNING, retry_at=0))


def _cancel(state: ToolExecuting, context: ConvContext, event: UserCancel) -> TransitionResult:
    """Idle at once: the tool runner, not the state, holds back what comes next until the tree is dead (C2)."""
    draft = Draft(state, context, event.at)
    cancel_calls(draft, state.current_tool_id, state.remaining_tool_ids)
    if state.phase is ToolPhase.RUNNING:
        draft.act(AbortTool(state.current_tool_id, state.execution_id))
    return cancelled(draft, event)


def _stops(state: ToolExecuting, event: SetMode) -> bool:
    return state.phase is ToolPhase.RUNNING and state.current_tool_id in event.stop


def _stop_for_mode(state: ToolExecuting, context: ConvContext, event: SetMode) -> TransitionResult:
    """The call that runs may do more than the mode allows: it ends, and the run goes on without it (REQ-BED-016)."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    draft = Draft(state, context, event.at)
    change_mode(draft, event.mode)
    draft.act(AbortTool(state.current_tool_id, state.execution_id))
    answer = record(draft, ToolCancelled(state.current_tool_id, texts.STOPPED_FOR_MODE[event.mode]))
    return run_next(draft, state.calls, state.remaining_tool_ids, (*state.completed_results, answer))


def _current(state: ToolExecuting) -> ToolUse:
    return next(call for call in state.calls if call.id == state.current_tool_id)
