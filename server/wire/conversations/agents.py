"""Converts sub-agents to API messages, for the events and the state of the conversation that started them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.errors import ErrorKind
from actors.core.states import AgentFailed, AgentReport, AgentSucceeded, AgentTimedOut, AwaitingSubAgents
from actors.core.summary import AgentSummary, heading, summarize_agent
from server.contract import resource_names as names
from server.contract.limits import REPORT_CHARS
from server.wire.values import run_error, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable


def sub_agent(agent: AgentSummary) -> v1.SubAgent:
    """Return a running sub-agent as an API message."""
    return v1.SubAgent(
        conversation=names.conversation(agent.id),
        task=agent.heading,
        task_index=agent.index,
        deadline=timestamp(agent.deadline),
    )


def changed(pending: Iterable[AgentSummary], reports: Iterable[AgentReport]) -> v1.Event.SubAgentsChanged:
    """Return the event about the sub-agents that one call has started: those that run, and reports of ended ones."""
    return v1.Event.SubAgentsChanged(pending=map(sub_agent, pending), reports=map(_report, reports))


def standing(state: AwaitingSubAgents) -> v1.Event.SubAgentsChanged:
    """Return the event about the sub-agents that a conversation is waiting for, made from the conversation's state."""
    return changed(map(summarize_agent, state.pending), state.completed_results)


def _report(report: AgentReport) -> v1.Event.SubAgentsChanged.Report:
    answer = v1.Event.SubAgentsChanged.Report(
        conversation=names.conversation(report.agent_id), task=heading(report.task), task_index=report.index
    )
    match report.outcome:
        case AgentSucceeded(result=result):
            answer.state = v1.STATE_KIND_COMPLETED
            answer.result = result[:REPORT_CHARS]
        case AgentFailed(kind=kind, error=error, partial_result=partial):
            answer.state = v1.STATE_KIND_FAILED
            answer.error.CopyFrom(run_error(kind, error[:REPORT_CHARS]))
            answer.partial_result = partial[:REPORT_CHARS]
        case AgentTimedOut(partial_result=partial):
            answer.state = v1.STATE_KIND_FAILED
            answer.error.CopyFrom(run_error(ErrorKind.TIMED_OUT, "its time was up"))
            answer.partial_result = partial[:REPORT_CHARS]
    return answer
