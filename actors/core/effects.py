"""Effects: the actions that a transition requests, as data.

The conversation's actor carries them out in three phases: first it commits (stores) the Persist effects, then it
publishes the notifications to clients, then it acts on the rest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Content, Message, MessageType
from actors.core.context import Mode
from actors.core.notifications import Notification
from actors.core.states import AgentOutcome, AgentTask, QuestionStatus, State


class PersistMessage(Struct, frozen=True, tag="persist_message"):
    """Commit phase: append a message to the history."""

    message: Message

    @property
    def content(self) -> tuple[Content, ...]:
        """The content of the message."""
        return self.message.content

    @property
    def msg_type(self) -> MessageType:
        """The type of the message."""
        return self.message.type


class PersistState(Struct, frozen=True, tag="persist_state"):
    """Commit phase: store the new state."""

    new_state: State


class PersistMode(Struct, frozen=True, tag="persist_mode"):
    """Commit phase: store the new mode, which has a database column of its own and is a field of the context."""

    mode: Mode


class NotifyClient(Struct, frozen=True, tag="notify_client"):
    """Publish phase: send a notification to clients."""

    data: Notification

    @property
    def event_type(self) -> str:
        """The tag of the notification's type, such as "state_changed"."""
        return str(type(self.data).__struct_config__.tag)


class RequestLlm(Struct, frozen=True, tag="request_llm"):
    """Act phase: start one attempt of a model request over the history up to `through_sequence`."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int


class RequestContinuation(Struct, frozen=True, tag="request_continuation"):
    """Act phase: start one attempt of the request for a summary, which offers no tools (REQ-BED-020)."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int
    rejected: tuple[str, ...]


class AbortLlm(Struct, frozen=True, tag="abort_llm"):
    """Act phase: abort the model request, without waiting until it has ended."""

    request_id: str


class ExecuteTool(Struct, frozen=True, tag="execute_tool"):
    """Act phase: start one tool call."""

    tool_use_id: str
    execution_id: int
    name: str
    input: str
    """Raw JSON text of the arguments."""
    attempt: int = 1


class AwaitToolResult(Struct, frozen=True, tag="await_tool_result"):
    """Act phase: send a ToolDeadline event with these ids at the deadline; until then a client may answer the call."""

    tool_use_id: str
    execution_id: int
    deadline: int
    """In milliseconds since the epoch."""


class AwaitAnswer(Struct, frozen=True, tag="await_answer"):
    """Act phase: send QuestionOver with these ids at the deadline; until then a person may answer the question."""

    tool_use_id: str
    execution_id: int
    place: int
    deadline: int
    """In milliseconds since the epoch."""


class AnswerTool(Struct, frozen=True, omit_defaults=True, tag="answer_tool"):
    """Act phase: give the running tool the answer to its question, or report why there is none."""

    tool_use_id: str
    execution_id: int
    place: int
    status: QuestionStatus
    content: str = ""
    """For an accepted form: the person's values, as a JSON object."""


class AbortTool(Struct, frozen=True, tag="abort_tool"):
    """Act phase: kill the whole process tree of a tool call."""

    tool_use_id: str
    execution_id: int


class RetryOf(StrEnum):
    """What a retry timer will retry."""

    LLM = "llm"
    TOOL = "tool"


class ScheduleRetry(Struct, frozen=True, tag="schedule_retry"):
    """Act phase: send a RetryTimeout or ToolRetryTimeout event with these ids after `delay_ms` milliseconds."""

    delay_ms: int
    attempt: int
    of: RetryOf
    request_id: str = ""
    tool_use_id: str = ""
    execution_id: int = 0


class SpawnSubAgent(Struct, frozen=True, tag="spawn_sub_agent"):
    """Act phase: create the sub-agent, send it StartSubAgent and start the timer of its SubAgentTimeout."""

    task: AgentTask
    deadline: int


class CancelSubAgents(Struct, frozen=True, tag="cancel_sub_agents"):
    """Act phase: cancel these sub-agents in parallel."""

    agent_ids: tuple[str, ...]


class NotifyParent(Struct, frozen=True, tag="notify_parent"):
    """Act phase: report the outcome of this sub-agent to its parent, exactly once."""

    result: AgentOutcome


class StartTimer(Struct, frozen=True, tag="start_timer"):
    """Act phase: send a CancelTimeout event for this run after `delay_ms` milliseconds."""

    delay_ms: int
    run_id: str


CommitEffect: TypeAlias = PersistMessage | PersistState | PersistMode
ActEffect: TypeAlias = (
    RequestLlm
    | RequestContinuation
    | AbortLlm
    | ExecuteTool
    | AwaitToolResult
    | AwaitAnswer
    | AnswerTool
    | AbortTool
    | ScheduleRetry
    | SpawnSubAgent
    | CancelSubAgents
    | NotifyParent
    | StartTimer
)
Effect: TypeAlias = CommitEffect | NotifyClient | ActEffect
