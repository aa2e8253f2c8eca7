"""The twelve states of a conversation, and the ledger (counters and queues) that every state contains."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, get_args

from msgspec import Struct

from actors.core.content import Image, SystemKind, ToolResult, ToolUse, Usage
from actors.core.context import Generation, Mode, Suggested
from actors.core.errors import ErrorKind, LlmFailure

# The version of the stored JSON. A state with an unknown version is restored as Idle, and logged as an alarm.
STATE_VERSION = 1


class RunOptions(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The options that a message sets for the whole run that it begins.

    `UserMessage` and `QueuedInput` inherit these fields. `Ledger` repeats them instead, because a base class would
    change the order in which its fields are stored.
    """

    generation: Generation | None = None
    """Settings for the run's model requests; for those that are unset, the conversation's settings apply."""
    output_schema: str = ""
    """The JSON Schema, as JSON text, of the value that the run must end with; "" for none. Steers have none."""


class QueuedInput(RunOptions, frozen=True, omit_defaults=True):
    """A queued user message: a steer (for the open run) or a follow-up (begins another run)."""

    message_id: str
    text: str
    images: tuple[Image, ...]
    at: int


class Notice(Struct, frozen=True):
    """A queued system message, which the model gets with the next request."""

    kind: SystemKind
    text: str
    at: int


class JobStatus(StrEnum):
    """Whether a background job still runs, and if not, how it ended. RUNNING is followed by one of the other values."""

    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    LOST = "lost"
    """The server stopped, or the conversation was moved to another server; the job's output is lost."""


class BackgroundJob(Struct, frozen=True, omit_defaults=True):
    """A command that continues after the tool call that started it."""

    handle: str
    tool_use_id: str
    command: str
    """The beginning of the command, on one line."""
    status: JobStatus = JobStatus.RUNNING
    exit_code: int | None = None
    """The exit code of a job that has exited; 128 plus the number of the signal if a signal ended it."""


class QuestionStatus(StrEnum):
    """Whether a tool's question still awaits an answer. PENDING is followed by exactly one of the other values."""

    PENDING = "pending"
    ANSWERED = "answered"
    DECLINED = "declined"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


class Question(Struct, frozen=True, omit_defaults=True):
    """A question that a running tool call asks a person, on behalf of an MCP server."""

    number: int
    """The number of the question in the conversation, counted from 1."""
    place: int
    """The number of the question among those of its tool call; the tool runner identifies it by this."""
    asker: str
    message: str
    since: int
    deadline: int
    schema: str = ""
    """For a form: the JSON Schema of the answer, as JSON."""
    url: str = ""
    """Instead of a form: the URL that the person is asked to visit."""


class PastQuestion(Struct, frozen=True):
    number: int
    status: QuestionStatus


# How many ended questions are remembered, so that the refusal of a late answer can say how the question ended.
MAX_PAST_QUESTIONS = 8


class Ledger(Struct, frozen=True, omit_defaults=True):
    """Counters, queues and totals, which are part of every state. Counters that ids are built from never decrease."""

    run: int = 0
    """The number of the latest run (request cycle) of the conversation."""
    live: bool = False
    """Whether the latest run is still open."""
    req: int = 0
    """The number of the latest model request."""
    xid: int = 0
    """The number of the latest tool execution."""
    seq: int = 0
    """The number of the latest message in the history."""
    agents: int = 0
    """The number of sub-agents that the conversation has started so far."""
    rounds: int = 0
    """The number of model requests in the latest run."""
    steers: tuple[QueuedInput, ...] = ()
    follows: tuple[QueuedInput, ...] = ()
    pending_notices: tuple[Notice, ...] = ()
    """Queued notices to the agent, at most one per kind."""
    warned: bool = False
    """Whether the token count after the last response was at or above the warning threshold."""
    turns: int = 0
    """For sub-agents: the number of model requests so far."""
    max_turns: int = 0
    """For sub-agents: the limit of `turns`, after which one last request follows (see `grace`); 0 for the default."""
    nudges: int = 0
    """For sub-agents: how many answers in a row had no tool call. For runs with an output schema: how many times the
    model tried to end the run without a valid value."""
    grace: bool = False
    """For sub-agents: whether the turn limit is reached; the running request is then the last one."""
    last_text: str = ""
    """For sub-agents: the model's last text, which the parent gets as a partial result after a failure."""
    used_tokens: int = 0
    """The number of tokens in the context window after the last response."""
    total_usage: Usage = Usage()
    run_usage: Usage = Usage()
    aside_usage: Usage = Usage()
    """Tokens of side queries, such as for the title. They count towards the conversation's budget, not a run's."""
    run_mode: Mode | None = None
    """The mode at the beginning of the latest run, which determines its client tools; None if the run has none."""
    generation: Generation | None = None
    output_schema: str = ""
    """Like `generation`, one of the `RunOptions` of the message that began the latest run."""
    output: str = ""
    """The output, as JSON, of a run whose last answer filled the context: kept until the summary is written."""
    questions: int = 0
    """The number of the latest question that a tool asked a person."""
    past_questions: tuple[PastQuestion, ...] = ()
    """The most recently ended questions, oldest first."""
    failure: str = ""
    """Identifies how the calls of the last response failed; "" if any of them did not fail."""
    repeats: int = 0
    """How many times in a row the calls of a response failed in the same way as those of the response before it."""
    date: str = ""
    """The latest date that the model knows, as YYYY-MM-DD; "" if that is the date in the system prompt."""
    budget_warned: bool = False
    """Whether the latest run got the notice that most of the budget is spent."""
    hidden_from: str | None = None
    """The model that was told that it does not see the images in the history; "" if no model has been told since the
    latest image, None if there are no images."""
    narrowed: int = 0
    """Tool results up to the message with this number are cut further, because a provider found a request too long."""
    jobs: tuple[BackgroundJob, ...] = ()
    """The background jobs that are running, or that have ended without the agent being notified yet."""

    @property
    def whole_usage(self) -> Usage:
        """The conversation's usage, side queries included."""
        return self.total_usage + self.aside_usage

    @property
    def running_jobs(self) -> tuple[BackgroundJob, ...]:
        return tuple(job for job in self.jobs if job.status is JobStatus.RUNNING)


