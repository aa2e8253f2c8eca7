"""LlmRequesting: a request is in flight, or waits for its next attempt (REQ-BED-003, 005, 006)."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core.context import ConvContext
from actors.core.errors import ErrorKind, LlmFailure, Reason
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
from actors.core.notifications import Token
from actors.core.result import TransitionResult, ignored
from actors.core.rules import texts
from actors.core.rules.commands import queue_input, refusal
from actors.core.rules.draft import Draft
from actors.core.rules.endings import cancelled, interrupted
from actors.core.rules.failures import request_failed
from actors.core.rules.notices import set_mode
from actors.core.rules.requests import abort_request, discard_stream, retry_request
from actors.core.rules.responses import account, judge
from actors.core.rules.runs import return_steers
from actors.core.states import AwaitingContinuation, CancelKind, Cancelling, LlmRequesting, Phase


def when_llm_requesting(state: LlmRequesting, context: ConvContext, event: GridEvent) -> TransitionResult:
    """What happens to each event in LlmRequesting."""
    match event:
        case LlmStreamStarted() | LlmStreamChunk() | LlmResponse() | LlmError() | LlmAborted():
            return _outcome(state, context, event) if concerns(state, event) else ignored(state)
        case RetryTimeout():
            return retry_request(Draft(state, context, event.at), state) if is_due(state, event) else ignored(state)
        case UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case UserCancel():
            return cancel_request(state, context, event)
        case SetMode():
            return set_mode(state, context, event)
        case ApprovalResponse() | TriggerContinuation() | SpawnSubAgents() | StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case Restart():
            draft = Draft(state, context, event.at)
            discard_stream(draft, state)
            return interrupted(draft)
        case (
            BeginLlm() | FinishCancel() | PromoteFollowUp() | ToolComplete() | ToolTransient() | ToolAborted()
            | AgentsSpawned() | ToolRetryTimeout() | SubAgentResult() | SubAgentTimeout() | CancelTimeout()
        ):  # fmt: skip
            return ignored(state)


Outcome = LlmStreamStarted | LlmStreamChunk | LlmResponse | LlmError | LlmAborted


def _outcome(state: LlmRequesting, context: ConvContext, event: Outcome) -> TransitionResult:
    draft = Draft(state, context, event.at)
    match event:
        case LlmStreamStarted():
            return stream_started(draft, state)
        case LlmStreamChunk():
            return stream_chunk(draft, state, event)
        case LlmResponse():
            return judge(draft, state, event)
        case LlmError():
            account(draft, event.usage, fills_window=False)
            return request_failed(draft, state, event.error, event.retry_after_ms)
        case LlmAborted():
            return request_failed(draft, state, LlmFailure(ErrorKind.NETWORK, texts.LLM_ABORTED))


def concerns(state: LlmRequesting | AwaitingContinuation, event: Outcome) -> bool:
    """Whether an outcome is of the attempt in flight; anything else is stale (SEMANTICS decision 2)."""
    identity = (event.request_id, event.attempt)
    return state.phase is not Phase.BACKOFF and identity == (state.request_id, state.attempt)


def is_due(state: LlmRequesting | AwaitingContinuation, event: RetryTimeout) -> bool:
    """Whether a timer is the one that the backoff waits for."""
    identity = (event.request_id, event.attempt)
    return state.phase is Phase.BACKOFF and identity == (state.request_id, state.attempt)


def stream_started(draft: Draft, state: LlmRequesting | AwaitingContinuation) -> TransitionResult:
    """The answer has begun; once per attempt."""
    if state.phase is Phase.STREAMING:
        return ignored(state)
    return draft.finish(replace(state, phase=Phase.STREAMING))


def stream_chunk(draft: Draft, state: LlmRequesting | AwaitingContinuation, event: LlmStreamChunk) -> TransitionResult:
    """Passing text for clients; only the first chunk changes the state (C23)."""
    token = Token(state.request_id, state.attempt, event.content.text, event.reasoning)
    if state.phase is Phase.STREAMING:
        draft.notify(token)
        return TransitionResult(state, tuple(draft.effects))
    draft.place_state()
    draft.notify(token)
    return draft.finish(replace(state, phase=Phase.STREAMING))


def cancel_request(
    state: LlmRequesting | AwaitingContinuation, context: ConvContext, event: UserCancel
) -> TransitionResult:
    """Hang up. A conversation passes Cancelling and is idle in the same commit; nobody waits for the abort (C1)."""
    draft = Draft(state, context, event.at)
    if context.is_sub_agent or state.phase is Phase.BACKOFF:
        abort_request(draft, state)
        return cancelled(draft, discard_queued=event.discard_queued)
    return_steers(draft)
    draft.place_state()
    abort_request(draft, state)
    after = Cancelling(
        draft.ledger,
        CancelKind.LLM,
        discard_queued=event.discard_queued,
        request_id=state.request_id,
        attempt=state.attempt,
    )
    return draft.finish(after)
