"""The state machine of conversations.

Two rules hold for everything in this package.

1. No code here has side effects. A transition gets a state, the context of its conversation and an event, and
   returns a new state and a list of effects. It cannot wait, read a clock, draw random numbers, generate an id, or log.
   Times come from the events, ids from counters in the state. Applying the logged events again gives the same results;
   `bedrock replay` does that, so a log from production can reproduce a bug of the state machine.
2. The state is the only memory. Whatever a later event depends on must be in the state, and therefore is in the
   database row that is written in the same transaction; there is no second copy that could disagree with it.

Theory of operation
===================

The work of a conversation consists of *runs*, which the Request Cycle Model calls request cycles. A run begins with one
user message and ends with exactly one RunStop notification. In between the conversation is busy, and its state tells
why: a model request, an approval by a person, a tool, sub-agents, a cancel, a summary. In the states Idle and Error the
conversation waits for the next message; three more states are final. The states are immutable values. Every state
contains the ledger (counters, queues and totals), which each transition passes on to the next state.

There are three kinds of events.

* *Commands* come from outside and get an answer. A state that does not accept a command raises `Rejected`, with a
  reason that a program can read, and nothing has changed.
* *Outcomes* are the results of effects. They may be late, duplicated, or belong to something that was cancelled long
  ago. Therefore each outcome carries the ids of its effect, and a state accepts only the outcome that it waits for. All
  others are *ignored*: the transition returns the same state object and no effects. As a result, no code has to wait
  until an abort is confirmed, and no timer has to be stopped: if its event comes too late, the ids do not match.
* *Settle events* come from the state machine itself. Three states must not last, because they are only intermediate:
  AwaitingLlm (a request is due), Cancelling a model request (there is nothing to wait for), and Idle or Error with a
  queue (the next run is due). `settle_event` returns the event that leads out of such a state, and `run_chain` applies
  an event with all settle events that follow. They are stored in one commit, though clients see every step. Each settle
  event uses up a queued message or leads to a state that lasts, so every chain ends.

A transition lists its effects in logical order, but the actor carries them out in three phases: first it stores what
must be stored, in one database transaction; then it sends all notifications to clients; then it starts new work. A
crash can thus interrupt work, but the log always shows that the work was due.

Streamed text takes a shorter way, since it is never stored. The time in which an attempt streams is its *window*: its
text then changes nothing but what clients see. The commit that records the start of the stream opens the window, and
the commit that ends the attempt closes it. While the window is open, the holder of the text may apply the transition to
the published state (`stream_text`) and publish the result without the actor, provided that this state is still the
published one.

How the history stays valid
===========================

A model provider refuses a history in which a tool call has no result, or in which another message stands between a call
and its result. Therefore, a transition that skips or stops tool calls adds a result to each of them
(`steps/tool_rounds.py`), and messages that arrive before the results are queued: user messages as steers, mode changes
as notices. Both are added to the history at one point, the inference boundary (`steps/runs.py`), where the next request
is built. Stored messages never change.

How the code is laid out
========================

`transition` handles the events that have the same effect in every state, and calls one function per state for all
others: `when_<state>` in `rules/`. Each of these functions handles every event: it has one `case` per class of events,
or per kind if it ignores the whole kind, with an `if` inside where the fields of the event decide, and no `case _`. If
an event is forgotten, both type checkers report an error; otherwise, a conversation would be stuck in production. (One
match over pairs of state and event would read better, but mypy cannot see that it is complete; a table is impossible,
because the next state depends on the fields of the event.) Code that several states share is in `steps/`. It works on
a `TransitionBuilder`, the only mutable object, which exists only during one transition.

`README.md` in this folder shows the whole machine; it is generated from this code.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from actors.core import events, states
from actors.core.context import ConvContext
from actors.core.effects import Effect, NotifyClient, PersistMode, TransitionResult
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.notifications import TextDelta
from actors.core.rules.agent_states import when_awaiting_sub_agents, when_cancelling
from actors.core.rules.idle_states import handle_fault, when_error, when_idle, when_terminal
from actors.core.rules.llm_states import when_awaiting_continuation, when_awaiting_llm, when_llm_requesting
from actors.core.rules.tool_states import (
    apply_decision,
    ask_question,
    drop_question,
    when_awaiting_tool_approval,
    when_tool_executing,
)
from actors.core.steps.command_steps import withdraw_message
from actors.core.steps.notices import change_job, notice_mcp_restart
from actors.core.steps.runs import add_reported_usage
from actors.core.steps.tool_rounds import apply_tool_result, end_wait
from actors.core.steps.transition_builder import ignored
from actors.core.summary import live_run_id

__all__ = [
    "InvalidTransition",
    "Rejected",
    "Step",
    "TransitionResult",
    "run_chain",
    "settle_event",
    "stream_text",
    "transition",
]


class Step(Struct, frozen=True):
    """One transition of a chain of transitions, with its event and effects."""

    event: events.Event
    context: ConvContext
    """The context in which the transition took place, with the mode that earlier steps set."""
    new_state: states.State
    effects: tuple[Effect, ...]


def transition(state: states.State, context: ConvContext, event: events.Event) -> TransitionResult:
    """Apply one event and return the new state with effects.

    Returns the same state object and no effects if the event no longer applies. Raises Rejected, a subclass of
    InvalidTransition, for a command that the state does not accept.
    """
    match event:
        case events.WithdrawMessage():
            return withdraw_message(state, context, event)
        case events.SubmitToolResult():
            return apply_tool_result(state, context, event)
        case events.ToolDeadline():
            return end_wait(state, context, event)
        case events.AskQuestion():
            return ask_question(state, context, event)
        case events.QuestionOver():
            return drop_question(state, context, event)
        case events.AnswerQuestion():
            return apply_decision(state, context, event)
        case events.InternalFault():
            return handle_fault(state, context, event)
        case events.UsageReported() | events.McpRestarted() | events.JobChanged():
            return _record(state, context, event)
        case events.UserMessage(expected_run=run) if run and run != live_run_id(context.conversation_id, state.ledger):
            raise Rejected(Reason.RUN_OVER)
        case events.UserCancel(run_id=run) if run and run != live_run_id(context.conversation_id, state.ledger):
            return ignored(state)
        case _:
            return _dispatch(state, context, event)


def _record(
    state: states.State, context: ConvContext, event: events.UsageReported | events.McpRestarted | events.JobChanged
) -> TransitionResult:
    match event:
        case events.UsageReported():
            return add_reported_usage(state, context, event)
        case events.McpRestarted():
            return notice_mcp_restart(state, context, event)
        case events.JobChanged():
            return change_job(state, context, event)


def _dispatch(state: states.State, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match state:
        case states.Idle():
            return when_idle(state, context, event)
        case states.AwaitingLlm():
            return when_awaiting_llm(state, context, event)
        case states.LlmRequesting():
            return when_llm_requesting(state, context, event)
        case states.AwaitingToolApproval():
            return when_awaiting_tool_approval(state, context, event)
        case states.ToolExecuting():
            return when_tool_executing(state, context, event)
        case states.AwaitingSubAgents():
            return when_awaiting_sub_agents(state, context, event)
        case states.Cancelling():
            return when_cancelling(state, context, event)
        case states.Error():
            return when_error(state, context, event)
        case states.AwaitingContinuation():
            return when_awaiting_continuation(state, context, event)
        case states.ContextExhausted() | states.Completed() | states.Failed():
            return when_terminal(state, event)


def settle_event(state: states.State, at: int) -> events.Settle | None:
    """The event that must follow in the same commit if `state` must not last; None if it may last."""
    match state:
        case states.AwaitingLlm():
            return events.BeginLlm(at)
        case states.Cancelling() if state.kind is states.CancelKind.LLM:
            return events.FinishCancel(at)
        case states.Idle() | states.Error() if state.ledger.follows:
            return events.PromoteFollowUp(at)
        case _:
            return None


def run_chain(state: states.State, context: ConvContext, event: events.Event) -> tuple[Step, ...]:
    """Apply `event` and the settle events that follow it, to be stored in one commit. Return () if `event` is ignored.

    Raises the same exceptions as `transition`, leaving the caller's state unchanged.
    """
    steps: list[Step] = []
    following: events.Event | None = event
    while following is not None:
        result = transition(state, context, following)
        if result.new_state is state and not result.effects:
            break
        steps.append(Step(following, context, result.new_state, result.effects))
        state, context = result.new_state, context_after(context, result.effects)
        following = settle_event(state, event.at)
    return tuple(steps)


def stream_text(
    state: states.State, context: ConvContext, chunk: events.LlmStreamChunk
) -> tuple[TextDelta, ...] | None:
    """The notifications for a chunk of streamed text, given the published state; () if the attempt is over.

    None means that the text must wait, because the start of its stream has not been committed.
    """
    result = transition(state, context, chunk)
    if result.new_state is not state:
        return None
    told = (effect.data for effect in result.effects if isinstance(effect, NotifyClient))
    return tuple(data for data in told if isinstance(data, TextDelta))


def context_after(context: ConvContext, effects: tuple[Effect, ...]) -> ConvContext:
    for effect in effects:
        if isinstance(effect, PersistMode):
            context = replace(context, mode=effect.mode)
    return context
