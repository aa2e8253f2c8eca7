"""The events of a conversation, as a loop yields them: ``for event in conversation.send("…")``.

Branch on ``event.kind``. The attribute of that name has the full data of the event, except that reasoning is in
``text_delta``. The attributes in the table are shortcuts, empty or None where an event has no such data.

| kind | what happened | look at |
|---|---|---|
| ``text_delta``, ``reasoning_delta`` | the model wrote some text, or some visible reasoning | ``text`` |
| ``tool_output_delta`` | a tool wrote some output | ``text`` |
| ``stream_discarded`` | text streamed since the last message is void | |
| ``message_added`` | a message was stored | ``message``, ``role``, ``text`` |
| ``state_changed`` | the state changed | ``state``, ``run``, ``sub_agents`` when they start |
| ``approval_changed`` | an approval was requested, answered or withdrawn | ``approval`` while open, else ``decision`` |
| ``queue_changed`` | a steer or follow-up was queued, or left the queue | ``message``, ``fate`` |
| ``retrying`` | a request or a tool failed and will be tried again | ``error`` |
| ``run_stopped`` | a run ended | ``stop``, ``run``, ``error`` |
| ``conversation_updated`` | mode, usage or settings changed | ``conversation``, ``state`` |
| ``context_warning`` | the context is 80 % full | |
| ``sub_agents_changed`` | a sub-agent ended | ``sub_agents`` |
| ``client_tool_call_changed`` | a call waits for a client's answer, or no longer does | |
| ``question_changed`` | a tool asks a person, or its question has ended | ``question`` while it is open |
| ``background_job_changed`` | a background job began or has ended | |
| ``tool_tree_reaped`` | the processes of a cancelled tool have ended | |
| ``snapshot`` | the state, at the start or after a gap | ``conversation``, ``state``, ``messages``, ``sub_agents`` |
| ``caught_up`` | all events that the client had missed have been yielded | |
| ``deleted`` | the conversation was deleted | |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from bedrock import v1
from bedrock._shared.values import (
    BackgroundJobChanged,
    CaughtUp,
    ClientToolCallChanged,
    Retrying,
    RunStopped,
    StreamDiscarded,
    TextDelta,
    ToolOutputDelta,
    ToolTreeReaped,
)
from bedrock._shared.wrapper import Wrapper
from bedrock.conversations import ContextUsage, ConversationInfo
from bedrock.messages import Message, QueuedMessage
from bedrock.states import Approval, ConversationState, Question, RunError, SubAgentsChanged, SubAgentStatus
from bedrock.types import (
    ApprovalDecision,
    ContextState,
    ErrorKind,
    EventKind,
    Fate,
    Role,
    StopReason,
)

__all__ = [
    "ApprovalChanged",
    "BackgroundJobChanged",
    "CaughtUp",
    "ClientToolCallChanged",
    "Event",
    "QuestionChanged",
    "Retrying",
    "RunStopped",
    "Snapshot",
    "StateChanged",
    "Stop",
    "StreamDiscarded",
    "TextDelta",
    "ToolOutputDelta",
    "ToolTreeReaped",
]


@dataclass(frozen=True, slots=True)
class QuestionChanged(Wrapper[v1.Event.QuestionChanged]):
    """A tool asked a person a question, or the question was answered or no longer waits."""

    question: Question
    """The question, with its status."""


@dataclass(frozen=True, slots=True)
class Snapshot(Wrapper[v1.Event.Snapshot]):
    """The state of a conversation at one revision, i.e. after one particular stored event."""

    conversation: ConversationInfo
    """The conversation at that revision."""
    messages: tuple[Message, ...]
    """The latest messages, oldest first."""
    partial: tuple[TextDelta, ...]
    """Text of a message that the model is still writing; also yielded as text deltas."""
    pending_approvals: tuple[Approval, ...]
    """The open approvals."""
    queue: tuple[QueuedMessage, ...]
    """The queued messages, oldest first."""
    sub_agents: SubAgentsChanged | None
    """The sub-agents that the conversation waits for; None if it waits for none."""
    pending_client_tool_calls: tuple[ClientToolCallChanged, ...]
    """The call that waits for a client's answer; empty if no call waits."""
    pending_questions: tuple[Question, ...]
    """The open questions of the running tool to a person, oldest first."""


@dataclass(frozen=True, slots=True)
class StateChanged(Wrapper[v1.Event.StateChanged]):
    """The conversation entered another state, or details of its state changed."""

    state: ConversationState
    """The state after the change."""
    fsm_path: tuple[ContextState, ...]
    """The states of the server's state machine that the change passed through; empty if only details changed."""


