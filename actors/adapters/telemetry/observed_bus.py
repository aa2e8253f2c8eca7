"""An event bus that reports to telemetry when runs begin and end, which it derives from the published events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, ToolCancelled, ToolError, tool_uses
from actors.core.notifications import (
    CallStatus,
    ClientToolCall,
    MessageAdded,
    RunStop,
    StateChanged,
    ToolTreeReaped,
)
from actors.ports import Clock, EventBus
from actors.ports.telemetry import CLIENT, RunEnd, RunStart, Telemetry, ToolEnd, ToolStart, counted_as

if TYPE_CHECKING:
    from collections.abc import Collection

    from actors.core.content import Message
    from actors.core.notifications import Durable, TextDelta
    from actors.ports import ConversationRecord, StoredEvent

CANCEL = "CancelConversationCommand"


class _Open:
    """The run (the work on one user message) that is under way in a conversation."""

    __slots__ = ("began", "begun", "calls", "cancelled_at", "names", "run")

    def __init__(self, run: RunStart, began: float) -> None:
        self.run = run
        self.began = began
        self.cancelled_at: float | None = None
        """When the first cancel of the run was requested, in monotonic seconds; None if there was none."""
        self.calls: dict[str, float] = {}
        """Since when each tool call has been waiting for a client, in monotonic seconds, by the id of the call."""
        self.names: dict[str, str] = {}
        """The names of the tools in the model's latest answer, by the ids of the tool calls."""
        self.begun: set[str] = set()
        """The ids of the tool calls that were started, or passed to a client."""


class ObservedBus(EventBus, Telemetry):
    """Wraps an EventBus, derives the start and end of runs from the published events, and reports them to telemetry.

    It also observes commands, because a command may be the reason why a run begins or stops. The events and commands of
    one conversation must not be passed to it concurrently.
    """

    on = True

    def __init__(self, bus: EventBus, telemetry: Telemetry, clock: Clock, tools: Collection[str] = ()) -> None:
        """`tools` are the names of the server's own tools."""
        self._bus = bus
        self._tools = frozenset(tools)
        self._telemetry = telemetry
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._trace_parents: dict[str, str] = {}
        """The W3C `traceparent` headers of the commands that are being handled, by conversation."""

    @property
    def open_runs(self) -> int:
        """The number of runs that are under way."""
        return len(self._open)

    def command_taken(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        if trace_parent:
            self._trace_parents[conversation] = trace_parent
        open_ = self._open.get(conversation)
        if kind == CANCEL and open_ is not None and open_.cancelled_at is None:
            open_.cancelled_at = asked_at

    def tool_began(self, call: ToolStart) -> None:
        if (open_ := self._open.get(call.conversation)) is not None:
            open_.begun.add(call.call)

    def command_done(self, conversation: str) -> None:
        self._trace_parents.pop(conversation, None)

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        self._bus.publish(conversation_id, events, record)
        for event in events:
            self._observe(conversation_id, event.notification, record)

    def text_delta(self, conversation_id: str, delta: TextDelta) -> None:
        self._bus.text_delta(conversation_id, delta)

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        self._bus.tool_output(conversation_id, tool_use_id, text)

    def created(self, record: ConversationRecord) -> None:
        self._bus.created(record)

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        self._bus.deleted(conversation_id, record)
        self._end(conversation_id, "deleted", "")

    def _observe(self, conversation_id: str, found: Durable, record: ConversationRecord | None) -> None:
        match found:
            case StateChanged(state=state) if state.run and record is not None:
                open_ = self._open.get(conversation_id)
                if open_ is None or open_.run.run != state.run:
                    self._begin(record, state.run)
            case RunStop(reason=reason, detail=detail, run=run):
                open_ = self._open.get(conversation_id)
                if open_ is not None and open_.run.run == run:  # the event may be about a run that never began
                    self._end(conversation_id, reason.value, detail)
            case ToolTreeReaped(milliseconds=milliseconds, leaked=leaked):
                self._telemetry.reaped(conversation_id, milliseconds / 1000, leaked)
            case MessageAdded(message=message) if record is not None:
                self._look_for_calls(record, message)
            case ClientToolCall():
                self._client_call(conversation_id, found)
            case _:
                pass

    def _begin(self, record: ConversationRecord, run_id: str) -> None:
        run = RunStart(
            record.id,
            run_id,
            record.model,
            record.principal,
            "" if record.user_initiated else record.parent_conversation_id or "",
            self._trace_parents.get(record.id, ""),
        )
        self._open[record.id] = _Open(run, self._clock.monotonic())
        self._telemetry.run_began(run)

    def _end(self, conversation_id: str, outcome: str, detail: str) -> None:
        open_ = self._open.pop(conversation_id, None)
        if open_ is None:
            return
        now = self._clock.monotonic()
        self._telemetry.run_ended(open_.run, RunEnd(outcome, detail, now - open_.began))
        if open_.cancelled_at is not None:
            self._telemetry.cancelled(conversation_id, now - open_.cancelled_at)

    def _look_for_calls(self, record: ConversationRecord, message: Message) -> None:
        """Remember the tool calls in a model's answer, and report tool calls that ended without being carried out."""
        open_ = self._open.get(record.id)
        if open_ is None:
            return
        if message.type is MessageType.AGENT:
            open_.names = {call.id: call.name for call in tool_uses(message.content)}
        for block in message.content:
            if isinstance(block, ToolError | ToolCancelled) and block.tool_use_id not in open_.begun:
                name = open_.names.get(block.tool_use_id, "")
                clients = [tool.name for tool in record.profile.client_tools]
                call = ToolStart(record.id, block.tool_use_id, name, counted_as(name, self._tools, clients))
                self._telemetry.call_left_out(call, block.outcome.value)

    def _client_call(self, conversation_id: str, found: ClientToolCall) -> None:
        open_ = self._open.get(conversation_id)
        if open_ is None:
            return
        call = ToolStart(conversation_id, found.call.id, found.call.name, CLIENT)
        if found.status is CallStatus.PENDING:
            open_.calls[call.call] = self._clock.monotonic()
            self._telemetry.tool_began(call)
        elif (began := open_.calls.pop(call.call, None)) is not None:
            end = ToolEnd(found.status.value, self._clock.monotonic() - began)
            self._telemetry.tool_ended(call, end, {}, "")
