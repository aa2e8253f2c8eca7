"""What the server tells about its work, for logs, metrics and traces.

`Telemetry` is the null object: it does nothing and is `on` for nobody. What observes work derives from it. Facts never
hold contents (what people, models and tools said); those that may are separate arguments, which only traces use, and
only where the operator has switched them on by name. Any thread; no method blocks or raises.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from actors.core.content import Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from actors.ports.models import ModelAnswer, ModelRequest

trace_parent: ContextVar[str] = ContextVar("trace_parent", default="")
"""The W3C `traceparent` that came with the call being served; "": none."""


MCP, CLIENT, OTHER = "mcp", "client", "other"
"""What tools of MCP servers and of clients are counted as, and those that do not exist."""
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
CONTENTS = (INPUT, OUTPUT, ARGUMENTS, RESULT)
"""The attributes of spans that hold contents."""


class RunStart(Struct, frozen=True, gc=False):
    """A run that begins."""

    conversation: str
    run: str
    model: str
    principal: str = ""
    parent: str = ""
    """For a sub-agent: the conversation that started it."""
    trace_parent: str = ""
    """That of the client's message, as W3C has it."""


class RunEnd(Struct, frozen=True, gc=False):
    """How a run ended."""

    outcome: str
    """A StopReason, or "deleted"."""
    detail: str
    seconds: float


class AttemptStart(Struct, frozen=True, gc=False):
    """One attempt of a model request."""

    conversation: str
    request: str
    attempt: int
    model: str
    provider: str
    purpose: str
    """A Purpose."""


class AttemptEnd(Struct, frozen=True, gc=False):
    """How an attempt ended."""

    outcome: str
    """"ok", "refusal", "truncated", "cancelled", or an ErrorKind."""
    seconds: float
    first_chunk_seconds: float | None = None
    """Seconds until the answer began; None if it never did."""
    usage: Usage | None = None


class ToolStart(Struct, frozen=True, gc=False):
    """A tool call that is carried out."""

    conversation: str
    call: str
    tool: str
    group: str = ""
    """What it is counted as: its own name for a tool of ours, "mcp" or "client"."""


def counted_as(tool: str, ours: Collection[str], of_clients: Collection[str]) -> str:
    """Return what the calls of a tool are counted as: models can make up any name."""
    if tool in ours:
        return tool
    if tool in of_clients:
        return CLIENT
    return MCP if tool.startswith("mcp__") else OTHER


class ToolEnd(Struct, frozen=True, gc=False):
    """How a tool call ended."""

    outcome: str
    """"ok", "error", "failed" (the infrastructure, not the tool), "cancelled", "sub_agents"; for a client's tool
    "answered", "timed_out" or "withdrawn"."""
    seconds: float


class Rpc(Struct, frozen=True, gc=False):
    """A call of a client that has ended."""

    method: str
    conversation: str
    """The id; "" if it is about none, or was refused before it was found."""
    principal: str
    peer: str
    request_id: str
    outcome: str
    """The name of the status, such as OK."""
    seconds: float
    stream: bool
    command: bool
    """Whether the method changes something."""


class Telemetry:
    """Observes nothing. Subclasses override what they are interested in."""

    on = False
    """Whether anything is observed; callers that would have to collect facts ask first."""
    measures = False
    """Whether frequent times are of interest: `delivered`."""

    def close(self) -> None:
        """Pass on what was collected, and end; idempotent. May block for some seconds."""

    def rpc_ended(self, rpc: Rpc) -> None:
        """Observe the end of a call, or of a stream."""

    def command_taken(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        """Observe that a conversation begins to handle a command of this class, asked at monotonic seconds."""

    def command_done(self, conversation: str) -> None:
        """Observe that the command was handled."""

    def run_began(self, run: RunStart) -> None:
        """Observe the beginning of a run."""

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        """Observe the end of a run."""

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        """Observe that this start has ended a run of an earlier process, whose beginning nobody here has seen."""

    def attempt_began(self, attempt: AttemptStart) -> None:
        """Observe the beginning of a model request's attempt."""

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        """Observe its end. `request` and `answer` hold contents."""

    def tool_began(self, call: ToolStart) -> None:
        """Observe the beginning of a tool call."""

    def trace_parent_of(self, call: ToolStart) -> str:
        """Return the `traceparent` for what a running call asks others to do; "" if it is not traced."""
        return ""

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        """Observe its end. `arguments` and `result` are contents."""

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        """Observe that a call got its result without being carried out by this process; `outcome` is a ToolOutcome."""

    def cancelled(self, conversation: str, seconds: float) -> None:
        """Observe that a run has stopped, so long after it was asked to."""

    def reaped(self, conversation: str, seconds: float, leaked: bool) -> None:
        """Observe that all processes of a killed call have ended, or could not be confirmed dead."""

    def quota_exceeded(self, quota: str) -> None:
        """Observe that something was refused or stopped because this quota is used up."""

    def taken_over(self, conversations: int) -> None:
        """Observe that this node took over so many interrupted conversations from one that has ended."""

    def forwarded(self, outcome: str) -> None:
        """Observe the end of a call, or of a stream, that was passed to the node that owns its conversation.

        `outcome`: "answered", "refused" (the owner's answer is a status other than OK), "moved" (that node does not own
        it any more), "lost" (there was no answer), "timed_out", or "ended" by the client or a stop.
        """

    def written(self, changes: int, seconds: float) -> None:
        """Observe a transaction of the store, with as many changes (the store's thread)."""

    def delivered(self, seconds: float) -> None:
        """Observe that a watcher was sent events, the oldest of which is so old."""

    def loop_delayed(self, seconds: float) -> None:
        """Observe how much later than asked the event loop ran something."""