class LlmPhase(StrEnum):
    CONNECTING = "connecting"
    STREAMING = "streaming"
    BACKOFF = "backoff"


class ToolPhase(StrEnum):
    RUNNING = "running"
    BACKOFF = "backoff"


class LlmReason(StrEnum):
    USER_MESSAGE = "user_message"
    TOOL_RESULTS = "tool_results"
    DENIED = "denied"
    SUB_AGENTS = "sub_agents"
    STEER = "steer"
    NUDGE = "nudge"


class Idle(Struct, frozen=True, tag="idle"):
    """No run is open; the conversation is ready for a message."""

    ledger: Ledger = Ledger()


class AwaitingLlm(Struct, frozen=True, tag="awaiting_llm"):
    """A model request is due. The state never lasts: the event BeginLlm follows in the same commit."""

    ledger: Ledger
    reason: LlmReason
    error: str = ""
    """Why the run fails instead of making the request; "" if it goes on."""


class LlmRequesting(Struct, frozen=True, tag="llm_requesting"):
    """A model request is running, or waits (backoff) for its next attempt."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: LlmPhase
    through_sequence: int
    """The number of the last message that the request contains."""
    retry_at: int = 0
    """In backoff: when the next attempt is due, ms since the epoch."""
    continuations: int = 0
    """How many requests so far, this one included, continue the same unfinished text."""
    last_error: LlmFailure | None = None
    model: str = ""
    """The model of the first attempt; later attempts use the same model."""


class ApprovalKind(StrEnum):
    TOOL = "tool"
    MODE_UPGRADE = "mode_upgrade"


class AwaitingToolApproval(Struct, frozen=True, omit_defaults=True, tag="awaiting_tool_approval"):
    """The tool calls of a response wait until a person has decided about those that need approval; none has run yet."""

    ledger: Ledger
    calls: tuple[ToolUse, ...]
    """All calls in the response, in their order, including those that need no approval."""
    undecided: tuple[str, ...]
    kind: ApprovalKind
    request_id: str
    since: int
    suggestions: tuple[Suggested, ...] = ()


class ToolExecuting(Struct, frozen=True, omit_defaults=True, tag="tool_executing"):
    """The tool calls in a response run one at a time, in the order of the response."""

    ledger: Ledger
    current_tool_id: str
    remaining_tool_ids: tuple[str, ...]
    completed_results: tuple[ToolResult, ...]
    """Copies of the results of the calls that have ended. The results are already stored as messages."""
    calls: tuple[ToolUse, ...]
    execution_id: int
    attempt: int = 1
    phase: ToolPhase = ToolPhase.RUNNING
    retry_at: int = 0
    deadline: int = 0
    """If a client runs the current call: until when its answer is accepted, in ms since the epoch. 0 otherwise."""
    refused_ids: tuple[str, ...] = ()
    """For sub-agents, which cannot ask for approval: ids of the calls that need approval and are therefore refused."""
    questions: tuple[Question, ...] = ()
    """The unanswered questions of this execution of the current call, in the order of asking."""
    asked: int = 0
    """The number (`Question.place`) of the latest question of this execution; 0 if none has been asked yet."""


class AgentTask(Struct, frozen=True):
    """The task of a sub-agent. The transition that starts the sub-agent sets `agent_id`."""

    agent_id: str
    task: str
    cwd: str
    model: str
    max_turns: int
    timeout_ms: int
    read_first: tuple[str, ...] = ()
    given: str = ""
    """The contents of the files in `read_first`, as the text that the sub-agent reads after its task."""


class PendingAgent(Struct, frozen=True):
    agent_id: str
    index: int
    task: str
    deadline: int


class AgentSucceeded(Struct, frozen=True, tag="succeeded"):
    result: str


class AgentFailed(Struct, frozen=True, tag="failed"):
    """The sub-agent failed, was cancelled, or could not start."""

    kind: ErrorKind
    error: str
    partial_result: str = ""


class AgentTimedOut(Struct, frozen=True, tag="timed_out"):
    partial_result: str = ""


AgentOutcome: TypeAlias = AgentSucceeded | AgentFailed | AgentTimedOut


class AgentReport(Struct, frozen=True):
    agent_id: str
    index: int
    task: str
    outcome: AgentOutcome


class AwaitingSubAgents(Struct, frozen=True, tag="awaiting_sub_agents"):
    ledger: Ledger
    pending: tuple[PendingAgent, ...]
    completed_results: tuple[AgentReport, ...]
    tool_use_id: str = ""
    """Id of the spawn_sub_agent call; "" if the command SpawnSubAgents started the sub-agents."""
    remaining_tool_ids: tuple[str, ...] = ()
    calls: tuple[ToolUse, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    """Results of earlier calls of the same response; they are already stored."""

    @property
    def pending_ids(self) -> tuple[str, ...]:
        return tuple(agent.agent_id for agent in self.pending)


class CancelKind(StrEnum):
    LLM = "llm"
    """Stop a model request. A state of this kind never lasts: the event FinishCancel follows in the same commit."""
    AGENTS = "agents"


class Cancelling(Struct, frozen=True, tag="cancelling"):
    """A cancel is being carried out: sub-agents have at most two seconds to end."""

    ledger: Ledger
    kind: CancelKind
    pending_agents: tuple[PendingAgent, ...] = ()
    discard_queued: bool = False
    pending_tool_id: str | None = None
    """Always None; the specification requires this field."""
    request_id: str = ""
    """With kind LLM: the id of the aborted request; the end of that request ends the cancel."""
    attempt: int = 0


class Error(Struct, frozen=True, tag="error"):
    """The last run failed; the next message begins another run."""

    ledger: Ledger
    message: str
    error_kind: ErrorKind


class AwaitingContinuation(Struct, frozen=True, tag="awaiting_continuation"):
    """The model writes a summary, in a request without tools: the context is full, or a client requested a summary."""

    ledger: Ledger
    request_id: str
    attempt: int
    phase: LlmPhase
    rejected: tuple[str, ...]
    """Names of the tools whose calls did not run because the context is full."""
    through_sequence: int
    retry_at: int = 0
    last_error: LlmFailure | None = None
    model: str = ""
    before: Idle | Error | None = None
    """The state (without its ledger) to return to if a client's summary request fails; None if the context is full."""
    unanswered: bool = False
    """Whether the run ends without an answer, because the provider found its request too long."""


