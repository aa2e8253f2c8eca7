"""The summary of a conversation's state that clients get; queued messages and tool results are left out."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from actors.core import states
from actors.core.content import ToolUse
from actors.core.context import ConvContext, Suggested
from actors.core.errors import ErrorKind, LlmFailure

HEADING_CHARS = 200


class AgentSummary(Struct, frozen=True, omit_defaults=True):
    id: str
    index: int
    heading: str
    """The first line of the task; the full task is the first message of the sub-agent's own conversation."""
    deadline: int


class StateSummary(Struct, frozen=True, omit_defaults=True):
    """The state of a conversation for clients. Fields that do not apply to this `kind` of state keep their defaults."""

    kind: str
    run: str = ""
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
    approval_kind: str = ""
    since: int = 0
    pending_agents: tuple[AgentSummary, ...] = ()
    error_kind: ErrorKind | None = None
    error_message: str = ""
    result: str = ""
    partial_result: str = ""
    deadline: int = 0
    """Until when a client may answer `current_call`, in ms since the epoch; 0 if no client runs it."""
    questions: tuple[states.Question, ...] = ()


def run_id(conversation_id: str, run: int) -> str:
    return f"{conversation_id}:{run}"


def live_run_id(conversation_id: str, ledger: states.Ledger) -> str:
    """The id of the conversation's run that has not ended; "" if there is none."""
    return run_id(conversation_id, ledger.run) if ledger.live else ""


def summarize(state: states.State, context: ConvContext) -> StateSummary:
    run = live_run_id(context.conversation_id, state.ledger)
    kind, busy = states.NAMES[type(state)], not isinstance(state, states.INACTIVE)
    match state:
        case states.LlmRequesting() | states.AwaitingContinuation():
            return StateSummary(
                kind, run, busy, state.request_id, state.attempt, context.limits.max_attempts,
                str(state.phase), state.retry_at, state.last_error,
            )  # fmt: skip
        case states.ToolExecuting():
            current = next(call for call in state.calls if call.id == state.current_tool_id)
            return StateSummary(
                kind, run, busy, attempt=state.attempt, max_attempts=context.limits.max_attempts,
                phase=str(state.phase), retry_at=state.retry_at, current_call=current,
                remaining_count=len(state.remaining_tool_ids), completed_count=len(state.completed_results),
                deadline=state.deadline, questions=state.questions,
            )  # fmt: skip
        case states.AwaitingToolApproval():
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
        case states.AwaitingSubAgents():
            return StateSummary(
                kind,
                run,
                busy,
                pending_agents=tuple(map(summarize_agent, state.pending)),
                completed_count=len(state.completed_results),
            )
        case states.Error():
            return StateSummary(kind, run, busy, error_kind=state.error_kind, error_message=state.message)
        case states.Completed():
            return StateSummary(kind, run, busy, result=state.result)
        case states.Failed():
            return StateSummary(
                kind, run, busy, error_kind=state.kind, error_message=state.error, partial_result=state.partial_result
            )
        case _:
            return StateSummary(kind, run, busy)


def summarize_agent(agent: states.PendingAgent) -> AgentSummary:
    return AgentSummary(agent.agent_id, agent.index, heading(agent.task), agent.deadline)


def heading(task: str) -> str:
    """The first non-empty line of a task, cut to 200 characters."""
    line = next(filter(None, map(str.strip, task.splitlines())), "")
    return line if len(line) <= HEADING_CHARS else line[: HEADING_CHARS - 1] + "…"


class ContextState(StrEnum):
    """The states of the Context Manager diagram: the specified ones and Bedrock's additions."""

    IDLE = "Idle"
    PROCESSING_USER_MESSAGE = "ProcessingUserMessage"
    AWAITING_LLM_RESPONSE = "AwaitingLLMResponse"
    STREAMING_LLM_RESPONSE = "StreamingLLMResponse"
    PROCESSING_LLM_RESPONSE = "ProcessingLLMResponse"
    AWAITING_TOOL_APPROVAL = "AwaitingToolApproval"
    EXECUTING_TOOLS = "ExecutingTools"
    PROCESSING_TOOL_RESULTS = "ProcessingToolResults"
    GENERATING_RESPONSE = "GeneratingResponse"
    TRANSIENT_FAILURE = "TransientFailure"
    FAILED = "Failed"
    CANCELLING = "Cancelling"
    CONTEXT_EXHAUSTED = "ContextExhausted"


_PHASES = {
    states.LlmPhase.CONNECTING: ContextState.AWAITING_LLM_RESPONSE,
    states.LlmPhase.STREAMING: ContextState.STREAMING_LLM_RESPONSE,
    states.LlmPhase.BACKOFF: ContextState.TRANSIENT_FAILURE,
}


def project(state: states.State) -> ContextState:
    match state:
        case states.Idle() | states.Completed():
            return ContextState.IDLE
        case states.AwaitingLlm():
            first = state.reason is states.LlmReason.USER_MESSAGE
            return ContextState.PROCESSING_USER_MESSAGE if first else ContextState.GENERATING_RESPONSE
        case states.LlmRequesting() | states.AwaitingContinuation():
            return _PHASES[state.phase]
        case states.AwaitingToolApproval():
            return ContextState.AWAITING_TOOL_APPROVAL
        case states.ToolExecuting():
            waits = state.phase is states.ToolPhase.BACKOFF
            return ContextState.TRANSIENT_FAILURE if waits else ContextState.EXECUTING_TOOLS
        case states.AwaitingSubAgents():
            return ContextState.EXECUTING_TOOLS
        case states.Cancelling():
            return ContextState.CANCELLING
        case states.Error() | states.Failed():
            return ContextState.FAILED
        case states.ContextExhausted():
            return ContextState.CONTEXT_EXHAUSTED


