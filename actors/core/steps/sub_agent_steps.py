"""Starting sub-agents and collecting their outcomes, in the parent conversation (REQ-BED-008)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import SubAgentComplete, SystemKind, ToolOutcome
from actors.core.effects import SpawnSubAgent
from actors.core.fsm import ContextState
from actors.core.notifications import SubAgents
from actors.core.states import (
    AgentFailed,
    AgentOutcome,
    AgentReport,
    AgentSucceeded,
    AgentTask,
    AgentTimedOut,
    AwaitingLlm,
    AwaitingSubAgents,
    LlmReason,
    PendingAgent,
    ToolExecuting,
)
from actors.core.steps import texts
from actors.core.steps.tool_results import add_call_result
from actors.core.steps.tool_rounds import run_next_call
from actors.core.summary import summarize_agent

if TYPE_CHECKING:
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder


def spawn_agents(
    builder: TransitionBuilder, tasks: tuple[AgentTask, ...], *through: ContextState, call: ToolExecuting | None = None
) -> TransitionResult:
    """Start sub-agents and wait for all of them.

    `call` is the state whose running tool call starts the sub-agents; None if a command starts them.
    """
    builder.place_state()
    pending = tuple(_start(builder, task, index) for index, task in enumerate(tasks))
    state = AwaitingSubAgents(builder.ledger, pending, ())
    if call:
        state = AwaitingSubAgents(
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
    builder: TransitionBuilder, state: AwaitingSubAgents, agent: PendingAgent, outcome: AgentOutcome
) -> TransitionResult:
    """Record the outcome of a sub-agent.

    After the last one, the text about all outcomes becomes the result of the tool call, or a system message if a
    command started the sub-agents.
    """
    ended = AgentReport(agent.agent_id, agent.index, agent.task, outcome)
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
        after = AwaitingLlm(builder.ledger, LlmReason.SUB_AGENTS)
        return builder.finish(after, ContextState.PROCESSING_TOOL_RESULTS)
    success = any(isinstance(done.outcome, AgentSucceeded) for done in reports)
    outcome_of_call = ToolOutcome.OK if success else ToolOutcome.ERROR
    call = next(call for call in state.calls if call.id == state.tool_use_id)
    result = add_call_result(builder, call, SubAgentComplete(call.id, text, success, outcome_of_call))
    return run_next_call(builder, state.calls, state.remaining_tool_ids, (*state.tool_results, result))


def aggregate(reports: tuple[AgentReport, ...]) -> str:
    """Return the text that the model reads about its sub-agents, in the order of their tasks."""
    return "\n\n".join(f'Task: "{done.task}"\n{_outcome_text(done.outcome)}' for done in reports)


def find_agent(pending: tuple[PendingAgent, ...], agent_id: str) -> PendingAgent | None:
    """Return the pending sub-agent with this id, or None."""
    return next((agent for agent in pending if agent.agent_id == agent_id), None)


def _start(builder: TransitionBuilder, task: AgentTask, index: int) -> PendingAgent:
    number = builder.ledger.agents + 1
    builder.ledger = replace(builder.ledger, agents=number)
    named = replace(task, agent_id=f"{builder.context.conversation_id}-a{number}")
    deadline = builder.at + task.timeout_ms
    builder.add_effect(SpawnSubAgent(named, deadline))
    return PendingAgent(named.agent_id, index, task.task, deadline)


def _outcome_text(outcome: AgentOutcome) -> str:
    match outcome:
        case AgentSucceeded():
            return f"Result: {outcome.result}"
        case AgentFailed():
            return _with_partial(f"Failed: {outcome.error}", outcome.partial_result)
        case AgentTimedOut():
            return _with_partial(f"Timed out: {texts.AGENT_TIMED_OUT}", outcome.partial_result)


def _with_partial(text: str, partial: str) -> str:
    return f"{text}\nPartial result: {partial}" if partial else text
