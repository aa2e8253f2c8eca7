"""The port for telemetry, through which the server reports its work for logs, metrics and traces.

`Telemetry` itself observes nothing; observers are subclasses of it. The reported facts contain no contents (texts from
users, models and tools). Contents are passed in their own arguments; only traces use them, and only if the operator
has enabled that. Thread-safe; no method raises, and only `close` blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from actors.core.content import ToolUse, Usage
from actors.core.notifications import Durable
from actors.ports import ConversationRecord
from actors.ports.models import ModelAnswer, ModelRequest

# The W3C `traceparent` that came with the current gRPC call; "" if there was none.
trace_parent: ContextVar[str] = ContextVar("trace_parent", default="")


INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
# The names of those trace span attributes that hold contents: messages, arguments and results.
CONTENTS = (INPUT, OUTPUT, ARGUMENTS, RESULT)


@dataclass(slots=True)
class Run:
    conversation: str
    run: str
    model: str
    principal: str = ""
    parent: str = ""
    trace_parent: str = ""
    """The W3C `traceparent` of the client's message; "" if there was none."""
    began: float = 0.0
    cancelled_at: float | None = None
    """When the first cancel of the run was requested."""
    provider: str = ""
    usage: Usage = field(default_factory=Usage)
    """The tokens that the model's answers have used so far."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """The names of the tools in the model's latest answer, by the ids of the tool calls."""
    started: set[str] = field(default_factory=set[str])
    """The ids of the tool calls that were started, or passed to a client."""
    waiting: dict[str, float] = field(default_factory=dict[str, float])
    """When each tool call began to wait for a client, by the id of the call."""


class AttemptStart(Struct, frozen=True, gc=False):
    """A model-request attempt, as reported when it begins."""

    conversation: str
    request: str
    attempt: int
    model: str
    provider: str
    purpose: str


class AttemptEnd(Struct, frozen=True, gc=False):
    outcome: str
    """One of "ok", "refusal", "truncated" and "cancelled", or the value of an ErrorKind."""
    seconds: float
    first_chunk_seconds: float | None = None
    """The seconds from the start of the attempt until the answer began; None if it never began."""
    usage: Usage | None = None


class ToolStart(Struct, frozen=True, gc=False):
    """A tool call, as reported when it begins."""

    conversation: str
    call: str
    tool: str
    client: bool = False
    """Whether a client carries out the call."""


class ToolEnd(Struct, frozen=True, gc=False):
    """How a tool call ended."""

    outcome: str
    """One of "ok", "error", "failed" (the infrastructure failed), "cancelled" and "sub_agents" (some were started).

    For a client tool: "answered", "timed_out" or "withdrawn".
    """
    seconds: float


class Rpc(Struct, frozen=True, gc=False):
    """A client's gRPC call, after it has ended."""

    method: str
    conversation: str
    """The id of the conversation; "" if the call concerns none, or was refused before the conversation was found."""
    principal: str
    peer: str
    request_id: str
    outcome: str
    seconds: float
    stream: bool
    command: bool
    """Whether the method changes something."""


class Telemetry:
    """An observer that observes nothing."""

    on = False
    """Whether anything is observed; if not, callers do not even collect facts that are costly to collect."""
    measures = False
    """Whether frequent measurements are wanted, such as `delivered`."""

    def close(self) -> None:
        """Send what was collected, and stop. Idempotent. May block for a few seconds."""

    def rpc_ended(self, rpc: Rpc) -> None:
        """Observe the end of a gRPC call or stream."""

    def command_began(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        """Observe that a conversation handles a command of class `kind`, sent at `asked_at` (monotonic seconds)."""

    def command_ended(self, conversation: str) -> None:
        """Observe that the conversation has handled the command that `command_began` reported last."""

    def published(self, record: ConversationRecord, events: Iterable[Durable]) -> None:
        """Observe a conversation's events, such as the beginning and the end of a run, in their order."""

    def deleted(self, conversation: str) -> None: ...
    def recovered(
        self, record: ConversationRecord, run: str, calls: Iterable[ToolUse], events: Iterable[Durable]
    ) -> None:
        """Observe the load of a conversation whose open run was begun by an earlier process.

        `run` is the id of that run, `calls` are its open calls, and `events` are the changes that the recovery made.
        """

    def attempt_began(self, attempt: AttemptStart) -> None:
        """Observe the beginning of a model-request attempt."""

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        """Observe the end of an attempt. `request` and `answer` hold contents (messages), which only traces may use."""

    def tool_began(self, call: ToolStart) -> str | None:
        """Observe the beginning of a tool call; return the `traceparent` for its requests, None if it is not traced."""

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        """Observe the end of a tool call. `arguments` and `result` are contents, which only traces may use."""

    def quota_exceeded(self, quota: str) -> None:
        """Observe that a call or a run was refused or stopped because this quota is used up."""

    def taken_over(self, conversations: int) -> None:
        """Observe that this node took over this number of interrupted conversations from a dead node."""

    def forwarded(self, outcome: str) -> None:
        """Observe the end of a call that was passed on to another node.

        `outcome` is "answered", "refused" (a status other than OK), "moved" (the other node is no longer the owner),
        "lost", "timed_out", or "ended" (by the client or a shutdown).
        """

    def written(self, changes: int, seconds: float) -> None:
        """Observe a committed transaction with this number of changes. Called on the store's thread."""

    def delivered(self, seconds: float) -> None:
        """Observe that events were sent to a client's stream; `seconds` is the age of the oldest of them."""

    def loop_delayed(self, seconds: float) -> None:
        """Observe how much later than scheduled the event loop ran a callback."""
