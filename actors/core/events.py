"""The events of a conversation's state machine: commands, outcomes and settle events.

Commands request something and are either accepted or rejected. Outcomes report the results of effects; each outcome
carries the ids of its effect, and the state machine ignores outcomes that the current state does not wait for. A settle
event comes from the machine itself: it moves the conversation out of a state that must not last, in the same commit.
`at` is the server's clock in milliseconds since the epoch.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Content, Delivery, Image, Text, ToolError, ToolResult, ToolSuccess, Usage
from actors.core.context import CallSubject, Mode
from actors.core.errors import LlmFailure
from actors.core.states import AgentOutcome, AgentTask, BackgroundJob, RunOptions


class Command(Struct, frozen=True):
    """The base class of commands, which a state accepts or rejects."""


class SettleEvent(Struct, frozen=True):
    """The base class of the machine's own events, which lead out of states that must not last."""


class LlmOutcome(Struct, frozen=True):
    """The base class of events that report on a model-request attempt."""


class ToolEvent(Struct, frozen=True):
    """The base class of events that report how the execution of a tool ended."""


class Timer(Struct, frozen=True):
    """The base class of events that report the end of a time limit or a pause."""


class UserMessage(Command, RunOptions, frozen=True, omit_defaults=True, tag="user_message"):
    """A user message (REQ-BED-002)."""

    at: int
    message_id: str
    text: str
    images: tuple[Image, ...] = ()
    delivery: Delivery = Delivery.REJECT
    expected_run: str = ""
    """The id that the open run must have, or else the command is rejected with RUN_OVER before any other check; "" for
    no condition."""


class UserCancel(Command, frozen=True, tag="user_cancel"):
    """Cancel the run (REQ-BED-005)."""

    at: int
    run_id: str = ""
    """The id that the open run must have, or else the event is ignored; "" for no condition."""
    discard_queued: bool = False
    kill_jobs: bool = False
    reason: str = ""


class ApprovalResponse(Command, frozen=True, tag="approval_response"):
    at: int
    tool_use_id: str
    approve: bool
    reason: str = ""


class TriggerContinuation(Command, frozen=True, tag="trigger_continuation"):
    """Write the summary now (REQ-BED-023). Unless the context is full, a failure changes nothing."""

    at: int


class SpawnSubAgents(Command, frozen=True, tag="spawn_sub_agents"):
    """Begin a run that starts these sub-agents, by a client's command instead of a tool call."""

    at: int
    message_id: str
    tasks: tuple[AgentTask, ...]


class StartSubAgent(Command, frozen=True, tag="start_sub_agent"):
    """The parent gives a sub-agent its task."""

    at: int
    message_id: str
    task: str
    max_turns: int = 0
    """The maximum number of model requests; 0 for the default limit."""


class SetMode(Command, frozen=True, omit_defaults=True, tag="set_mode"):
    """Change the mode at once: the actor handles this event before the other messages in its mailbox."""

    at: int
    mode: Mode
    stop: tuple[str, ...] = ()
    """The ids of running calls that must be stopped, because they have more rights than the new mode (REQ-BED-016)."""


class BeginLlm(SettleEvent, frozen=True, tag="begin_llm"):
    """Build the model request that is due in AwaitingLlm."""

    at: int


class FinishCancel(SettleEvent, frozen=True, tag="finish_cancel"):
    """Complete the cancel of a model request."""

    at: int


class PromoteFollowUp(SettleEvent, frozen=True, tag="promote_follow_up"):
    """Begin the next run with the oldest queued follow-up."""

    at: int


class LlmStreamStarted(LlmOutcome, frozen=True, omit_defaults=True, tag="llm_stream_started"):
    at: int
    request_id: str
    attempt: int
    waited_ms: int = 0
    """How long the attempt had to wait before it was sent. Recorded only for readers of the log."""


class LlmStreamChunk(LlmOutcome, frozen=True, tag="llm_stream_chunk"):
    """The next piece of the response's text. Such pieces are never stored."""

    at: int
    request_id: str
    attempt: int
    content: Text
    reasoning: bool = False


class LlmResponse(LlmOutcome, frozen=True, omit_defaults=True, tag="llm_response"):
    """The complete response of the model to a request (REQ-BED-003)."""

    at: int
    request_id: str
    attempt: int
    content: tuple[Content, ...]
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    """Whether the response was cut off at the output token limit."""
    refusal: bool = False
    subjects: tuple[CallSubject, ...] = ()
    """What each tool call would run, read and write, in the order of the calls; () if no approval rule needs this."""
    output: str = ""
    """In a run with an output schema: the answer's value as JSON; "" if the answer has no valid value."""
    output_problem: str = ""
    """In a run with an output schema: why an answer that tries to end the run has no valid value; "" otherwise."""
    context_full: bool = False
    """Whether the response ended because the context window had no room left, whatever `usage` says."""
    narrowed: bool = False
    """Whether the provider found the request too long, so that it was sent again with shorter tool results."""


class LlmError(LlmOutcome, frozen=True, tag="llm_error"):
    at: int
    request_id: str
    attempt: int
    error: LlmFailure
    retry_after_ms: int | None = None
    usage: Usage | None = None


class LlmAborted(LlmOutcome, frozen=True, tag="llm_aborted"):
    """A model-request attempt was aborted; if no abort was requested, this counts as a network error."""

    at: int
    request_id: str
    attempt: int
    usage: Usage | None = None
    """The tokens that the provider had reported before the abort."""


class RetryTimeout(Timer, frozen=True, tag="retry_timeout"):
    at: int
    request_id: str
    attempt: int


