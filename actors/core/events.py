"""Everything that can happen to a conversation.

Commands ask for something and get exactly one verdict. Settle events follow from a state in the same commit.
Outcomes report what an effect led to; each carries the identity of that effect, and one that does not match is
ignored. `at` is the runtime's clock in milliseconds since the epoch.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Content, Delivery, Image, Text, ToolResult, Usage
from actors.core.context import Mode
from actors.core.errors import LlmFailure
from actors.core.states import AgentOutcome, AgentTask


class UserMessage(Struct, frozen=True, tag="user_message"):
    """A person or a client says something (REQ-BED-002)."""

    at: int
    message_id: str
    text: str
    images: tuple[Image, ...] = ()
    delivery: Delivery = Delivery.REJECT
    expected_run: str = ""
    """If set and not the live run: Rejected(RUN_OVER), before anything else."""


class UserCancel(Struct, frozen=True, tag="user_cancel"):
    """Stop (REQ-BED-005)."""

    at: int
    run_id: str = ""
    """If set and not the live run: ignored."""
    discard_queued: bool = False
    kill_jobs: bool = False
    reason: str = ""


class ApprovalResponse(Struct, frozen=True, tag="approval_response"):
    """A person's answer to one question."""

    at: int
    tool_use_id: str
    approve: bool
    reason: str = ""


class TriggerContinuation(Struct, frozen=True, tag="trigger_continuation"):
    """Write the summary now, as if the context were full (REQ-BED-023)."""

    at: int


class SpawnSubAgents(Struct, frozen=True, tag="spawn_sub_agents"):
    """Start sub-agents by hand, as a run of its own (C27)."""

    at: int
    message_id: str
    tasks: tuple[AgentTask, ...]


class StartSubAgent(Struct, frozen=True, tag="start_sub_agent"):
    """The parent's executor gives a sub-agent its task (C50)."""

    at: int
    message_id: str
    task: str
    max_turns: int = 0
    """What the limits say if 0."""


class SetMode(Struct, frozen=True, omit_defaults=True, tag="set_mode"):
    """Change what tools may change, at once; control lane."""

    at: int
    mode: Mode
    stop: tuple[str, ...] = ()
    """Calls that run with more rights than this mode gives, and shall not go on (REQ-BED-016)."""


class BeginLlm(Struct, frozen=True, tag="begin_llm"):
    """Settle: build the request that AwaitingLlm is due."""

    at: int


class FinishCancel(Struct, frozen=True, tag="finish_cancel"):
    """Settle: a cancelled model request needs no waiting."""

    at: int


class PromoteFollowUp(Struct, frozen=True, tag="promote_follow_up"):
    """Settle: the oldest follow-up becomes the next run."""

    at: int


class LlmStreamStarted(Struct, frozen=True, tag="llm_stream_started"):
    """The provider's answer has begun."""

    at: int
    request_id: str
    attempt: int


class LlmStreamChunk(Struct, frozen=True, tag="llm_stream_chunk"):
    """The answer's next text; conflated while it waits, never persisted."""

    at: int
    request_id: str
    attempt: int
    content: Text
    reasoning: bool = False


