"""What happens in a conversation, as it is iterated: ``for event in conversation.send("…")``.

An `Event` is a thin view of the event of the contract. Decide on ``event.kind``:

| kind | what happened | look at |
|---|---|---|
| ``text_delta`` | the model wrote some text | ``text`` |
| ``reasoning_delta`` | the model let see some reasoning | ``text`` |
| ``tool_output_delta`` | a tool wrote some output | ``text`` |
| ``stream_discarded`` | what was streamed since the last message is void | |
| ``message_added`` | a message was stored | ``message``, ``role`` |
| ``state_changed`` | the state changed | ``state``, ``run``, ``sub_agents`` when they start |
| ``approval_changed`` | a question was asked, answered or withdrawn | ``approval`` if it waits now, else ``decision`` |
| ``queue_changed`` | a steer or follow-up was queued, or its wait ended | ``message``, ``fate`` |
| ``retrying`` | a request or a tool failed and will be tried again | ``error`` |
| ``run_stopped`` | a run ended | ``stop``, ``run`` |
| ``conversation_updated`` | mode, usage or settings changed | ``conversation`` |
| ``context_warning`` | the context is 80 % full | |
| ``sub_agents_changed`` | a sub-agent ended | ``sub_agents`` |
| ``tool_tree_reaped`` | the processes of a cancelled tool are gone | |
| ``snapshot`` | how things stand, at the start or after a gap | ``conversation``, ``messages``, ``sub_agents`` |
| ``caught_up`` | what was missed has been shown | |
| ``deleted`` | the conversation is gone | |

Everything else that an event holds is in ``event.proto``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from google.protobuf import json_format

from bedrock import v1
from bedrock._shared.enum_names import enum_name
from bedrock.messages import Approval, Message, SubAgentStatus, moment
from bedrock.types import ApprovalDecision, ErrorKind, EventKind, Fate, Role, StopReason

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Event", "Stop"]


@dataclass(frozen=True, slots=True)
class Stop:
    """How a run ended."""

    reason: StopReason | Literal["deleted", "withdrawn", ""]
    """"completed", "interrupted" or "error"; "withdrawn" or "deleted" if there was no run to end."""
    detail: str = ""
    """The finer reason, e.g. "restart"; empty if there is none."""
    error_kind: ErrorKind | Literal[""] = ""
    """Why it failed, e.g. "auth"; empty unless it failed."""
    error_message: str = ""
    """The same for people, with what to do about it."""

    @classmethod
    def from_proto(cls, stopped: v1.Event.RunStopped) -> Stop:
        """Take the values from the message of the contract."""
        return cls(
            reason=cast("StopReason", enum_name(v1.StopReason, stopped.reason)),
            detail=stopped.detail,
            error_kind=cast("ErrorKind", enum_name(v1.ErrorKind, stopped.error.kind)),
            error_message=stopped.error.message,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Attributes that do not belong to its kind are empty or None."""

    proto: v1.Event

    @property
    def kind(self) -> EventKind | Literal[""]:
        """What happened; see the table at the head of this module. Empty if this version does not know it."""
        kind = self.proto.WhichOneof("event")
        if kind == "text_delta" and self.proto.text_delta.reasoning:
            return "reasoning_delta"
        return cast("EventKind", kind or "")

    @property
    def revision(self) -> int:
        """The position in the log of the conversation. Zero for passing events, which are not stored."""
        return self.proto.revision

    @property
    def time(self) -> datetime:
        """When it happened, by the clock of the server."""
        return moment(self.proto.time)

    @property
    def text(self) -> str:
        """The piece of text of a delta, or the whole text of a message that was added."""
        match self.proto.WhichOneof("event"):
            case "text_delta":
                return self.proto.text_delta.text
            case "tool_output_delta":
                return self.proto.tool_output_delta.text
            case "message_added":
                return Message(self.proto.message_added).text
            case _:
                return ""

    @property
    def message(self) -> Message | None:
        """The message that was added, or that is or was queued."""
        match self.proto.WhichOneof("event"):
            case "message_added":
                return Message(self.proto.message_added)
            case "queue_changed":
                return Message(self.proto.queue_changed.message)
            case _:
                return None

    @property
    def role(self) -> Role | Literal[""]:
        """Who says the message that was added: "user", "agent", "tool" or "system"; empty for all other events."""
        return Message(self.proto.message_added).role if self.proto.HasField("message_added") else ""

    @property
    def messages(self) -> list[Message]:
        """The recent messages of a snapshot."""
        return [Message(message) for message in self.proto.snapshot.messages]

    @property
    def fate(self) -> Fate | Literal[""]:
        """What became of a queued message: "queued", "delivered", "returned", "discarded" or "withdrawn"."""
        return cast("Fate", enum_name(v1.QueuedMessage.Fate, self.proto.queue_changed.fate))

    @property
    def conversation(self) -> v1.Conversation | None:
        """The conversation, of a snapshot or of an update."""
        match self.proto.WhichOneof("event"):
            case "snapshot":
                return self.proto.snapshot.conversation
            case "conversation_updated":
                return self.proto.conversation_updated
            case _:
                return None

    @property
    def state(self) -> v1.ConversationState | None:
        """The state, of a state change, a snapshot or an update."""
        if self.proto.WhichOneof("event") == "state_changed":
            return self.proto.state_changed.state
        conversation = self.conversation
        return None if conversation is None else conversation.state

    @property
    def approval(self) -> Approval | None:
        """The question that has just been asked; None if it was answered or withdrawn."""
        if self.proto.WhichOneof("event") != "approval_changed" or self.proto.approval_changed.decision:
            return None
        return Approval.from_proto(self.proto.approval_changed.approval)

    @property
    def decision(self) -> ApprovalDecision | Literal[""]:
        """How the question was decided: "approve", "approve_always", "deny" or "withdrawn"; empty while it is open."""
        return cast("ApprovalDecision", enum_name(v1.ApprovalDecision, self.proto.approval_changed.decision))

    @property
    def note(self) -> str:
        """The note that was given with the decision."""
        return self.proto.approval_changed.note

    @property
    def sub_agents(self) -> list[SubAgentStatus]:
        """All sub-agents that were started together, when they start, when one of them ends, and of a snapshot while
        the conversation waits for them.
        """
        match self.proto.WhichOneof("event"):
            case "sub_agents_changed":
                return SubAgentStatus.all_of(self.proto.sub_agents_changed)
            case "snapshot":
                return SubAgentStatus.all_of(self.proto.snapshot.sub_agents)
            case "state_changed":
                waiting = self.proto.state_changed.state.awaiting_sub_agents
                started = [] if waiting.completed_count else waiting.pending
                return SubAgentStatus.all_of(v1.Event.SubAgentsChanged(pending=started))
            case _:
                return []

    @property
    def error(self) -> v1.RunError | None:
        """Why an attempt or a run failed."""
        match self.proto.WhichOneof("event"):
            case "retrying":
                return self.proto.retrying.error
            case "run_stopped" if self.proto.run_stopped.HasField("error"):
                return self.proto.run_stopped.error
            case _:
                return None

    @property
    def stop(self) -> Stop | None:
        """How the run ended."""
        return Stop.from_proto(self.proto.run_stopped) if self.proto.HasField("run_stopped") else None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values for JSON: ``{"kind": "text_delta", "text_delta": {…}, "revision": …, …}``.

        Fields have the names of the contract. Numbers of 64 bits are strings, as everywhere in JSON of protobuf.
        """
        fields: dict[str, Any] = json_format.MessageToDict(self.proto, preserving_proto_field_name=True)
        return {"kind": self.kind, **fields}

    @property
    def run(self) -> str:
        """The run that is under way or that ended; empty if the event does not say."""
        if self.proto.HasField("run_stopped"):
            return self.proto.run_stopped.request_cycle
        message = self.message
        if message is not None:
            return message.proto.request_cycle
        state = self.state
        return "" if state is None else state.run
