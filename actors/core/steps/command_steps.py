"""Commands that several states handle in the same way, and refusals of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import window
from actors.core.content import Delivery
from actors.core.context import Rules
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.events import (
    ApprovalResponse,
    SpawnSubAgents,
    StartSubAgent,
    TriggerContinuation,
    UserMessage,
    WithdrawMessage,
)
from actors.core.fsm import ContextState
from actors.core.notifications import Fate, QueueChanged
from actors.core.states import AwaitingLlm, Error, Idle, Ledger, LlmReason, QueuedInput, State
from actors.core.steps.inference import begin_summary
from actors.core.steps.runs import begin_run
from actors.core.steps.sub_agent_steps import spawn_agents
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.result import TransitionResult

Refusable = UserMessage | ApprovalResponse | TriggerContinuation | SpawnSubAgents | StartSubAgent


def refusal(context: ConvContext, event: Refusable, reason: Reason) -> Rejected:
    """Return the error for a refused command, with `reason` or a more specific reason.

    More specific are the reasons that this kind of conversation never accepts the command, that a sub-agent has already
    started, and that no approval is awaited.
    """
    match event:
        case ApprovalResponse():
            return Rejected(Reason.NOT_AWAITING_APPROVAL)
        case StartSubAgent():
            return Rejected(Reason.ALREADY_STARTED if context.is_sub_agent else Reason.NOT_SUB_AGENT)
        case UserMessage() | TriggerContinuation() | SpawnSubAgents():
            return Rejected(Reason.SUB_AGENT if context.is_sub_agent else reason)


def start_run(state: Idle | Error, context: ConvContext, event: UserMessage) -> TransitionResult:
    """Begin a run with this message, whatever its `delivery` says. Raises Rejected in a sub-agent."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    begin_run(builder, event.generation, event.output_schema)
    builder.add_user_message(event.message_id, event.text, event.images, "direct")
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.USER_MESSAGE), *after_failure(state))


def spawn_from_command(state: Idle | Error, context: ConvContext, event: SpawnSubAgents) -> TransitionResult:
    """Begin a run that starts sub-agents without a model request. Its first message lists the tasks.

    Raises Rejected in a sub-agent, and InvalidTransition if there are no tasks.
    """
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    if not event.tasks:
        raise InvalidTransition("at least one task is needed")
    builder = TransitionBuilder(state, context, event.at)
    begin_run(builder)
    builder.add_user_message(event.message_id, "\n".join(task.task for task in event.tasks), (), "direct")
    return spawn_agents(builder, event.tasks, *after_failure(state), ContextState.PROCESSING_USER_MESSAGE)


def trigger_summary(state: Idle | Error, context: ConvContext, event: TriggerContinuation) -> TransitionResult:
    """Request a summary of the conversation, by command; this opens no run. Raises Rejected in a sub-agent."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    full = context.rules < Rules.NOTHING_LOST or window.full(state.ledger.used_tokens, context)
    before = None if full else replace(state, ledger=Ledger())
    return begin_summary(builder, (), *after_failure(state), ContextState.PROCESSING_USER_MESSAGE, before=before)


def after_failure(state: Idle | Error) -> tuple[ContextState, ...]:
    """Return the states of the Context Manager diagram between `state` and the next run: Idle after Error, or none."""
    return (ContextState.IDLE,) if isinstance(state, Error) else ()


def queue_input(state: State, context: ConvContext, event: UserMessage, busy: Reason) -> TransitionResult:
    """Queue a message that arrives during a run: for this run (a steer) or for a later one (a follow-up).

    Raises Rejected: with `busy` for a message that does not allow queueing, with QUEUE_FULL if the queue is full, with
    SUB_AGENT in a sub-agent.
    """
    if context.is_sub_agent or event.delivery is Delivery.REJECT:
        raise refusal(context, event, busy)
    ledger = state.ledger
    if len(ledger.steers) + len(ledger.follows) >= context.limits.max_queue:
        raise Rejected(Reason.QUEUE_FULL)
    builder = TransitionBuilder(state, context, event.at)
    waiting = QueuedInput(event.message_id, event.text, event.images, event.at, event.generation, event.output_schema)
    if event.delivery is Delivery.STEER:
        builder.ledger = replace(ledger, steers=(*ledger.steers, waiting))
    else:
        builder.ledger = replace(ledger, follows=(*ledger.follows, waiting))
    builder.place_state()
    builder.notify(QueueChanged(waiting, event.delivery.value, Fate.QUEUED))
    return builder.stay(replace(state, ledger=builder.ledger))


def withdraw_message(state: State, context: ConvContext, event: WithdrawMessage) -> TransitionResult:
    """Remove a message from the queue, so that the agent never gets it.

    Raises Rejected(UNKNOWN_OR_DECIDED) if the message is not in the queue.
    """
    ledger = state.ledger
    waiting = next((one for one in (*ledger.steers, *ledger.follows) if one.message_id == event.message_id), None)
    if waiting is None:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, "this message is unknown or waits no more")
    builder = TransitionBuilder(state, context, event.at)
    builder.ledger = replace(
        ledger,
        steers=tuple(one for one in ledger.steers if one is not waiting),
        follows=tuple(one for one in ledger.follows if one is not waiting),
    )
    builder.place_state()
    delivery = Delivery.STEER if waiting in ledger.steers else Delivery.FOLLOW_UP
    builder.notify(QueueChanged(waiting, delivery.value, Fate.WITHDRAWN))
    return builder.stay(replace(state, ledger=builder.ledger))
