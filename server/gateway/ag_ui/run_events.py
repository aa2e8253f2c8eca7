"""Converts the events of a conversation to those of one AG-UI run. Pure.

Clients end a stream whose events are out of order, so this module keeps track of what is open: text, reasoning, a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ag_ui import core
from bedrock import v1

from server.gateway.ag_ui import thread_messages as messages
from server.gateway.json_responses import as_json

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent, RunAgentInput

# The key of the server's part in a thread's state. All other keys are the application's.
STATE = "bedrock"
# The JSON Schema of the answer to an approval.
APPROVAL = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 1024},
        "rule": {"type": "object"},
    },
    "required": ["approved"],
}


class RunEvents:
    """Converts the events of one run. Call `begin`, then `of` for each event, and `end_of_batch` after each batch.

    `run` is the request cycle, "" for none. The front end already has the calls `known` and the messages `seen`.
    """

    def __init__(self, given: RunAgentInput, run: str, known: Iterable[str], seen: Iterable[str]) -> None:
        self._input = given
        self.run = run
        self._known, self._seen = set(known), set(seen)
        self._calls: dict[str, tuple[v1.ToolCall, str]] = {}
        """Tool calls not yet sent to the front end, each with its message."""
        self._streamed: dict[str, list[str]] = {}
        """For each text that is not stored yet, the pieces that were already sent, by message id."""
        self._open: list[BaseEvent] = []
        """The events that will end the open text or reasoning, innermost first."""
        self._step = ""
        self._state = v1.ConversationState()
        self._caught_up = False
        self._conversation = v1.Conversation()
        self._queue: dict[str, v1.Message] = {}
        self._told: Any = None
        self.stale = False
        """Whether the front end shows text that was discarded, and therefore needs all messages again."""
        self._stop: v1.Event.RunStopped | None = None
        self.over = False

    # --- what happens -------------------------------------------------------------------------------------------------

    def remember(self, history: Iterable[v1.Message]) -> None:
        """Record the calls in messages that are sent to the front end as a whole."""
        for message in history:
            self._seen.add(messages.id_of(message))
            for call in messages.calls_in(message):
                self._calls[call.tool_use_id] = (call, messages.id_of(message))
            for block in message.content:
                self._calls.pop(block.tool_result.tool_use_id, None)

    def of(self, event: v1.Event) -> Iterator[BaseEvent]:
        """Yield the AG-UI events for an event of the conversation."""
        if self._stop and not event.HasField("state_changed"):
            return  # the event belongs to the next run
        match event.WhichOneof("event"):
            case "snapshot":
                yield from self._began(event.snapshot)
            case "caught_up":
                self._caught_up = True
            case "text_delta":
                yield from self._delta(event.text_delta)
            case "message_added":
                yield from self._added(event.message_added)
            case "stream_discarded":
                yield from self._discarded(event.stream_discarded)
            case "state_changed":
                self._state = event.state_changed.state
                yield from self._stepped()
            case "conversation_updated":
                self._conversation = event.conversation_updated
            case "context_warning":
                self._conversation.context_usage.CopyFrom(event.context_warning)
            case "queue_changed":
                message = event.queue_changed.message
                self._queue.pop(message.name, None)
                if event.queue_changed.fate == v1.QueuedMessage.FATE_QUEUED:
                    self._queue[message.name] = message
            case "run_stopped" if event.run_stopped.request_cycle == self.run:
                self._stop = event.run_stopped
            case "deleted":
                yield from self._failed("the conversation was deleted", "deleted")
            case _:
                pass

    def _began(self, snapshot: v1.Event.Snapshot) -> Iterator[BaseEvent]:
        self._conversation, self._state = snapshot.conversation, snapshot.conversation.state
        self._queue = {each.message.name: each.message for each in snapshot.queue}
        self.run = self.run or self._state.run
        for delta in snapshot.partial:
            yield from self._delta(delta)
        yield from self._stepped()

    def _delta(self, delta: v1.Event.TextDelta) -> Iterator[BaseEvent]:
        message_id = messages.slot_id(delta.llm_request_id, delta.attempt)
        if message_id in self._seen:
            return
        where = messages.reasoning_id(message_id) if delta.reasoning else message_id
        sent = sum(map(len, self._streamed.get(where, ())))
        yield from self._write(where, delta.text[max(0, sent - delta.offset) :], reasoning=delta.reasoning)

    def _write(self, where: str, text: str, *, reasoning: bool) -> Iterator[BaseEvent]:
        if not text:
            return
        kind = core.ReasoningMessageEndEvent if reasoning else core.TextMessageEndEvent
        if not (self._open and isinstance(self._open[0], kind) and self._open[0].message_id == where):
            yield from self._close()
            yield from self._opening(where, reasoning=reasoning)
        self._streamed.setdefault(where, []).append(text)
        if reasoning:
            yield core.ReasoningMessageContentEvent(message_id=where, delta=text)
        else:
            yield core.TextMessageContentEvent(message_id=where, delta=text)

    def _opening(self, where: str, *, reasoning: bool) -> Iterator[BaseEvent]:
        if reasoning:
            self._open = [core.ReasoningMessageEndEvent(message_id=where), core.ReasoningEndEvent(message_id=where)]
            yield core.ReasoningStartEvent(message_id=where)
            yield core.ReasoningMessageStartEvent(message_id=where)
        else:
            self._open = [core.TextMessageEndEvent(message_id=where)]
            yield core.TextMessageStartEvent(message_id=where, role="assistant")

    def _close(self) -> Iterator[BaseEvent]:
        opened, self._open = self._open, []
        yield from opened

    def _added(self, message: v1.Message) -> Iterator[BaseEvent]:
        message_id = messages.id_of(message)
        if message_id in self._seen:
            return
        self._seen.add(message_id)
        match message.role:
            case v1.ROLE_AGENT:
                yield from self._answered(message, message_id)
            case v1.ROLE_TOOL:
                for block in message.content:
                    yield from self._result(message, block.tool_result)
            case v1.ROLE_USER:  # a steer, or another client's message
                yield from self._close()
                yield core.TextMessageStartEvent(message_id=message_id, role="user")
                yield core.TextMessageContentEvent(
                    message_id=message_id, delta=messages.without_context(messages.text_of(message))
                )
                yield core.TextMessageEndEvent(message_id=message_id)
            case _:
                pass

    def _answered(self, message: v1.Message, message_id: str) -> Iterator[BaseEvent]:
        for reasoning in (True, False):
            where = messages.reasoning_id(message_id) if reasoning else message_id
            text, sent = messages.text_of(message, reasoning=reasoning), "".join(self._streamed.pop(where, ()))
            if text.startswith(sent):
                yield from self._write(where, text[len(sent) :], reasoning=reasoning)
            else:
                self.stale = True
        self._streamed.clear()
        yield from self._close()
        for call in messages.calls_in(message):
            self._calls[call.tool_use_id] = (call, message_id)

    def _result(self, message: v1.Message, result: v1.ToolResult) -> Iterator[BaseEvent]:
        yield from self._called(result.tool_use_id)
        outcome = messages.outcome_of(result)
        yield core.ToolCallResultEvent(
            message_id=messages.result_id(message, result),
            tool_call_id=result.tool_use_id,
            content=messages.content_of(result),
            role="tool",
            metadata={"outcome": outcome} if outcome else None,
        )

    def _called(self, tool_use_id: str) -> Iterator[BaseEvent]:
        call, parent = self._calls.pop(tool_use_id, (None, ""))
        if call is None or tool_use_id in self._known:
            return
        self._known.add(tool_use_id)
        yield core.ToolCallStartEvent(tool_call_id=tool_use_id, tool_call_name=call.tool, parent_message_id=parent)
        yield core.ToolCallArgsEvent(tool_call_id=tool_use_id, delta=messages.arguments_of(call))
        yield core.ToolCallEndEvent(tool_call_id=tool_use_id)

    def _discarded(self, discarded: v1.Event.StreamDiscarded) -> Iterator[BaseEvent]:
        yield from self._close()
        message_id = messages.slot_id(discarded.llm_request_id, discarded.attempt)
        self.stale = bool(self._streamed) or self.stale
        self._streamed.clear()
        self._seen.add(message_id)

    def _stepped(self) -> Iterator[BaseEvent]:
        kind = v1.StateKind.Name(self._state.kind).removeprefix("STATE_KIND_").lower() if self._state.busy else ""
        if kind != self._step:
            if self._step:
                yield core.StepFinishedEvent(step_name=self._step)
            if kind:
                yield core.StepStartedEvent(step_name=kind)
            self._step = kind
        if self._state.HasField("tool_executing"):
            yield from self._called(self._state.tool_executing.current.tool_use_id)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_of_batch(self) -> Iterator[BaseEvent]:
        """Yield the results of a batch: a change of AG-UI's state, and the end of a run that has stopped or waits."""
        if self._stop:
            yield from self._stopped(self._stop)
        if self.over or not self._caught_up:
            return
        yield from self._state_snapshot()
        executing = self._state.tool_executing
        if pending := self._state.awaiting_approval.pending:
            interrupts = list(map(_approval, pending))
            for each in interrupts:
                yield from self._called(each.tool_call_id or "")
            yield from self._finished(core.RunFinishedInterruptOutcome(interrupts=interrupts))
        elif executing.questions:
            asked = [_question(each) for each in executing.questions]
            yield from self._finished(core.RunFinishedInterruptOutcome(interrupts=asked))
        elif executing.HasField("deadline"):
            waiting = [executing.current.tool_use_id]
            yield from self._finished(core.RunFinishedSuccessOutcome(pending_tool_call_ids=waiting))
        elif not self.run:
            yield from self._finished(core.RunFinishedSuccessOutcome())

    @property
    def missed(self) -> bool:
        """Whether the run ended before the first event, so that no event reports it."""
        return self._caught_up and not self.over and bool(self.run) and self._state.run != self.run

    def missed_end(self, cycle: v1.RequestCycle) -> Iterator[BaseEvent]:
        output = cycle.output if cycle.HasField("output") else None
        stop = v1.Event.RunStopped(reason=cycle.stop_reason, detail=cycle.stop_detail, output=output)
        yield from self._stopped(stop)

    def _stopped(self, stop: v1.Event.RunStopped) -> Iterator[BaseEvent]:
        if stop.reason == v1.STOP_REASON_COMPLETED:
            result = as_json(stop.output) if stop.HasField("output") else None
            yield from self._finished(core.RunFinishedSuccessOutcome(), result)
        elif stop.reason == v1.STOP_REASON_INTERRUPTED and stop.detail != "restart":
            yield from self._finished(core.RunFinishedCancelledOutcome())
        else:
            why = "the server was restarted during the run" if stop.detail == "restart" else stop.detail
            yield from self._failed(stop.error.message or why, stop.detail)

    def _finished(self, outcome: Any, result: Any = None) -> Iterator[BaseEvent]:
        yield from self._close()
        if self._step:
            yield core.StepFinishedEvent(step_name=self._step)
        yield from self._state_snapshot()
        self.over = True
        thread, run = self._input.thread_id, self._input.run_id
        yield core.RunFinishedEvent(thread_id=thread, run_id=run, outcome=outcome, result=result)

    def _failed(self, text: str, code: str) -> Iterator[BaseEvent]:
        self.over = True
        yield core.RunErrorEvent(message=text, code=code or None)

    def _state_snapshot(self) -> Iterator[BaseEvent]:
        given = self._input.state if isinstance(self._input.state, dict) else {}
        conversation, usage = self._conversation, self._conversation.context_usage
        told = {
            "conversation": conversation.name,
            "mode": v1.Mode.Name(conversation.mode),
            "contextUsage": {
                "usedTokens": usage.used_tokens,
                "usableWindowTokens": usage.usable_window_tokens,
                "warning": usage.warning,
            },
            "queue": [as_json(each) for each in self._queue.values()],
        }
        if told != self._told:
            self._told = told
            yield core.StateSnapshotEvent(snapshot={**given, STATE: told})


def _approval(pending: v1.PendingApproval) -> core.Interrupt:
    upgrade = pending.mode_upgrade if pending.HasField("mode_upgrade") else None
    call = upgrade.tool_use_id if upgrade else pending.tool_call.tool_use_id
    text = f"Change to {v1.Mode.Name(upgrade.mode)}? {upgrade.reason}" if upgrade else f"Run {pending.tool_call.tool}?"
    return core.Interrupt(
        id=pending.name,
        reason="confirmation" if upgrade else "tool_call",
        message=text,
        tool_call_id=call,
        response_schema=APPROVAL,
        metadata={STATE: as_json(pending)},
    )


def _question(question: v1.Question) -> core.Interrupt:
    return core.Interrupt(
        id=question.name,
        reason="input_required",
        message=question.message,
        tool_call_id=question.tool_use_id,
        response_schema=as_json(question.requested_schema) if question.HasField("requested_schema") else None,
        expires_at=question.deadline.ToJsonString(),
        metadata={STATE: as_json(question)},
    )