@dataclass(frozen=True, slots=True)
class ApprovalChanged(Wrapper[v1.Event.ApprovalChanged]):
    """An approval was requested, answered or withdrawn."""

    approval: Approval
    """The approval. Once it is decided, only its `name` is certain to be set."""
    decision: ApprovalDecision | Literal[""]
    """How the approval was decided: "approve", "deny" or "withdrawn"; empty if it was just requested."""
    note: str
    """The note that was given with the decision; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Stop:
    """How a run ended, or why a queued message never started a run."""

    reason: StopReason | Literal["deleted", "withdrawn", ""]
    """"completed", "interrupted" or "error"; "withdrawn" or "deleted" if the run never began."""
    detail: str = ""
    """The cause in more detail, e.g. "restart"; empty if there is none."""
    error_kind: ErrorKind | Literal[""] = ""
    """The kind of failure, e.g. "auth"; empty unless the run failed."""
    error_message: str = ""
    """The error message for people, with advice; empty unless the run failed."""
    output: Any = field(default=None, hash=False)
    """The JSON value that the run ended with, fitting its output schema; None if the run had no schema."""

    @classmethod
    def of(cls, stopped: RunStopped) -> Stop:
        """Create the object from the event that reports the end of a run."""
        kind, message = ("", "") if stopped.error is None else (stopped.error.kind, stopped.error.message)
        return cls(stopped.reason, stopped.detail, cast("ErrorKind", kind), message, stopped.output)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, also empty ones, as values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Event(Wrapper[v1.Event]):
    """One event of a conversation. Attributes that do not belong to its kind are empty or None."""

    revision: int
    """The position in the log of the conversation. Zero for ephemeral events, which are not stored."""
    time: datetime
    """When the event happened, by the clock of the server."""
    snapshot: Snapshot | None
    caught_up: CaughtUp | None
    state_changed: StateChanged | None
    message_added: Message | None
    run_stopped: RunStopped | None
    conversation_updated: ConversationInfo | None
    context_warning: ContextUsage | None
    queue_changed: QueuedMessage | None
    approval_changed: ApprovalChanged | None
    retrying: Retrying | None
    stream_discarded: StreamDiscarded | None
    sub_agents_changed: SubAgentsChanged | None
    tool_tree_reaped: ToolTreeReaped | None
    text_delta: TextDelta | None
    tool_output_delta: ToolOutputDelta | None
    client_tool_call_changed: ClientToolCallChanged | None
    question_changed: QuestionChanged | None
    background_job_changed: BackgroundJobChanged | None

    @property
    def kind(self) -> EventKind | Literal[""]:
        """What happened; see the table at the head of this module. Empty if this version does not know the kind."""
        if self.text_delta is not None and self.text_delta.reasoning:
            return "reasoning_delta"
        return cast("EventKind", self.proto.WhichOneof("event") or "")

    @property
    def text(self) -> str:
        """The piece of text of a delta, or the whole text of a message that was added; empty for all other events."""
        written = self.text_delta or self.tool_output_delta or self.message_added
        return "" if written is None else written.text

    @property
    def message(self) -> Message | None:
        """The message that was added, or whose place in the queue changed; None for all other events."""
        return self.message_added if self.queue_changed is None else self.queue_changed.message

    @property
    def role(self) -> Role | Literal[""]:
        """Who wrote the message that was added: "user", "agent", "tool", "system" or "error"; else empty."""
        return "" if self.message_added is None else self.message_added.role

    @property
    def messages(self) -> tuple[Message, ...]:
        """The recent messages of a snapshot; empty for all other events."""
        return () if self.snapshot is None else self.snapshot.messages

    @property
    def fate(self) -> Fate | Literal[""]:
        """The present status of a queued message: "queued", "delivered", "returned", "discarded" or "withdrawn".

        Empty for all other events.
        """
        return "" if self.queue_changed is None else self.queue_changed.fate

    @property
    def conversation(self) -> ConversationInfo | None:
        """The conversation in a snapshot or update event; None for all other events."""
        return self.conversation_updated if self.snapshot is None else self.snapshot.conversation

    @property
    def state(self) -> ConversationState | None:
        """The conversation's state, in a state change, a snapshot or an update; None for all other events."""
        if self.state_changed is not None:
            return self.state_changed.state
        return None if self.conversation is None else self.conversation.state

    @property
    def approval(self) -> Approval | None:
        """The approval that this event requests; None for all other events, including the answer and the withdrawal."""
        changed = self.approval_changed
        return None if changed is None or changed.decision else changed.approval

    @property
    def question(self) -> Question | None:
        """The question that a tool asks with this event; None for all other events, including the end of a question."""
        changed = self.question_changed
        return None if changed is None or changed.question.status != "pending" else changed.question

    @property
    def decision(self) -> ApprovalDecision | Literal[""]:
        """How an approval was decided: "approve", "deny" or "withdrawn"; empty while it is open.

        Empty for all other events, too.
        """
        return "" if self.approval_changed is None else self.approval_changed.decision

    @property
    def note(self) -> str:
        """The note that was given with the decision about an approval; empty if there is none."""
        return "" if self.approval_changed is None else self.approval_changed.note

    @property
    def sub_agents(self) -> tuple[SubAgentStatus, ...]:
        """All sub-agents that were started together, in the order of their tasks.

        Set when they start, when one of them ends, and in a snapshot while the conversation waits for them.
        """
        changed = self.sub_agents_changed if self.snapshot is None else self.snapshot.sub_agents
        if changed is not None:
            return SubAgentStatus.in_order(changed.pending, changed.reports)
        waiting = None if self.state_changed is None else self.state_changed.state.awaiting_sub_agents
        return () if waiting is None or waiting.completed_count else SubAgentStatus.in_order(waiting.pending)

    @property
    def error(self) -> RunError | None:
        """Why an attempt or a run failed; None if the event reports no failure."""
        failed = self.retrying or self.run_stopped
        return None if failed is None else failed.error

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None unless the event reports the end of a run."""
        return None if self.run_stopped is None else Stop.of(self.run_stopped)

    @property
    def run(self) -> str:
        """The resource name of the run that is in progress or has ended; empty if the event has no such information."""
        if self.run_stopped is not None:
            return self.run_stopped.request_cycle
        if self.message is not None:
            return self.message.request_cycle
        return "" if self.state is None else self.state.run

    def to_dict(self) -> dict[str, Any]:
        """Return the event as values for JSON: ``{"kind": "text_delta", "text_delta": {…}, "revision": …, …}``.

        The result is that of `Wrapper.to_dict`, with `kind` added.
        """
        return {"kind": self.kind, **Wrapper.to_dict(self)}
