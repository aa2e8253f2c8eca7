"""Effects: the actions that a transition requests. They are carried out in three phases: commit, publish, act."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Content, Message, MessageType
from actors.core.context import Mode
from actors.core.notifications import Notification
from actors.core.states import AgentOutcome, AgentTask, QuestionStatus, State


class PersistMessage(Struct, frozen=True, tag="persist_message"):
    """Commit: append a message to the history."""

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
    """Commit: store the new state."""

    new_state: State


class PersistMode(Struct, frozen=True, tag="persist_mode"):
    """Commit: store the new mode, which has a separate column and is a field of the context."""

    mode: Mode


class NotifyClient(Struct, frozen=True, tag="notify_client"):
    """Publish: send a notification to clients."""

    data: Notification

    @property
    def event_type(self) -> str:
        """The tag of the notification's type."""
        return str(type(self.data).__struct_config__.tag)


class RequestLlm(Struct, frozen=True, tag="request_llm"):
    """Act: start one attempt of a model request over the history up to `through_sequence`."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int


class RequestContinuation(Struct, frozen=True, tag="request_continuation"):
    """Act: start one attempt of the summary request, which has no tools (REQ-BED-020)."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int
    rejected: tuple[str, ...]


class AbortLlm(Struct, frozen=True, tag="abort_llm"):
    """Act: abort the request, without waiting for it to end."""

    request_id: str


class ExecuteTool(Struct, frozen=True, tag="execute_tool"):
    """Act: start one tool call."""

    tool_use_id: str
    execution_id: int
    name: str
    input: str
    """Raw JSON text of the arguments."""
    attempt: int = 1


class AwaitToolResult(Struct, frozen=True, tag="await_tool_result"):
    """Act: send ToolDeadline with this identity at the deadline; until then a client may answer the call."""

    tool_use_id: str
    execution_id: int
    deadline: int
    """Milliseconds since the epoch."""


class AwaitAnswer(Struct, frozen=True, tag="await_answer"):
    """Act: send QuestionOver with this identity at the deadline; until then a person may answer the question."""

    tool_use_id: str
    execution_id: int
    place: int
    deadline: int
    """Milliseconds since the epoch."""


class AnswerTool(Struct, frozen=True, omit_defaults=True, tag="answer_tool"):
    """Act: tell the running tool how its question ended."""

    tool_use_id: str
    execution_id: int
    place: int
    status: QuestionStatus
    content: str = ""
    """The answer to a form, a JSON object."""


class AbortTool(Struct, frozen=True, tag="abort_tool"):
    """Act: kill the whole process tree of a tool call."""

    tool_use_id: str
    execution_id: int


class RetryOf(StrEnum):
    """The purpose of a retry timer."""

    LLM = "llm"
    TOOL = "tool"


class ScheduleRetry(Struct, frozen=True, tag="schedule_retry"):
    """Act: send RetryTimeout or ToolRetryTimeout with this identity after `delay_ms`."""

    delay_ms: int
    attempt: int
    of: RetryOf
    request_id: str = ""
    tool_use_id: str = ""
    execution_id: int = 0


class SpawnSubAgent(Struct, frozen=True, tag="spawn_sub_agent"):
    """Act: create the sub-agent, send it StartSubAgent and start the timer of its SubAgentTimeout."""

    task: AgentTask
    deadline: int


class CancelSubAgents(Struct, frozen=True, tag="cancel_sub_agents"):
    """Act: cancel these sub-agents in parallel."""

    agent_ids: tuple[str, ...]


class NotifyParent(Struct, frozen=True, tag="notify_parent"):
    """Act: report the outcome of this sub-agent to its parent, exactly once."""

    result: AgentOutcome


class StartTimer(Struct, frozen=True, tag="start_timer"):
    """Act: send CancelTimeout{run_id} after `delay_ms`."""

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
