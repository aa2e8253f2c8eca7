"""The twelve states of a conversation, and the ledger that each of them carries."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.approval.approval_rules import Suggested
from actors.core.content import Image, SystemKind, ToolResult, ToolUse, Usage
from actors.core.context import Mode
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.profile import Generation

STATE_VERSION = 1
"""The version of the stored JSON. A state of an unknown version is restored as Idle, with an alarm (C39)."""


class QueuedInput(Struct, frozen=True, omit_defaults=True):
    """A queued user message: a steer or a follow-up."""

    message_id: str
    text: str
    images: tuple[Image, ...]
    at: int
    generation: Generation | None = None
    """Settings for the run that a follow-up begins."""
    output_schema: str = ""
    """The JSON Schema of the output of that run; "" for none."""


class Notice(Struct, frozen=True):
    """A queued system message: delivered at the next inference boundary."""

    kind: SystemKind
    text: str
    at: int


class QuestionStatus(StrEnum):
    """Where a question of a tool is. PENDING is followed by exactly one of the others."""

    PENDING = "pending"
    ANSWERED = "answered"
    DECLINED = "declined"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


class Question(Struct, frozen=True, omit_defaults=True):
    """A question that a running tool call asks a person."""

    number: int
    """Its number in the conversation, counted from 1."""
    place: int
    """Its number among those of its call, by which the tool runner knows it."""
    asker: str
    """The name of the MCP server that asks."""
    message: str
    since: int
    """When it was asked, ms since the epoch."""
    deadline: int
    """Until when an answer is waited for, ms since the epoch."""
    schema: str = ""
    """For a form: the JSON Schema of the answer, as JSON."""
    url: str = ""
    """Instead of a form: the address that the person is asked to visit."""


class PastQuestion(Struct, frozen=True):
    """How a question ended."""

    number: int
    status: QuestionStatus


MAX_PAST_QUESTIONS = 8
"""How many questions that have ended are remembered, to tell an answer that comes too late why it does."""


class Ledger(Struct, frozen=True, omit_defaults=True):
    """Counters, queues and sums, which are part of every state. Counters only grow."""

    run: int = 0
    """Number of the latest run (request cycle)."""
    live: bool = False
    """Whether that run is open."""
    req: int = 0
    """Number of the latest LLM request."""
    xid: int = 0
    """Number of the latest tool execution."""
    seq: int = 0
    """Sequence of the latest message."""
    agents: int = 0
    """Number of the latest sub-agent."""
    rounds: int = 0
    """Model requests of this run."""
    steers: tuple[QueuedInput, ...] = ()
    follows: tuple[QueuedInput, ...] = ()
    pending_notices: tuple[Notice, ...] = ()
    """Queued notices to the agent, at most one per kind."""
    warned: bool = False
    """Whether the last usage was at or above the warning threshold."""
    turns: int = 0
    """For sub-agents: number of model requests so far."""
    max_turns: int = 0
    """For sub-agents: limit of `turns`, without the grace turn; 0: the default limit."""
    nudges: int = 0
    """For sub-agents: number of consecutive answers without a tool call. In a run with an output schema: number of
    answers that were to end it without a valid value."""
    grace: bool = False
    """For sub-agents: whether the turn limit is reached and the last request is in flight."""
    last_text: str = ""
    """For sub-agents: the last text, used as partial result on failure."""
    used_tokens: int = 0
    """Tokens in the context window after the last response."""
    total_usage: Usage = Usage()
    """Usage of the whole conversation, for budgets and display."""
    run_usage: Usage = Usage()
    """Usage of this run."""
    aside_usage: Usage = Usage()
    """Usage of the side queries; it counts for the budget of the conversation, not for that of a run."""
    run_mode: Mode | None = None
    """The mode in which the latest run began: it decides which tools of clients it offers. None: there are none."""
    generation: Generation | None = None
    """Settings that the message which began the latest run brought, for its requests."""
    output_schema: str = ""
    """The JSON Schema of the value that the latest run is to end with, as JSON; "" for none."""
    output: str = ""
    """The valid value of an answer that filled the context, as JSON, until the summary is written and the run ends."""
    questions: int = 0
    """Number of the latest question of a tool."""
    past_questions: tuple[PastQuestion, ...] = ()
    """The questions that ended last, the oldest first."""


class Phase(StrEnum):
    """Phase of an attempt of a model request."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    BACKOFF = "backoff"


class ToolPhase(StrEnum):
    """Phase of an attempt of a tool call."""

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
    """A model request is due. Transient: BeginLlm follows in the same commit."""

    ledger: Ledger
    reason: LlmReason


