"""Checks a conversation's log: whether its events are possible, and lead to the conversation's current state.

An `InvariantChecker` receives the durable notifications in order and yields its findings as human-readable text: a call
without a result, a run that ended twice, a question without a decision. The checker shares no code with the rules of
the state machine, so it finds bugs of the machine as well as damage on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actors.core import notifications, states
from actors.core.content import Message, MessageType
from actors.core.context import ConvContext, Limits, Mode
from actors.core.history import ChainCheck
from actors.core.summary import ContextState, live_run_id, project, stray_edge, summarize

# Identifies the streamed text of one attempt: the request id and the attempt number.
Slot = tuple[str, int]


class InvariantChecker:
    """Checks the log of one conversation. Remembers the ids of runs and calls, and which of them are open."""

    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._mid_log = False
        self._chain = ChainCheck()
        self._sequence = 0
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._questions: set[str] = set()
        self._awaited: set[str] = set()
        self._asked: set[int] = set()
        self._queue: set[str] = set()
        self._slot: Slot | None = None
        self._place: ContextState | None = ContextState.IDLE
        self._last_change: notifications.StateChanged | None = None
        self._mode: Mode | None = None
        self._usage: notifications.UsageChanged | None = None

    def begin_mid_log(self) -> None:
        """Accept from now on that events refer to missing earlier ones: the beginning of the log was deleted."""
        self._mid_log, self._place = True, None

    def preload(self, message: Message) -> Iterator[str]:
        """Check a message that is older than the first event of a pruned log. Call this in message order."""
        yield from self._message(message)

    def check(self, event: notifications.Durable) -> Iterator[str]:
        """Check the next notification; yield a description of each problem."""
        match event:
            case notifications.MessageAdded(message=message):
                yield from self._message(message)
            case notifications.StateChanged():
                yield from self._state(event)
            case notifications.StreamDiscarded(request_id=request_id, attempt=attempt):
                yield from self._discarded((request_id, attempt))
            case notifications.RunStop(run=run):
                yield from self._stop(run)
            case notifications.ApprovalRequested() | notifications.ApprovalResolved():
                yield from self._question(event)
            case notifications.ClientToolCall():
                yield from self._client_call(event)
            case notifications.QuestionChanged():
                yield from self._tool_question(event)
            case notifications.QueueChanged():
                yield from self._waiting(event)
            case notifications.ModeChanged(mode=mode):
                self._mode = mode
            case notifications.UsageChanged():
                self._usage = event
            case _:
                pass

    # --- checks of one notification each

    def _message(self, message: Message) -> Iterator[str]:
        yield from self._chain.feed(message)
        self._sequence = message.sequence
        if message.type is MessageType.USER and message.delivery != "steer":
            if message.run in self._started:
                yield f"message {message.sequence}: run {message.run} began twice"
            self._started.add(message.run)
        if self._slot == (message.request_id, message.attempt):
            self._slot = None

    def _state(self, event: notifications.StateChanged) -> Iterator[str]:
        path = event.fsm_path
        stray = stray_edge(path, self._place) if self._place else stray_edge(path[1:], path[0]) if path else None
        if stray:
            yield f"the state cannot change from {stray[0]} to {stray[1]}"
        self._place = path[-1] if path else self._place
        self._last_change = event
        slot = (event.state.request_id, event.state.attempt) if event.state.phase == states.LlmPhase.STREAMING else None
        if self._slot not in (None, slot):
            yield _lost(self._slot)
        self._slot = slot

    def _discarded(self, slot: Slot) -> Iterator[str]:
        if slot != self._slot and not self._mid_log:
            yield f"text of {_named(slot)} was discarded, but there was none"
        self._slot = None

    def _stop(self, run: str) -> Iterator[str]:
        if run in self._ended:
            yield f"run {run} ended twice"
        elif run not in self._started and not self._mid_log:
            yield f"run {run} ended but had not begun"
        self._ended.add(run)

    def _question(self, event: notifications.ApprovalRequested | notifications.ApprovalResolved) -> Iterator[str]:
        if isinstance(event, notifications.ApprovalRequested):
            if event.call.id in self._questions:
                yield f"approval of {event.call.id} was requested twice"
            self._questions.add(event.call.id)
            return
        if event.tool_use_id not in self._questions and not self._mid_log:
            yield f"approval of {event.tool_use_id} was resolved, but had not been requested"
        self._questions.discard(event.tool_use_id)

    def _client_call(self, event: notifications.ClientToolCall) -> Iterator[str]:
        call_id = event.call.id
        if event.status is notifications.CallStatus.PENDING:
            if call_id in self._awaited:
                yield f"a client was asked twice for the result of {call_id}"
            self._awaited.add(call_id)
            return
        if call_id not in self._awaited and not self._mid_log:
            yield f"the wait for the result of {call_id} ended ({event.status.value}), but had not begun"
        self._awaited.discard(call_id)

    def _tool_question(self, event: notifications.QuestionChanged) -> Iterator[str]:
        number = event.question.number
        if event.status is states.QuestionStatus.PENDING:
            if number in self._asked:
                yield f"question {number} was asked twice"
            self._asked.add(number)
            return
        if number not in self._asked and not self._mid_log:
            yield f"question {number} ended ({event.status.value}), but had not been asked"
        self._asked.discard(number)

    def _waiting(self, event: notifications.QueueChanged) -> Iterator[str]:
        message_id = event.input.message_id
        if event.fate is notifications.Fate.QUEUED:
            if message_id in self._queue:
                yield f"message {message_id} was queued twice"
            self._queue.add(message_id)
            return
        if message_id not in self._queue and not self._mid_log:
            yield f"message {message_id} was {event.fate.value} from a queue that it was not in"
        self._queue.discard(message_id)

    # --- checks at the end of the log

    def check_end(self, state: states.State, mode: Mode) -> Iterator[str]:
        """Compare what is open at the end of the log with the stored state and mode; yield each difference."""
        yield from self._open_runs(state)
        yield from _compare("tool calls without a result", self._chain.open_calls, states.open_calls(state))
        asked = state.undecided if isinstance(state, states.AwaitingToolApproval) else ()
        yield from self._compare_stored("unanswered questions about the calls", self._questions, asked)
        awaited = (state.current_tool_id,) if isinstance(state, states.ToolExecuting) and state.deadline else ()
        yield from self._compare_stored("calls waiting for a client", self._awaited, awaited)
        asks = (str(question.number) for question in state.questions) if isinstance(state, states.ToolExecuting) else ()
        yield from self._compare_stored("questions of the running call", {str(number) for number in self._asked}, asks)
        ledger = state.ledger
        queued = [one.message_id for one in (*ledger.steers, *ledger.follows)]
        yield from self._compare_stored("waiting messages", self._queue, queued)
        yield from self._shows(state)
        if ledger.seq != self._sequence:
            yield f"there are {self._sequence} messages, but the state counts {ledger.seq}"
        if self._mode not in (None, mode):
            yield f"the mode is {mode.value}, but it was set to {self._mode}"
        usage = self._usage
        if usage and (usage.used_tokens, usage.total) != (ledger.used_tokens, ledger.total_usage):
            yield "the tokens that the state counts differ from those last reported"

    def _open_runs(self, state: states.State) -> Iterator[str]:
        live = live_run_id(self._conversation_id, state.ledger)
        if live and live in self._ended:
            yield f"run {live} is marked as live though it has ended"
        if live and live not in self._started:
            yield f"run {live} is marked as live but has no root message"
        if not self._mid_log:
            yield from (f"run {run} has not ended" for run in sorted(self._started - self._ended - {live}))

    def _compare_stored(self, what: str, logged: set[str], stored: Iterable[str]) -> Iterator[str]:
        """Yield the differences. If the beginning of the log is missing, ids that only the state has do not count."""
        wanted = set(stored)
        yield from _compare(what, sorted(logged), sorted(wanted & logged if self._mid_log else wanted))

    def _shows(self, state: states.State) -> Iterator[str]:
        streams = (
            isinstance(state, states.LlmRequesting | states.AwaitingContinuation)
            and state.phase is states.LlmPhase.STREAMING
        )
        if self._slot and not streams:
            yield _lost(self._slot)
        if self._place not in (None, project(state)):
            yield f"the log ends in {self._place}, but the conversation is in {project(state)}"
        if self._last_change is not None:
            limits = Limits(max_attempts=self._last_change.state.max_attempts)
            context = ConvContext(self._conversation_id, working_dir="", model_id="", usable_window=0, limits=limits)
            if summarize(state, context) != self._last_change.state:
                yield "the state differs from the one last reported"


def _compare(what: str, logged: Iterable[str], stored: Iterable[str]) -> Iterator[str]:
    there, expected = tuple(logged), tuple(stored)
    if there != expected:
        yield f"{what}: the log leaves {_listed(there)}, the state has {_listed(expected)}"


def _listed(ids: tuple[str, ...]) -> str:
    return ", ".join(ids) or "none"


def _named(slot: Slot) -> str:
    return f"request {slot[0]}, attempt {slot[1]}"


def _lost(slot: Slot | None) -> str:
    assert slot is not None  # noqa: S101 -- both callers have a slot
    return f"the text of {_named(slot)} was neither kept nor discarded"
