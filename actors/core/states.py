"""The twelve states of a conversation, and the ledger that every one of them carries."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Image, SystemKind, ToolResult, ToolUse, Usage
from actors.core.errors import ErrorKind, LlmFailure

STATE_VERSION = 1
"""Of the stored JSON; an unknown one restores to Idle with an alarm (C39)."""


class QueuedInput(Struct, frozen=True):
    """An accepted user message that waits: a steer or a follow-up."""

    message_id: str
    text: str
    images: tuple[Image, ...]
    at: int


class Notice(Struct, frozen=True):
    """A system message that waits for the next inference boundary (C48)."""

    kind: SystemKind
    text: str
    at: int


class Ledger(Struct, frozen=True, omit_defaults=True):
    """The identity that survives every transition. Counters only grow."""

    run: int = 0
    """Number of the latest request cycle."""
    live: bool = False
    """Whether that cycle is open."""
    req: int = 0
    """Number of the latest LLM request."""
    xid: int = 0
    """Number of the latest tool execution."""
    seq: int = 0
    """Sequence of the latest message."""
    agents: int = 0
    """Number of the latest sub-agent."""
    rounds: int = 0
    """LLM requests begun in this cycle."""
    steers: tuple[QueuedInput, ...] = ()
    follows: tuple[QueuedInput, ...] = ()
    pending_notices: tuple[Notice, ...] = ()
    """At most one per kind."""
    warned: bool = False
    """Whether the last usage was at or above the warning threshold."""
    turns: int = 0
    """Sub-agents: LLM requests begun, in all."""
    max_turns: int = 0
    """Sub-agents: how many it may have, the grace turn apart; 0: what the limits say."""
    nudges: int = 0
    """Sub-agents: text-only answers in a row."""
    grace: bool = False
    """Sub-agents: the turn limit is reached, the last request is under way."""
    last_text: str = ""
    """Sub-agents: the last text, for partial_result."""
    used_tokens: int = 0
    """Context used after the last response."""
    total_usage: Usage = Usage()
    """Sum over the conversation, for budgets and display."""
    run_usage: Usage = Usage()
    """Sum over this cycle."""
    aside_usage: Usage = Usage()
    """Sum over the small requests beside the conversation; counts against its budget, not against a run's."""


class Phase(StrEnum):
    """Where an attempt of a request stands."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    BACKOFF = "backoff"


class ToolPhase(StrEnum):
    """Where an attempt of a tool stands."""

    RUNNING = "running"
    BACKOFF = "backoff"


class LlmReason(StrEnum):
    """Why the next request to the model is due."""

    USER_MESSAGE = "user_message"
    TOOL_RESULTS = "tool_results"
    DENIED = "denied"
    SUB_AGENTS = "sub_agents"
    STEER = "steer"
    NUDGE = "nudge"


class Idle(Struct, frozen=True, tag="idle"):
    """Ready for a message."""

    ledger: Ledger = Ledger()


class AwaitingLlm(Struct, frozen=True, tag="awaiting_llm"):
    """A request is due. Never rests: BeginLlm follows in the same commit (C21, C51)."""

    ledger: Ledger
    reason: LlmReason


class LlmRequesting(Struct, frozen=True, tag="llm_requesting"):
    """A request is in flight, or waits for its next attempt."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: Phase
    through_sequence: int
    """The last message that the request contains."""
    retry_at: int = 0
    """In backoff: when the next attempt is due, ms since the epoch."""
    continuations: int = 0
    """How often this round was continued after end_turn=false (C24)."""
    last_error: LlmFailure | None = None
    model: str = ""
    """The model of the first attempt; every further attempt keeps it."""


class ApprovalKind(StrEnum):
    """What a person is asked for."""

    TOOL = "tool"
    MODE_UPGRADE = "mode_upgrade"


class AwaitingToolApproval(Struct, frozen=True, tag="awaiting_tool_approval"):
    """A response's calls wait until every question is answered; nothing of it has run (C15, C16)."""

    ledger: Ledger
    calls: tuple[ToolUse, ...]
    """All calls of the response in request order, also those that need no answer."""
    undecided: tuple[str, ...]
    kind: ApprovalKind
    request_id: str
    """The request that brought the calls; it names the inference round."""
    since: int
    """When it was asked, ms since the epoch."""


class ToolExecuting(Struct, frozen=True, tag="tool_executing"):
    """Tools run one after the other in request order."""

    ledger: Ledger
    current_tool_id: str
    remaining_tool_ids: tuple[str, ...]
    completed_results: tuple[ToolResult, ...]
    """Copies of this round's results, already persisted (I42)."""
    calls: tuple[ToolUse, ...]
    """All calls of the response, with raw inputs."""
    execution_id: int
    attempt: int = 1
    phase: ToolPhase = ToolPhase.RUNNING
    retry_at: int = 0


