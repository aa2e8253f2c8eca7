"""The steps that clients' commands share in several states, and how sub-agents are started and reported."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import states
from actors.core.content import Delivery, SubAgentComplete, SystemKind, ToolOutcome
from actors.core.context import ConvContext, Rules
from actors.core.effects import SpawnSubAgent, TransitionResult
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.events import (
    ApprovalResponse,
    SpawnSubAgents,
    StartSubAgent,
    TriggerContinuation,
    UserMessage,
    WithdrawMessage,
)
from actors.core.notifications import Fate, QueueChanged, SubAgents
from actors.core.steps import texts
from actors.core.steps.runs import begin_run, begin_summary, run_options
from actors.core.steps.tool_rounds import add_call_result, run_next_call
from actors.core.steps.transition_builder import TransitionBuilder
from actors.core.summary import ContextState, summarize_agent

Refusable = UserMessage | ApprovalResponse | TriggerContinuation | SpawnSubAgents | StartSubAgent


def refusal(context: ConvContext, event: Refusable, reason: Reason) -> Rejected:
    """The error for a refused command: `reason`, or a more specific one.

    The more specific one says that this kind of conversation never accepts the command, that the sub-agent has already
    started, or that no approval is awaited.
    """
    match event:
        case ApprovalResponse():
            return Rejected(Reason.NOT_AWAITING_APPROVAL)
        case StartSubAgent():
            return Rejected(Reason.ALREADY_STARTED if context.is_sub_agent else Reason.NOT_SUB_AGENT)
        case UserMessage() | TriggerContinuation() | SpawnSubAgents():
            return Rejected(Reason.SUB_AGENT if context.is_sub_agent else reason)


def start_run(state: states.Idle | states.Error, context: ConvContext, event: UserMessage) -> TransitionResult:
    """Begin a run with this message, whatever its `delivery` says. Raises Rejected in a sub-agent."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    path = after_failure(state)
    builder = TransitionBuilder(state, context, event.at)
    begin_run(builder, event)
    builder.add_user_message(event.message_id, event.text, event.images, "direct")
    return builder.finish(states.AwaitingLlm(builder.ledger, states.LlmReason.USER_MESSAGE), *path)


def spawn_from_command(
    state: states.Idle | states.Error, context: ConvContext, event: SpawnSubAgents
) -> TransitionResult:
    """Begin a run that starts sub-agents without a model request.

    Raises Rejected in a sub-agent, InvalidTransition if there are no tasks.
    """
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    if not event.tasks:
        raise InvalidTransition("at least one task is needed")
    builder = TransitionBuilder(state, context, event.at)
    begin_run(builder, states.RunOptions())
    builder.add_user_message(event.message_id, "\n".join(task.task for task in event.tasks), (), "direct")
    return spawn_agents(builder, event.tasks, *after_failure(state), ContextState.PROCESSING_USER_MESSAGE)