class LlmResponse(Struct, frozen=True, tag="llm_response"):
    """The whole answer (REQ-BED-003)."""

    at: int
    request_id: str
    attempt: int
    content: tuple[Content, ...]
    """Text, Reasoning and ToolUse blocks."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    """Cut off at the output token limit (C25)."""
    refusal: bool = False


class LlmError(Struct, frozen=True, tag="llm_error"):
    """The attempt failed."""

    at: int
    request_id: str
    attempt: int
    error: LlmFailure
    retry_after_ms: int | None = None
    usage: Usage | None = None


class LlmAborted(Struct, frozen=True, tag="llm_aborted"):
    """The attempt was aborted; unasked, it counts as a network error."""

    at: int
    request_id: str
    attempt: int
    usage: Usage | None = None
    """What the provider had counted by then."""


class RetryTimeout(Struct, frozen=True, tag="retry_timeout"):
    """The next attempt of a request is due."""

    at: int
    request_id: str
    attempt: int


class ToolComplete(Struct, frozen=True, tag="tool_complete"):
    """The tool answered, well or badly."""

    at: int
    tool_use_id: str
    execution_id: int
    result: ToolResult


class ToolTransient(Struct, frozen=True, tag="tool_transient"):
    """The infrastructure failed before or around the tool (C14)."""

    at: int
    tool_use_id: str
    execution_id: int
    message: str
    begun: bool = True
    """False: the tool provably had not begun, so it may be started again whatever it is."""


class ToolAborted(Struct, frozen=True, tag="tool_aborted"):
    """The tool was stopped; unasked, it becomes an error result."""

    at: int
    tool_use_id: str
    execution_id: int


class AgentsSpawned(Struct, frozen=True, tag="agents_spawned"):
    """spawn_sub_agent was validated as a whole: these are to be started."""

    at: int
    tool_use_id: str
    execution_id: int
    agents: tuple[AgentTask, ...]
    """Their agent_id is empty: the transition numbers them."""


class ToolRetryTimeout(Struct, frozen=True, tag="tool_retry_timeout"):
    """The next attempt of a tool is due."""

    at: int
    tool_use_id: str
    execution_id: int
    attempt: int


class SubAgentResult(Struct, frozen=True, tag="sub_agent_result"):
    """A sub-agent ended."""

    at: int
    agent_id: str
    result: AgentOutcome


class SubAgentTimeout(Struct, frozen=True, tag="sub_agent_timeout"):
    """A sub-agent's deadline passed."""

    at: int
    agent_id: str
    partial_result: str = ""
    """Its last text until now."""


class CancelTimeout(Struct, frozen=True, tag="cancel_timeout"):
    """Sub-agents did not answer a cancel in time; control lane."""

    at: int
    run_id: str


class Restart(Struct, frozen=True, tag="restart"):
    """The server came up again, or is shutting down (C35)."""

    at: int


class WithdrawMessage(Struct, frozen=True, tag="withdraw_message"):
    """Take a waiting steer or follow-up back."""

    at: int
    message_id: str


class InternalFault(Struct, frozen=True, tag="internal_fault"):
    """The actor itself failed, that is a bug: whatever is under way ends as an error of kind UNKNOWN."""

    at: int
    message: str
    """For people: names the conversation's log line, shows no insides."""


class UsageReported(Struct, frozen=True, tag="usage_reported"):
    """Tokens were spent without an answer that the conversation waits for."""

    at: int
    usage: Usage
    aside: bool
    """True: by a small request beside the conversation; False: by a request of its own that it has abandoned, or by a
    sub-agent."""
    run: str = ""
    """The run that a sub-agent's tokens count for as well, while it is live."""


Command: TypeAlias = (
    UserMessage | UserCancel | ApprovalResponse | TriggerContinuation | SpawnSubAgents | StartSubAgent | SetMode
)
Settle: TypeAlias = BeginLlm | FinishCancel | PromoteFollowUp
LlmOutcome: TypeAlias = LlmStreamStarted | LlmStreamChunk | LlmResponse | LlmError | LlmAborted | RetryTimeout
ToolOutcomeEvent: TypeAlias = ToolComplete | ToolTransient | ToolAborted | AgentsSpawned | ToolRetryTimeout
AgentOutcomeEvent: TypeAlias = SubAgentResult | SubAgentTimeout | CancelTimeout
GridEvent: TypeAlias = Command | Settle | LlmOutcome | ToolOutcomeEvent | AgentOutcomeEvent | Restart
"""Events that have a cell in every state."""
Beside: TypeAlias = WithdrawMessage | InternalFault | UsageReported
"""Events that are treated alike in every state: they are journalled and replayed like the others."""
Event: TypeAlias = GridEvent | Beside