class AgentTask(Struct, frozen=True):
    """What a sub-agent is to do; every field is set before the event is built."""

    agent_id: str
    task: str
    cwd: str
    model: str
    max_turns: int
    timeout_ms: int
    read_first: tuple[str, ...] = ()
    """Paths of files that it is given at the start."""
    given: str = ""
    """What is in them, as it reads it behind its task."""


class PendingAgent(Struct, frozen=True):
    """A sub-agent that has not answered yet."""

    agent_id: str
    index: int
    """Position in task order."""
    task: str
    deadline: int
    """Milliseconds since the epoch."""


class AgentSucceeded(Struct, frozen=True, tag="succeeded"):
    """It called submit_result."""

    result: str


class AgentFailed(Struct, frozen=True, tag="failed"):
    """It failed, was cancelled, or could not start."""

    kind: ErrorKind
    error: str
    partial_result: str = ""


class AgentTimedOut(Struct, frozen=True, tag="timed_out"):
    """Its deadline passed."""

    partial_result: str = ""


AgentOutcome: TypeAlias = AgentSucceeded | AgentFailed | AgentTimedOut


class AgentReport(Struct, frozen=True):
    """What became of one sub-agent."""

    agent_id: str
    index: int
    task: str
    outcome: AgentOutcome


class AwaitingSubAgents(Struct, frozen=True, tag="awaiting_sub_agents"):
    """Sub-agents are at work."""

    ledger: Ledger
    pending: tuple[PendingAgent, ...]
    completed_results: tuple[AgentReport, ...]
    tool_use_id: str = ""
    """The spawn_sub_agent call; empty when the command SpawnSubAgents started them."""
    remaining_tool_ids: tuple[str, ...] = ()
    calls: tuple[ToolUse, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    """The round's earlier results, already persisted."""

    @property
    def pending_ids(self) -> tuple[str, ...]:
        return tuple(agent.agent_id for agent in self.pending)


class CancelKind(StrEnum):
    """What a cancel waits for."""

    LLM = "llm"
    """Never rests: FinishCancel follows in the same commit."""
    AGENTS = "agents"


class Cancelling(Struct, frozen=True, tag="cancelling"):
    """A cancel is being carried out; rests only for sub-agents, at most two seconds (C1, I7)."""

    ledger: Ledger
    kind: CancelKind
    pending_agents: tuple[PendingAgent, ...] = ()
    discard_queued: bool = False
    pending_tool_id: str | None = None
    """Always None; kept for the seed's shape."""
    request_id: str = ""
    """Of kind LLM: the aborted request, whose outcomes still count as the end of the cancel."""
    attempt: int = 0


class Error(Struct, frozen=True, tag="error"):
    """The last run failed; the next message tries again."""

    ledger: Ledger
    message: str
    error_kind: ErrorKind


class AwaitingContinuation(Struct, frozen=True, tag="awaiting_continuation"):
    """The context is full: its tool-less summary is being written (C34)."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: Phase
    rejected: tuple[str, ...]
    """Names of the tools that the full context kept from running."""
    through_sequence: int
    retry_at: int = 0
    last_error: LlmFailure | None = None
    model: str = ""
    """The model of the first attempt; every further attempt keeps it."""


class ContextExhausted(Struct, frozen=True, tag="context_exhausted"):
    """Terminal: read-only, with the summary."""

    ledger: Ledger
    summary: str


class Completed(Struct, frozen=True, tag="completed"):
    """Terminal: a sub-agent that submitted its result."""

    ledger: Ledger
    result: str


class Failed(Struct, frozen=True, tag="failed"):
    """Terminal: a sub-agent that failed."""

    ledger: Ledger
    kind: ErrorKind
    error: str
    partial_result: str = ""


State: TypeAlias = (
    Idle
    | AwaitingLlm
    | LlmRequesting
    | AwaitingToolApproval
    | ToolExecuting
    | AwaitingSubAgents
    | Cancelling
    | Error
    | AwaitingContinuation
    | ContextExhausted
    | Completed
    | Failed
)

TERMINAL = (ContextExhausted, Completed, Failed)
"""The one list of terminal states."""

QUIET = (Idle, Error, *TERMINAL)
"""States in which nothing is under way."""


def name_of(state: State) -> str:
    """The state's snake_case name, as in the database's `state` column."""
    tag = type(state).__struct_config__.tag
    assert isinstance(tag, str)  # noqa: S101 -- every state above has a literal tag
    return tag


def open_calls(state: State) -> tuple[str, ...]:
    """The tool calls that have no result yet, in request order."""
    match state:
        case AwaitingToolApproval():
            return tuple(call.id for call in state.calls)
        case ToolExecuting():
            return (state.current_tool_id, *state.remaining_tool_ids)
        case AwaitingSubAgents() if state.tool_use_id:
            return (state.tool_use_id, *state.remaining_tool_ids)
        case _:
            return ()