class ContextExhausted(Struct, frozen=True, tag="context_exhausted"):
    """Terminal: the context was full; the conversation is read-only and has a summary."""

    ledger: Ledger
    summary: str


class Completed(Struct, frozen=True, tag="completed"):
    """Terminal: the sub-agent has submitted its result."""

    ledger: Ledger
    result: str


class Failed(Struct, frozen=True, tag="failed"):
    """Terminal: the sub-agent has failed."""

    ledger: Ledger
    kind: ErrorKind
    error: str
    partial_result: str = ""


State: TypeAlias = (
    Idle | AwaitingLlm | LlmRequesting | AwaitingToolApproval | ToolExecuting | AwaitingSubAgents | Cancelling | Error
    | AwaitingContinuation | ContextExhausted | Completed | Failed
)  # fmt: skip

TERMINAL = (ContextExhausted, Completed, Failed)

INACTIVE = (Idle, Error, *TERMINAL)


# Maps each state's class to the state's name in the store and in filters.
NAMES = {kind: str(kind.__struct_config__.tag) for kind in get_args(State)}


def open_calls(state: State) -> tuple[str, ...]:
    """The ids of tool calls without a result, in the order of the response."""
    match state:
        case AwaitingToolApproval():
            return tuple(call.id for call in state.calls)
        case ToolExecuting():
            return (state.current_tool_id, *state.remaining_tool_ids)
        case AwaitingSubAgents() if state.tool_use_id:
            return (state.tool_use_id, *state.remaining_tool_ids)
        case _:
            return ()
