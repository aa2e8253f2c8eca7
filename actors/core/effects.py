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
    message: Message

    @property
    def content(self) -> tuple[Content, ...]:
        return self.message.content

    @property
    def msg_type(self) -> MessageType:
        return self.message.type


class PersistState(Struct, frozen=True, tag="persist_state"):
    new_state: State


class PersistMode(Struct, frozen=True, tag="persist_mode"):
    """As part of the commit: store the new mode, which has its own database column."""

    mode: Mode


class NotifyClient(Struct, frozen=True, tag="notify_client"):
    data: Notification

    @property
    def event_type(self) -> str:
        return str(type(self.data).__struct_config__.tag)


class RequestLlm(Struct, frozen=True, tag="request_llm"):
    """After the commit: start one model-request attempt, with the messages up to number `through_sequence`."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int


class RequestContinuation(Struct, frozen=True, tag="request_continuation"):
    """After the commit: make one attempt at the summary request, which offers no tools (REQ-BED-020)."""

    request_id: str
    attempt: int
    model: str
    through_sequence: int
    rejected: tuple[str, ...]


class AbortLlm(Struct, frozen=True, tag="abort_llm"):
    """After the commit: abort the model request, without waiting until it has ended."""

    request_id: str


class ExecuteTool(Struct, frozen=True, tag="execute_tool"):
    tool_use_id: str
    execution_id: int
    name: str
    input: str
    attempt: int = 1


class AwaitToolResult(Struct, frozen=True, tag="await_tool_result"):
    """After the commit: wait for a client to answer a tool call; at the deadline, send ToolDeadline with these ids."""

    tool_use_id: str
    execution_id: int
    deadline: int


class AwaitAnswer(Struct, frozen=True, tag="await_answer"):
    """After the commit: wait for a person's answer to a question; at the deadline, send QuestionOver with these ids."""

    tool_use_id: str
    execution_id: int
    place: int
    deadline: int


class AnswerTool(Struct, frozen=True, omit_defaults=True, tag="answer_tool"):
    """After the commit: give the running tool the answer to its question, or report why there is none."""

    tool_use_id: str
    execution_id: int
    place: int
    status: QuestionStatus
    content: str = ""
    """For an accepted form: the person's values, as a JSON object."""


class AbortTool(Struct, frozen=True, tag="abort_tool"):
    """After the commit: kill the whole process tree of a tool call."""

    tool_use_id: str
    execution_id: int


class RetryOf(StrEnum):
    LLM = "llm"
    TOOL = "tool"


class ScheduleRetry(Struct, frozen=True, tag="schedule_retry"):
    """After the commit: wait `delay_ms`, then send the event RetryTimeout or ToolRetryTimeout for this next attempt."""

    delay_ms: int
    attempt: int
    of: RetryOf
    request_id: str = ""
    tool_use_id: str = ""
    execution_id: int = 0


class SpawnSubAgent(Struct, frozen=True, tag="spawn_sub_agent"):
    """After the commit: create a sub-agent and send it StartSubAgent; SubAgentTimeout follows at the deadline."""

    task: AgentTask
    deadline: int


class CancelSubAgents(Struct, frozen=True, tag="cancel_sub_agents"):
    """After the commit: cancel these sub-agents in parallel."""

    agent_ids: tuple[str, ...]


class NotifyParent(Struct, frozen=True, tag="notify_parent"):
    """After the commit: report the outcome of this sub-agent to its parent, exactly once."""

    result: AgentOutcome


class StartTimer(Struct, frozen=True, tag="start_timer"):
    """After the commit: send a CancelTimeout event for this run after `delay_ms` milliseconds."""

    delay_ms: int
    run_id: str


CommitEffect: TypeAlias = PersistMessage | PersistState | PersistMode
ActEffect: TypeAlias = (
    RequestLlm | RequestContinuation | AbortLlm | ExecuteTool | AwaitToolResult | AwaitAnswer | AnswerTool | AbortTool
    | ScheduleRetry | SpawnSubAgent | CancelSubAgents | NotifyParent | StartTimer
)  # fmt: skip
Effect: TypeAlias = CommitEffect | NotifyClient | ActEffect


class TransitionResult(Struct, frozen=True):
    """The new state, and the effects of the transition in the order in which they were added."""

    new_state: State
    effects: tuple[Effect, ...]