def trigger_summary(
    state: states.Idle | states.Error, context: ConvContext, event: TriggerContinuation
) -> TransitionResult:
    """Request a summary of the conversation, by command; this opens no run. Raises Rejected in a sub-agent."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    full = context.rules < Rules.NOTHING_LOST or context.full(state.ledger.used_tokens)
    before = None if full else replace(state, ledger=states.Ledger())
    return begin_summary(builder, (), *after_failure(state), ContextState.PROCESSING_USER_MESSAGE, before=before)


def after_failure(state: states.Idle | states.Error) -> tuple[ContextState, ...]:
    """The states that the Context Manager diagram passes through before the next run: Idle after Error, else none."""
    return (ContextState.IDLE,) if isinstance(state, states.Error) else ()


def queue_input(state: states.State, context: ConvContext, event: UserMessage, busy: Reason) -> TransitionResult:
    """Queue a message for the open run (steer) or a later one (follow-up).

    Raises Rejected: with the reason `busy` if the message must not be queued, otherwise QUEUE_FULL or SUB_AGENT.
    """
    if context.is_sub_agent or event.delivery is Delivery.REJECT:
        raise refusal(context, event, busy)
    ledger = state.ledger
    if len(ledger.steers) + len(ledger.follows) >= context.limits.max_queue:
        raise Rejected(Reason.QUEUE_FULL)
    builder = TransitionBuilder(state, context, event.at)
    waiting = states.QueuedInput(event.message_id, event.text, event.images, event.at, **run_options(event))
    if event.delivery is Delivery.STEER:
        builder.ledger = replace(ledger, steers=(*ledger.steers, waiting))
    else:
        builder.ledger = replace(ledger, follows=(*ledger.follows, waiting))
    builder.place_state()
    builder.notify(QueueChanged(waiting, event.delivery.value, Fate.QUEUED))
    return builder.stay(replace(state, ledger=builder.ledger))


def withdraw_message(state: states.State, context: ConvContext, event: WithdrawMessage) -> TransitionResult:
    """Remove a message from the queue. Raises Rejected(UNKNOWN_OR_DECIDED) if it is not there."""
    ledger = state.ledger
    waiting = next((one for one in (*ledger.steers, *ledger.follows) if one.message_id == event.message_id), None)
    if waiting is None:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, "this message is unknown or no longer waiting")
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


def spawn_agents(
    builder: TransitionBuilder,
    tasks: tuple[states.AgentTask, ...],
    *through: ContextState,
    call: states.ToolExecuting | None = None,
) -> TransitionResult:
    """Start sub-agents and wait for all. `call` is the state of the call that starts them; None if a command does."""
    builder.place_state()
    pending = tuple(_start_agents(builder, task, index) for index, task in enumerate(tasks))
    state = states.AwaitingSubAgents(builder.ledger, pending, ())
    if call:
        state = states.AwaitingSubAgents(
            builder.ledger,
            pending,
            (),
            call.current_tool_id,
            call.remaining_tool_ids,
            call.calls,
            call.completed_results,
        )
    return builder.finish(state, *through)


def record_outcome(
    builder: TransitionBuilder,
    state: states.AwaitingSubAgents,
    agent: states.PendingAgent,
    outcome: states.AgentOutcome,
) -> TransitionResult:
    """Record a sub-agent's outcome; after the last one, report all of them.

    The report is the result of the call that started the sub-agents, or a message if a command did.
    """
    ended = states.AgentReport(agent.agent_id, agent.index, agent.task, outcome)
    reports = (*state.completed_results, ended)
    pending = tuple(other for other in state.pending if other is not agent)
    progress = SubAgents(reports, tuple(map(summarize_agent, pending)))
    if pending:
        builder.place_state()
        builder.notify(progress)
        return builder.stay(replace(state, ledger=builder.ledger, pending=pending, completed_results=reports))
    builder.notify(progress)
    reports = tuple(sorted(reports, key=lambda done: done.index))
    text = aggregate(reports)
    if not state.tool_use_id:
        builder.add_system_message(SystemKind.SUB_AGENT_RESULTS, text)
        after = states.AwaitingLlm(builder.ledger, states.LlmReason.SUB_AGENTS)
        return builder.finish(after, ContextState.PROCESSING_TOOL_RESULTS)
    success = any(isinstance(done.outcome, states.AgentSucceeded) for done in reports)
    outcome_of_call = ToolOutcome.OK if success else ToolOutcome.ERROR
    call = next(call for call in state.calls if call.id == state.tool_use_id)
    result = add_call_result(builder, call, SubAgentComplete(call.id, text, success, outcome_of_call))
    return run_next_call(builder, state.calls, state.remaining_tool_ids, (*state.tool_results, result))


def aggregate(reports: tuple[states.AgentReport, ...]) -> str:
    """The text that the model reads about its sub-agents, in the order of their tasks."""
    return "\n\n".join(f'Task: "{done.task}"\n{_outcome_text(done.outcome)}' for done in reports)


def find_agent(pending: tuple[states.PendingAgent, ...], agent_id: str) -> states.PendingAgent | None:
    return next((agent for agent in pending if agent.agent_id == agent_id), None)


def _start_agents(builder: TransitionBuilder, task: states.AgentTask, index: int) -> states.PendingAgent:
    number = builder.ledger.agents + 1
    builder.ledger = replace(builder.ledger, agents=number)
    named = replace(task, agent_id=f"{builder.context.conversation_id}-a{number}")
    deadline = builder.at + task.timeout_ms
    builder.add_effect(SpawnSubAgent(named, deadline))
    return states.PendingAgent(named.agent_id, index, task.task, deadline)


def _outcome_text(outcome: states.AgentOutcome) -> str:
    match outcome:
        case states.AgentSucceeded():
            return f"Result: {outcome.result}"
        case states.AgentFailed():
            return _with_partial(f"Failed: {outcome.error}", outcome.partial_result)
        case states.AgentTimedOut():
            return _with_partial(f"Timed out: {texts.AGENT_TIMED_OUT}", outcome.partial_result)


def _with_partial(text: str, partial: str) -> str:
    return f"{text}\nPartial result: {partial}" if partial else text
