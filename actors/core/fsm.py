"""The specification's "Context Manager" state diagram (docs/seeds.md, seed 3), mapped from the state machine's states.

Every StateChanged notification contains the path of its transition through this diagram: first the intermediate states,
which the code of the transition names, then the resulting state (see `project`). `ChatContext` follows these paths.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.core.states import (
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    LlmPhase,
    LlmReason,
    LlmRequesting,
    State,
    ToolExecuting,
    ToolPhase,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class ContextState(StrEnum):
    """The states of the diagram: the specified ones and Bedrock's additions."""

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
    LlmPhase.CONNECTING: ContextState.AWAITING_LLM_RESPONSE,
    LlmPhase.STREAMING: ContextState.STREAMING_LLM_RESPONSE,
    LlmPhase.BACKOFF: ContextState.TRANSIENT_FAILURE,
}


def project(state: State) -> ContextState:
    """Return the state of the diagram that corresponds to a state of the state machine."""
    match state:
        case Idle() | Completed():
            return ContextState.IDLE
        case AwaitingLlm():
            first = state.reason is LlmReason.USER_MESSAGE
            return ContextState.PROCESSING_USER_MESSAGE if first else ContextState.GENERATING_RESPONSE
        case LlmRequesting() | AwaitingContinuation():
            return _PHASES[state.phase]
        case AwaitingToolApproval():
            return ContextState.AWAITING_TOOL_APPROVAL
        case ToolExecuting():
            waits = state.phase is ToolPhase.BACKOFF
            return ContextState.TRANSIENT_FAILURE if waits else ContextState.EXECUTING_TOOLS
        case AwaitingSubAgents():
            return ContextState.EXECUTING_TOOLS
        case Cancelling():
            return ContextState.CANCELLING
        case Error() | Failed():
            return ContextState.FAILED
        case ContextExhausted():
            return ContextState.CONTEXT_EXHAUSTED


Edge = tuple[ContextState, ContextState]

_BUSY = tuple(
    state
    for state in ContextState
    if state not in (ContextState.IDLE, ContextState.FAILED, ContextState.CONTEXT_EXHAUSTED)
)

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
"""The transitions of the specified diagram; its initial state is Idle."""

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
"""The transitions that Bedrock adds to the specified diagram.

They lead to Idle or Cancelling (after a cancel, a restart, the round limit or a spent budget), directly to Failed
(after an error that is not retried, or when a sub-agent was cancelled or submitted an error), to ContextExhausted, from
one tool to the next, from an unfinished text to its continuation or to the summary request, from a failed run to the
next one, and from the command SpawnSubAgents to its sub-agents.
"""

EDGES = DIAGRAM_EDGES | EXTENSION_EDGES


def stray_edge(walk: Iterable[ContextState], start: ContextState = ContextState.IDLE) -> Edge | None:
    """Return the first step of the path that is not in EDGES, as (from, to); None if every step is allowed."""
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
        """Follow the path of one transition and return the new context.

        Raises ValueError if a step is neither in the specified diagram nor among Bedrock's additions.
        """
        stray = stray_edge(fsm_path, self.state)
        if stray:
            raise ValueError(f"{stray[0]} --> {stray[1]} is not a transition of the Context Manager FSM")
        return ChatContext(fsm_path[-1]) if fsm_path else self
