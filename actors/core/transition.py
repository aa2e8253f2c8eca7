"""The machine.

TODO essay
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from actors.core.context import ConvContext
from actors.core.effects import Effect, PersistMode
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.events import (
    BeginLlm,
    Event,
    FinishCancel,
    GridEvent,
    InternalFault,
    PromoteFollowUp,
    Settle,
    UserCancel,
    UserMessage,
    WithdrawMessage,
)
from actors.core.result import TransitionResult, ignored
from actors.core.rules.awaiting_continuation import when_awaiting_continuation
from actors.core.rules.awaiting_llm import when_awaiting_llm
from actors.core.rules.awaiting_sub_agents import when_awaiting_sub_agents
from actors.core.rules.awaiting_tool_approval import when_awaiting_tool_approval
from actors.core.rules.cancelling import when_cancelling
from actors.core.rules.commands import withdraw
from actors.core.rules.error import when_error
from actors.core.rules.faults import fault
from actors.core.rules.idle import when_idle
from actors.core.rules.llm_requesting import when_llm_requesting
from actors.core.rules.terminal import when_terminal
from actors.core.rules.tool_executing import when_tool_executing
from actors.core.states import (
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    CancelKind,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    LlmRequesting,
    State,
    ToolExecuting,
)
from actors.core.summary import run_id

__all__ = [
    "InvalidTransition",
    "Rejected",
    "Step",
    "TransitionResult",
    "run_chain",
    "settle_event",
    "transition",
]


class Step(Struct, frozen=True):
    """One transition of a chain."""

    event: Event
    context: ConvContext
    """What the transition was told; a PersistMode of an earlier step has changed it already."""
    new_state: State
    effects: tuple[Effect, ...]


def transition(state: State, context: ConvContext, event: Event) -> TransitionResult:
    """The verdict on one event: move, stay (the very same state, no effects), or raise.

    Raises Rejected, a subclass of InvalidTransition, for a command at the wrong moment.
    """
    match event:
        case WithdrawMessage():
            return withdraw(state, context, event)
        case InternalFault():
            return fault(state, context, event)
        case UserMessage() if event.expected_run and event.expected_run != _live_run(state, context):
            raise Rejected(Reason.RUN_OVER)
        case UserCancel() if event.run_id and event.run_id != _live_run(state, context):
            return ignored(state)
        case _:
            return _dispatch(state, context, event)


def _dispatch(state: State, context: ConvContext, event: GridEvent) -> TransitionResult:
    match state:
        case Idle():
            return when_idle(state, context, event)
        case AwaitingLlm():
            return when_awaiting_llm(state, context, event)
        case LlmRequesting():
            return when_llm_requesting(state, context, event)
        case AwaitingToolApproval():
            return when_awaiting_tool_approval(state, context, event)
        case ToolExecuting():
            return when_tool_executing(state, context, event)
        case AwaitingSubAgents():
            return when_awaiting_sub_agents(state, context, event)
        case Cancelling():
            return when_cancelling(state, context, event)
        case Error():
            return when_error(state, context, event)
        case AwaitingContinuation():
            return when_awaiting_continuation(state, context, event)
        case ContextExhausted() | Completed() | Failed():
            return when_terminal(state, event)


def settle_event(state: State, context: ConvContext, at: int) -> Settle | None:
    """The event that must follow `state` in the same commit; None if the state may rest."""
    match state:
        case AwaitingLlm():
            return BeginLlm(at)
        case Cancelling() if state.kind is CancelKind.LLM:
            return FinishCancel(at)
        case Idle() | Error() if state.ledger.follows:
            return PromoteFollowUp(at)
        case _:
            return None


def run_chain(state: State, context: ConvContext, event: Event) -> tuple[Step, ...]:
    """Apply `event` and everything that settles it: one commit (SEMANTICS C51). Empty if the event is ignored.

    Raises what `transition` raises; then nothing has happened.
    """
    steps: list[Step] = []
    following: Event | None = event
    while following:
        result = transition(state, context, following)
        if result.new_state is state and not result.effects:
            break
        steps.append(Step(following, context, result.new_state, result.effects))
        state, context = result.new_state, context_after(context, result.effects)
        following = settle_event(state, context, event.at)
    return tuple(steps)


def context_after(context: ConvContext, effects: tuple[Effect, ...]) -> ConvContext:
    """The context once these effects are committed."""
    for effect in effects:
        if isinstance(effect, PersistMode):
            context = replace(context, mode=effect.mode)
    return context


def _live_run(state: State, context: ConvContext) -> str:
    return run_id(context.conversation_id, state.ledger.run) if state.ledger.live else ""
