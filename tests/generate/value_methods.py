"""The methods of the client's values, and the two values that are no messages: `values.py` copies them.

A class has the name of the value whose methods it holds; one that is a dataclass is copied as a whole.
"""

# mypy: ignore-errors
# ruff: noqa: F403, F405
# The fields are those of the generated classes, where the copies are checked.

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

from bedrock._shared.values import *
from bedrock._shared.wrapper import Wrapper
from bedrock.types import *


class Usage:
    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(*[getattr(self, each.name) + getattr(other, each.name) for each in fields(self) if each.init])

    @property
    def total_tokens(self) -> int:
        """The sum of all counts of tokens, input and output."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class Message:
    @property
    def text(self) -> str:
        """All text of the message; empty if there is none, as in tool results."""
        return "\n\n".join(block.text for block in self.content if block.text)

    @property
    def reasoning(self) -> str:
        """The reasoning that the model made visible; empty if there is none."""
        return "\n\n".join(block.reasoning for block in self.content if block.reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the message, in order."""
        return tuple(block.tool_call for block in self.content if block.tool_call is not None)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results in the message."""
        return tuple(block.tool_result for block in self.content if block.tool_result is not None)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in the message, also those in tool results.

        `Conversation.attachment` reads an image by its name.
        """
        found: list[Image] = []
        for block in self.content:
            if block.image is not None:
                found.append(block.image)
            if block.tool_result is not None:
                found += block.tool_result.images
        return tuple(found)


class ApprovalRule:
    @property
    def kind(self) -> str:
        """The name of the field that is set: "tool", "command", "command_prefix", "path" or "mcp_server"."""
        return self.proto.WhichOneof("subject") or ""

    @property
    def subject(self) -> str:
        """The value of the field that `kind` names; a tool's name comes without ``tools/``."""
        return str(getattr(self, self.kind)).removeprefix("tools/") if self.kind else ""


class Approval:
    @property
    def tool_use_id(self) -> str:
        """The id of the tool call that needs approval, or by which the agent asks for a wider mode."""
        return self.name.rpartition("/")[2]

    @property
    def tool(self) -> str:
        """The name of the tool that is to run; "request_mode_upgrade" if the agent asks for a wider mode."""
        if self.mode_upgrade is not None:
            return "request_mode_upgrade"
        return "" if self.tool_call is None else self.tool_call.tool

    @property
    def input(self) -> dict[str, Any]:
        """The input of the call; ``{"reason": …}`` for the request of a wider mode.

        If the model wrote no valid JSON object, the input is ``{"raw_input": …}``.
        """
        if self.mode_upgrade is not None:
            return {"reason": self.mode_upgrade.reason}
        return {} if (call := self.tool_call) is None else call.input or {"raw_input": call.raw_input}

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/approvals/")[0]


class Question:
    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/questions/")[0]


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """A sub-agent, running or ended, as the events of its parent show it. Details are in its own conversation."""

    name: str
    """The resource name of the sub-agent's conversation; empty if it could not be started."""
    task: str
    """The first line of the sub-agent's task."""
    index: int
    """The position of the sub-agent's task among the tasks that were started together, counted from 0."""
    outcome: StateKind | Literal[""] = ""
    """"completed" or "failed"; empty while the sub-agent is at work."""
    result: str = ""
    """The result that the sub-agent submitted or, if it failed, the last text it wrote; a long one is truncated."""
    error_kind: ErrorKind | Literal[""] = ""
    """The kind of failure, e.g. "timed_out"; empty unless the sub-agent failed."""
    error_message: str = ""
    """The error message for people; empty unless the sub-agent failed."""

    @classmethod
    def in_order(
        cls, pending: Iterable[PendingSubAgent], reports: Iterable[SubAgentReport] = ()
    ) -> tuple[SubAgentStatus, ...]:
        """Return all sub-agents that were started together, in the order of their tasks."""
        working = [cls(agent.conversation, agent.task, agent.task_index) for agent in pending]
        ended = [
            cls(
                name=report.conversation,
                task=report.task,
                index=report.task_index,
                outcome=report.state,
                result=report.result or report.partial_result,
                error_kind=report.error.kind if report.error else "",
                error_message=report.error.message if report.error else "",
            )
            for report in reports
        ]
        return tuple(sorted([*working, *ended], key=lambda agent: agent.index))


class ConversationState:
    @property
    def failure(self) -> RunError | None:
        """Why the last run failed (state "error") or the sub-agent failed (state "failed"); None in other states."""
        return self.error if self.failed is None else self.failed.error

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The open approvals; empty in states without approvals."""
        return () if self.awaiting_approval is None else self.awaiting_approval.pending

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions of the running tool to a person; empty in states without questions."""
        return () if self.tool_executing is None else self.tool_executing.questions


class ConversationListEvent:
    @property
    def kind(self) -> ListEventKind | Literal[""]:
        """What happened: the name of the attribute that is set, or "caught_up" or "heartbeat".

        Empty if this version does not know the event.
        """
        return cast("ListEventKind", self.proto.WhichOneof("event") or "")


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


class Event:
    @property
    def kind(self) -> EventKind | Literal[""]:
        """What happened; see the table in `bedrock.events`. Empty if this version does not know the kind."""
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
