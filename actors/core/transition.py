"""The state machine of conversations.

Two rules hold for everything in this package.

1. Nothing here does anything. A transition gets a state, the context of its conversation and an event, and
   returns a new state and a list of effects. It cannot wait, read a clock, draw random numbers, generate an id, or log.
   Times are in the events, ids are counters in the state. Applying the logged events again gives the same results,
   which is how `bedrock replay` works, and how a bug from production becomes a unit test.
2. Nothing here remembers anything but the state. What a later event needs to know must be in the state, and with it
   in the database row that is written in the same transaction; there is no second source to disagree with it.

Theory of operation
===================

A conversation lives in *runs*, which the Request Cycle Model calls request cycles. A run begins with one message and
ends with exactly one run-stop; in between the conversation is busy, and its state says why: a request to the model, a
question to a person, a tool, sub-agents, a cancel, a summary. Idle and Error are the two states where it waits for the
next message; three more states are final. The states are plain values; what they have in common, the ledger, is carried
from each to the next: the counters, the queues, the sums.

Three kinds of events arrive.

* *Commands* come from outside and want an answer. In a state that does not fit they raise `Rejected`, with a reason
  that a program can read, and nothing has changed.
* *Outcomes* are the results of effects. They may be late, duplicated, or belong to something that was cancelled long
  ago, so each one carries the identity of the effect it answers, and a state accepts only the outcome that it waits
  for. All others are *ignored*: the same state object is returned, with no effects. That is why no code ever has to
  wait for an abort to be confirmed, and why a timer need not be stopped: its number is out of date.
* *Settle events* come from the state itself. Three states must not last, because they are only intermediate:
  AwaitingLlm (a request is due), Cancelling a model request (there is nothing to wait for), and Idle or Error with a
  queue (the next run is due). `settle_event` names the event that moves on, and `run_chain` applies an event together
  with all that follows: one commit, though clients see every step. Each round of the chain consumes a queued message or
  reaches a state that lasts, so every chain ends.

A transition lists its effects in logical order, but they are carried out in three phases: first everything that is
persisted, in one transaction; then all notifications to clients; then everything that is started. So a crash can
interrupt work, but the log always shows that it was due.

How the history stays valid
===========================

A model provider refuses a history in which a tool call has no result, or in which something comes between the two. So a
transition that leaves a tool round early adds a result to every call that has none (`steps/tool_results.py`), and
messages that come meanwhile are queued: those of people as steers, changes of the mode as notices. Both are delivered
at one place, the inference boundary (`steps/inference.py`), where the next request is built. No message is ever
rewritten.

How the code is laid out
========================

`transition` handles events that are the same in every state and then calls one function per state, `when_<state>` in
`rules/<state>.py`. Each lists every event: one arm per class, with `if` inside the arm where the payload decides, and
no `case _`. A forgotten event is then an error of the type checkers, both of them, and not a conversation that is stuck
in production. (One match over pairs of state and event would read better, but mypy cannot see that it is complete; a
table cannot be written, because the next state depends on the payload.) Code that several states share is in `steps/`.
The steps work on a `TransitionBuilder`, the only mutable object, which exists inside a single transition only.

`README.md` beside this file shows the whole machine, generated from this code.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from actors.core.context import ConvContext
from actors.core.effects import Effect, PersistMode
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.events import (
    AnswerQuestion,
    AskQuestion,
    BeginLlm,
    Event,
    FinishCancel,
    GridEvent,
    InternalFault,
    McpRestarted,
    PromoteFollowUp,
    QuestionOver,
    Settle,
    SubmitToolResult,
    ToolDeadline,
    UsageReported,
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
from actors.core.rules.error import when_error
from actors.core.rules.idle import when_idle
from actors.core.rules.internal_faults import handle_fault
from actors.core.rules.llm_requesting import when_llm_requesting
from actors.core.rules.terminal import when_terminal
from actors.core.rules.tool_executing import when_tool_executing
from actors.core.rules.tool_questions import ask_question, drop_question, take_decision
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
from actors.core.steps.client_tools import end_wait, take_answer
from actors.core.steps.command_steps import withdraw_message
from actors.core.steps.notices import notice_mcp_restart
from actors.core.steps.usage import add_reported_usage
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
    """One transition of a chain of transitions, with its event and effects."""

    event: Event
    context: ConvContext
    """The context in which the transition took place, with the mode that earlier steps set."""
    new_state: State
    effects: tuple[Effect, ...]


def transition(state: State, context: ConvContext, event: Event) -> TransitionResult:
    """Apply one event and return the new state with effects.

    Returns the same state object and no effects if the event no longer applies. Raises Rejected, a subclass of
    InvalidTransition, for a command that the state does not accept.
    """
    match event:
        case WithdrawMessage():
            return withdraw_message(state, context, event)
        case SubmitToolResult():
            return take_answer(state, context, event)
        case ToolDeadline():
            return end_wait(state, context, event)
        case AskQuestion():
            return ask_question(state, context, event)
        case QuestionOver():
            return drop_question(state, context, event)
        case AnswerQuestion():
            return take_decision(state, context, event)
        case InternalFault():
            return handle_fault(state, context, event)
        case UsageReported():
            return add_reported_usage(state, context, event)
        case McpRestarted():
            return notice_mcp_restart(state, context, event)
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


def settle_event(state: State, at: int) -> Settle | None:
    """Return the event that must follow in the same commit if `state` must not last; None if it may last."""
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
    """Apply `event` and the settle events that follow it, to be stored in one commit. Return () if `event` is ignored.

    Raises what `transition` raises; the caller's state is unchanged then.
    """
    steps: list[Step] = []
    following: Event | None = event
    while following is not None:
        result = transition(state, context, following)
        if result.new_state is state and not result.effects:
            break
        steps.append(Step(following, context, result.new_state, result.effects))
        state, context = result.new_state, context_after(context, result.effects)
        following = settle_event(state, event.at)
    return tuple(steps)


def context_after(context: ConvContext, effects: tuple[Effect, ...]) -> ConvContext:
    """Return the context as it is after these effects: with the new mode, if they change the mode."""
    for effect in effects:
        if isinstance(effect, PersistMode):
            context = replace(context, mode=effect.mode)
    return context


def _live_run(state: State, context: ConvContext) -> str:
    return run_id(context.conversation_id, state.ledger.run) if state.ledger.live else ""