Edge = tuple[ContextState, ContextState]

_BUSY = tuple(
    state
    for state in ContextState
    if state not in (ContextState.IDLE, ContextState.FAILED, ContextState.CONTEXT_EXHAUSTED)
)

# The transitions of the specified diagram; its initial state is Idle.
DIAGRAM_EDGES: frozenset[Edge] = frozenset(
    {
        (ContextState.IDLE, ContextState.PROCESSING_USER_MESSAGE),
        (ContextState.PROCESSING_USER_MESSAGE, ContextState.AWAITING_LLM_RESPONSE),
        (ContextState.AWAITING_LLM_RESPONSE, ContextState.STREAMING_LLM_RESPONSE),
        (ContextState.AWAITING_LLM_RESPONSE, ContextState.PROCESSING_LLM_RESPONSE),
        (ContextState.AWAITING_LLM_RESPONSE, ContextState.TRANSIENT_FAILURE),
        (ContextState.STREAMING_LLM_RESPONSE, ContextState.STREAMING_LLM_RESPONSE),
        (ContextState.STREAMING_LLM_RESPONSE, ContextState.PROCESSING_LLM_RESPONSE),
        (ContextState.STREAMING_LLM_RESPONSE, ContextState.TRANSIENT_FAILURE),
        (ContextState.PROCESSING_LLM_RESPONSE, ContextState.AWAITING_TOOL_APPROVAL),
        (ContextState.PROCESSING_LLM_RESPONSE, ContextState.EXECUTING_TOOLS),
        (ContextState.PROCESSING_LLM_RESPONSE, ContextState.IDLE),
        (ContextState.AWAITING_TOOL_APPROVAL, ContextState.EXECUTING_TOOLS),
        (ContextState.AWAITING_TOOL_APPROVAL, ContextState.GENERATING_RESPONSE),
        (ContextState.EXECUTING_TOOLS, ContextState.PROCESSING_TOOL_RESULTS),
        (ContextState.EXECUTING_TOOLS, ContextState.TRANSIENT_FAILURE),
        (ContextState.EXECUTING_TOOLS, ContextState.FAILED),
        (ContextState.PROCESSING_TOOL_RESULTS, ContextState.GENERATING_RESPONSE),
        (ContextState.GENERATING_RESPONSE, ContextState.AWAITING_LLM_RESPONSE),
        (ContextState.TRANSIENT_FAILURE, ContextState.AWAITING_LLM_RESPONSE),
        (ContextState.TRANSIENT_FAILURE, ContextState.EXECUTING_TOOLS),
        (ContextState.TRANSIENT_FAILURE, ContextState.FAILED),
    }
)

# The transitions that Bedrock adds to the specified diagram. They lead to Idle or Cancelling (after a cancel, a
# restart, the round limit or a spent budget), directly to Failed (after an error that is not retried, or when a
# sub-agent was cancelled or submitted an error), to ContextExhausted, from one tool to the next, from an unfinished
# text to its continuation or to the summary request, from a failed run to the next one, and from the command
# SpawnSubAgents to its sub-agents.
EXTENSION_EDGES: frozenset[Edge] = (
    frozenset((state, ContextState.IDLE) for state in _BUSY)
    | frozenset((state, ContextState.CANCELLING) for state in _BUSY if state is not ContextState.CANCELLING)
    | frozenset((state, ContextState.FAILED) for state in (*_BUSY, ContextState.IDLE))
    | frozenset(
        (state, ContextState.CONTEXT_EXHAUSTED) for state in ContextState if state is not ContextState.CONTEXT_EXHAUSTED
    )
    | {
        (ContextState.EXECUTING_TOOLS, ContextState.EXECUTING_TOOLS),
        (ContextState.PROCESSING_LLM_RESPONSE, ContextState.GENERATING_RESPONSE),
        (ContextState.PROCESSING_LLM_RESPONSE, ContextState.AWAITING_LLM_RESPONSE),
        (ContextState.FAILED, ContextState.IDLE),
        (ContextState.PROCESSING_USER_MESSAGE, ContextState.EXECUTING_TOOLS),
    }
) - DIAGRAM_EDGES

EDGES = DIAGRAM_EDGES | EXTENSION_EDGES


def stray_edge(walk: Iterable[ContextState], start: ContextState = ContextState.IDLE) -> Edge | None:
    """The first step of the path that is not in EDGES, as (from, to); None if every step is allowed."""
    here = start
    for there in walk:
        if (here, there) not in EDGES:
            return here, there
        here = there
    return None


class ChatContext(Struct, frozen=True):
    """The current state in the diagram, reached by following the paths of StateChanged notifications."""

    state: ContextState = ContextState.IDLE

    def handle_event(self, fsm_path: tuple[ContextState, ...]) -> ChatContext:
        """Follow the path of one transition. Raises ValueError for a step that is not an edge of the diagram."""
        stray = stray_edge(fsm_path, self.state)
        if stray:
            raise ValueError(f"{stray[0]} --> {stray[1]} is not a transition of the Context Manager FSM")
        return ChatContext(fsm_path[-1]) if fsm_path else self