class ToolComplete(ToolEvent, frozen=True, omit_defaults=True, tag="tool_complete"):
    at: int
    tool_use_id: str
    execution_id: int
    result: ToolResult
    ended_job: str = ""
    """The handle of the background job if the result tells the agent that a job has ended; otherwise ""."""


class ToolTransient(ToolEvent, frozen=True, tag="tool_transient"):
    """The tool could not start or finish, because something that it depends on failed, such as the sandbox."""

    at: int
    tool_use_id: str
    execution_id: int
    message: str
    begun: bool = True
    """Whether the tool may have started. If not, the call can be retried even if the tool is not `retry_safe`."""


class ToolAborted(ToolEvent, frozen=True, tag="tool_aborted"):
    """The tool was stopped; if no abort was requested, the call gets an error result."""

    at: int
    tool_use_id: str
    execution_id: int


class AgentsSpawned(ToolEvent, frozen=True, tag="agents_spawned"):
    """The arguments of a spawn_sub_agent call have been found valid; its sub-agents can be started."""

    at: int
    tool_use_id: str
    execution_id: int
    agents: tuple[AgentTask, ...]
    """The tasks of the sub-agents. Their `agent_id` is still ""; the transition sets it."""


class ToolRetryTimeout(Timer, frozen=True, tag="tool_retry_timeout"):
    at: int
    tool_use_id: str
    execution_id: int
    attempt: int


class SubAgentResult(Struct, frozen=True, tag="sub_agent_result"):
    at: int
    agent_id: str
    result: AgentOutcome


class SubAgentTimeout(Timer, frozen=True, tag="sub_agent_timeout"):
    at: int
    agent_id: str
    partial_result: str = ""


class CancelTimeout(Timer, frozen=True, tag="cancel_timeout"):
    """After a cancel, sub-agents did not end before the time limit. The actor handles this before other messages."""

    at: int
    run_id: str


class Restart(Struct, frozen=True, tag="restart"):
    """The server was restarted, or is shutting down."""

    at: int


class WithdrawMessage(Struct, frozen=True, tag="withdraw_message"):
    """Command: remove a user message that is still queued."""

    at: int
    message_id: str


class SubmitToolResult(Struct, frozen=True, tag="submit_tool_result"):
    """Command: a client answers a call to a tool that clients run."""

    at: int
    tool_use_id: str
    result: ToolSuccess | ToolError


class ToolDeadline(Struct, frozen=True, tag="tool_deadline"):
    at: int
    tool_use_id: str
    execution_id: int


class AskQuestion(Struct, frozen=True, omit_defaults=True, tag="ask_question"):
    at: int
    tool_use_id: str
    execution_id: int
    place: int
    """The number of the question within this execution of the tool, counted from 1."""
    asker: str
    """The name of the MCP server that asks."""
    message: str
    timeout_ms: int
    schema: str = ""
    """For a form: the JSON Schema of the answer, as JSON."""
    url: str = ""
    """Instead of a form: the URL that the person is asked to visit."""


class QuestionOver(Struct, frozen=True, tag="question_over"):
    """Outcome: the time to answer a tool's question is over, or the tool no longer wants the answer."""

    at: int
    tool_use_id: str
    execution_id: int
    place: int
    timed_out: bool


class AnswerQuestion(Struct, frozen=True, omit_defaults=True, tag="answer_question"):
    """Command: a person answers or declines a question that a tool asked."""

    at: int
    number: int
    accept: bool
    content: str = ""
    """For an accepted form: the values, as a JSON object that matches the schema."""


class InternalFault(Struct, frozen=True, tag="internal_fault"):
    """A bug in the actor raised an exception: the run fails with kind UNKNOWN."""

    at: int
    message: str
    """A human-readable message, which refers to the server's log and reveals no internals."""


class UsageReported(Struct, frozen=True, tag="usage_reported"):
    """Tokens were used that are not part of an LlmResponse event."""

    at: int
    usage: Usage
    aside: bool
    """Whether a side query, such as for the title, used the tokens; otherwise an aborted request or a sub-agent did."""
    run: str = ""
    """If a sub-agent used the tokens: the id of its parent's run, to which they count while it is open. Else ""."""


class McpRestarted(Struct, frozen=True, tag="mcp_restarted"):
    """MCP servers are restarted in the conversation's current mode, before the next run begins."""

    at: int
    servers: tuple[str, ...]


class JobChanged(Struct, frozen=True, tag="job_changed"):
    """Outcome: a command continues as a background job after its tool call, or such a job has ended."""

    at: int
    job: BackgroundJob


Settle: TypeAlias = BeginLlm | FinishCancel | PromoteFollowUp
ToolOutcomeEvent: TypeAlias = ToolComplete | ToolTransient | ToolAborted | AgentsSpawned | ToolRetryTimeout
# Events for which each state has its own rule.
GridEvent: TypeAlias = (
    UserMessage | UserCancel | ApprovalResponse | TriggerContinuation | SpawnSubAgents | StartSubAgent | SetMode
    | Settle
    | LlmStreamStarted | LlmStreamChunk | LlmResponse | LlmError | LlmAborted | RetryTimeout
    | ToolOutcomeEvent
    | SubAgentResult | SubAgentTimeout | CancelTimeout
    | Restart
)  # fmt: skip
# Events that are handled by one rule for all states; they are logged and replayed like all other events.
Beside: TypeAlias = (
    WithdrawMessage | SubmitToolResult | ToolDeadline | AskQuestion | QuestionOver | AnswerQuestion | InternalFault
    | UsageReported | McpRestarted | JobChanged
)  # fmt: skip
Event: TypeAlias = GridEvent | Beside
