"""The summary of a conversation's state that clients get; queued messages and tool results are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from actors.core.approval.approval_rules import Suggested
from actors.core.content import ToolUse
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.states import (
    QUIET,
    AwaitingContinuation,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Completed,
    Error,
    Failed,
    LlmRequesting,
    PendingAgent,
    Question,
    State,
    ToolExecuting,
    name_of,
)

if TYPE_CHECKING:
    from actors.core.context import ConvContext

HEADING_CHARS = 200


class AgentSummary(Struct, frozen=True, omit_defaults=True):
    """A running sub-agent."""

    id: str
    index: int
    """The index of the sub-agent's task among the tasks of the call."""
    heading: str
    """The first line of the task; the full task is the first message of the sub-agent's own conversation."""
    deadline: int
    """The latest time at which the sub-agent may end, in milliseconds since the epoch."""


class StateSummary(Struct, frozen=True, omit_defaults=True):
    """The state of a conversation for clients. Fields that do not apply to this `kind` of state keep their defaults."""

    kind: str
    """The state's snake_case name."""
    run: str = ""
    """The id of the open run; "" if no run is open."""
    busy: bool = False
    request_id: str = ""
    attempt: int = 0
    max_attempts: int = 0
    phase: str = ""
    retry_at: int = 0
    last_error: LlmFailure | None = None
    current_call: ToolUse | None = None
    remaining_count: int = 0
    completed_count: int = 0
    undecided: tuple[ToolUse, ...] = ()
    suggestions: tuple[Suggested, ...] = ()
    """The approval rules that are suggested for the undecided calls."""
    approval_kind: str = ""
    since: int = 0
    """When the approvals were requested, in milliseconds since the epoch."""
    pending_agents: tuple[AgentSummary, ...] = ()
    error_kind: ErrorKind | None = None
    error_message: str = ""
    result: str = ""
    """The result of a completed sub-agent."""
    partial_result: str = ""
    """The last text of a failed sub-agent."""
    deadline: int = 0
    """Until when a client may answer `current_call`, in ms since the epoch; 0 if no client runs it."""
    questions: tuple[Question, ...] = ()
    """The unanswered questions that `current_call` asks a person."""


def run_id(conversation_id: str, run: int) -> str:
    """Return the id of the run (request cycle) with this number."""
    return f"{conversation_id}:{run}"


def summarize(state: State, context: ConvContext) -> StateSummary:
    """Return the summary of `state`."""
    ledger = state.ledger
    run = run_id(context.conversation_id, ledger.run) if ledger.live else ""
    kind, busy = name_of(state), not isinstance(state, QUIET)
    match state:
        case LlmRequesting() | AwaitingContinuation():
            return StateSummary(
                kind, run, busy, state.request_id, state.attempt, context.limits.max_attempts,
                str(state.phase), state.retry_at, state.last_error,
            )  # fmt: skip
        case ToolExecuting():
            current = next(call for call in state.calls if call.id == state.current_tool_id)
            return StateSummary(
                kind, run, busy, attempt=state.attempt, max_attempts=context.limits.max_attempts,
                phase=str(state.phase), retry_at=state.retry_at, current_call=current,
                remaining_count=len(state.remaining_tool_ids), completed_count=len(state.completed_results),
                deadline=state.deadline, questions=state.questions,
            )  # fmt: skip
        case AwaitingToolApproval():
            asked = tuple(call for call in state.calls if call.id in state.undecided)
            return StateSummary(
                kind,
                run,
                busy,
                undecided=asked,
                suggestions=tuple(each for each in state.suggestions if each.tool_use_id in state.undecided),
                approval_kind=str(state.kind),
                since=state.since,
            )
        case AwaitingSubAgents():
            return StateSummary(
                kind,
                run,
                busy,
                pending_agents=tuple(map(summarize_agent, state.pending)),
                completed_count=len(state.completed_results),
            )
        case Error():
            return StateSummary(kind, run, busy, error_kind=state.error_kind, error_message=state.message)
        case Completed():
            return StateSummary(kind, run, busy, result=state.result)
        case Failed():
            return StateSummary(
                kind,
                run,
                busy,
                error_kind=state.kind,
                error_message=state.error,
                partial_result=state.partial_result,
            )
        case _:
            return StateSummary(kind, run, busy)


def summarize_agent(agent: PendingAgent) -> AgentSummary:
    """Return the summary of a running sub-agent."""
    return AgentSummary(agent.agent_id, agent.index, heading(agent.task), agent.deadline)


def heading(task: str) -> str:
    """Return the first non-empty line of a task, cut to 200 characters."""
    line = next(filter(None, map(str.strip, task.splitlines())), "")
    return line if len(line) <= HEADING_CHARS else line[: HEADING_CHARS - 1] + "…"