class LlmRequesting(Struct, frozen=True, tag="llm_requesting"):
    """A model request is in flight, or in backoff before its next attempt."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: Phase
    through_sequence: int
    """Sequence of the last message that the request contains."""
    retry_at: int = 0
    """In backoff: when the next attempt is due, ms since the epoch."""
    continuations: int = 0
    """How often this round was continued after an unfinished text (end_turn=false)."""
    last_error: LlmFailure | None = None
    model: str = ""
    """The model of the first attempt; further attempts use the same."""


class ApprovalKind(StrEnum):
    """The subject of an approval request."""

    TOOL = "tool"
    MODE_UPGRADE = "mode_upgrade"


class AwaitingToolApproval(Struct, frozen=True, omit_defaults=True, tag="awaiting_tool_approval"):
    """The calls of a response wait until every question is answered; none of them has run."""

    ledger: Ledger
    calls: tuple[ToolUse, ...]
    """All calls of the response, in its order, including those that need no approval."""
    undecided: tuple[str, ...]
    kind: ApprovalKind
    request_id: str
    """Id of the request that the response answered."""
    since: int
    """When the questions were asked, ms since the epoch."""
    suggestions: tuple[Suggested, ...] = ()


class ToolExecuting(Struct, frozen=True, omit_defaults=True, tag="tool_executing"):
    """The calls of a response run one after the other, in its order."""

    ledger: Ledger
    current_tool_id: str
    remaining_tool_ids: tuple[str, ...]
    completed_results: tuple[ToolResult, ...]
    """Copies of this round's results; they are already persisted as messages."""
    calls: tuple[ToolUse, ...]
    """All calls of the response, with their raw inputs."""
    execution_id: int
    attempt: int = 1
    phase: ToolPhase = ToolPhase.RUNNING
    retry_at: int = 0
    deadline: int = 0
    """If a client runs the current call: until when its answer is waited for, ms since the epoch. 0: a tool of ours."""
    refused_ids: tuple[str, ...] = ()
    """For sub-agents: ids of the calls that need approval, for which they cannot ask."""
    questions: tuple[Question, ...] = ()
    """What this execution of the current call asks a person and waits for, in the order of asking."""
    asked: int = 0
    """The `place` of the latest question of this execution."""


class AgentTask(Struct, frozen=True):
    """The task of a sub-agent; every field is set before the event is built."""

    agent_id: str
    task: str
    cwd: str
    model: str
    max_turns: int
    timeout_ms: int
    read_first: tuple[str, ...] = ()
    """Paths of files whose content the sub-agent gets with its task."""
    given: str = ""
    """The content of these files, as the sub-agent reads it after its task."""


class PendingAgent(Struct, frozen=True):
    """A sub-agent without an outcome yet."""

    agent_id: str
    index: int
    """Index of its task."""
    task: str
    deadline: int
    """The deadline, in milliseconds since the epoch."""


class AgentSucceeded(Struct, frozen=True, tag="succeeded"):
    """The sub-agent submitted a result."""

    result: str


class AgentFailed(Struct, frozen=True, tag="failed"):
    """The sub-agent failed, was cancelled, or could not start."""

    kind: ErrorKind
    error: str
    partial_result: str = ""


class AgentTimedOut(Struct, frozen=True, tag="timed_out"):
    """The deadline of the sub-agent passed."""

    partial_result: str = ""


AgentOutcome: TypeAlias = AgentSucceeded | AgentFailed | AgentTimedOut


class AgentReport(Struct, frozen=True):
    """The outcome of one sub-agent."""

    agent_id: str
    index: int
    task: str
    outcome: AgentOutcome


class AwaitingSubAgents(Struct, frozen=True, tag="awaiting_sub_agents"):
    """Sub-agents are running."""

    ledger: Ledger
    pending: tuple[PendingAgent, ...]
    completed_results: tuple[AgentReport, ...]
    tool_use_id: str = ""
    """Id of the spawn_sub_agent call; "" if the command SpawnSubAgents started them."""
    remaining_tool_ids: tuple[str, ...] = ()
    calls: tuple[ToolUse, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    """Results of the round's earlier calls; they are persisted already."""

    @property
    def pending_ids(self) -> tuple[str, ...]:
        """Ids of the sub-agents without an outcome."""
        return tuple(agent.agent_id for agent in self.pending)


class CancelKind(StrEnum):
    """The kind of work that has to stop before a cancel is complete."""

    LLM = "llm"
    """Transient: FinishCancel follows in the same commit."""
    AGENTS = "agents"


class Cancelling(Struct, frozen=True, tag="cancelling"):
    """A cancel is being carried out; lasts only while sub-agents end, two seconds at most."""

    ledger: Ledger
    kind: CancelKind
    pending_agents: tuple[PendingAgent, ...] = ()
    discard_queued: bool = False
    pending_tool_id: str | None = None
    """Always None; part of the state's specified shape."""
    request_id: str = ""
    """With kind LLM: id of the aborted request, whose outcomes end the cancel."""
    attempt: int = 0


class Error(Struct, frozen=True, tag="error"):
    """The last run failed; the next message begins another run."""

    ledger: Ledger
    message: str
    error_kind: ErrorKind


class AwaitingContinuation(Struct, frozen=True, tag="awaiting_continuation"):
    """The context is full: a request without tools for its summary is in flight."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: Phase
    rejected: tuple[str, ...]
    """Names of the tools whose calls did not run because the context is full."""
    through_sequence: int
    retry_at: int = 0
    last_error: LlmFailure | None = None
    model: str = ""
    """The model of the first attempt; every further attempt keeps it."""


class ContextExhausted(Struct, frozen=True, tag="context_exhausted"):
    """Terminal: the conversation is read-only; it has a summary."""

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
"""The terminal states."""

QUIET = (Idle, Error, *TERMINAL)
"""States in which nothing runs."""


def name_of(state: State) -> str:
    """Return the state's snake_case name, as in the `state` column of the database."""
    tag = type(state).__struct_config__.tag
    assert isinstance(tag, str)  # noqa: S101 -- every state above has a literal tag
    return tag


def open_calls(state: State) -> tuple[str, ...]:
    """Return the ids of tool calls without a result, in the order of the response."""
    match state:
        case AwaitingToolApproval():
            return tuple(call.id for call in state.calls)
        case ToolExecuting():
            return (state.current_tool_id, *state.remaining_tool_ids)
        case AwaitingSubAgents() if state.tool_use_id:
            return (state.tool_use_id, *state.remaining_tool_ids)
        case _:
            return ()
