"""The machine's laws, checked at every step of whatever drives it.

`Laws.step` looks at one transition, `Laws.chain` at one commit, `Laws.end` at a whole walk. Each law names its
invariant. What a log shows by itself is left to `InvariantChecker`, which is held to what it must find by
test_verify_and_replay.py: the chain, the walk through the diagram, the ends of runs, questions, the queue, and whether
what clients see of a state is its summary. What a law must remember of the past is kept here and nowhere else.
"""

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from actors.core import content, states
from actors.core.context import ConvContext, ToolTraits
from actors.core.effects import (
    AwaitToolResult,
    Effect,
    ExecuteTool,
    NotifyClient,
    NotifyParent,
    PersistMessage,
    PersistMode,
    RequestContinuation,
    RequestLlm,
    SpawnSubAgent,
)
from actors.core.errors import ErrorKind
from actors.core.events import (
    AnswerQuestion,
    Event,
    InternalFault,
    LlmResponse,
    Restart,
    SetMode,
    StartSubAgent,
    UsageReported,
    UserCancel,
    UserMessage,
)
from actors.core.history import ChainCheck, Turn, provider_view, summary_view
from actors.core.invariants import InvariantChecker
from actors.core.notifications import (
    ApprovalRequested,
    CallStatus,
    ClientToolCall,
    Durable,
    Fate,
    MessageAdded,
    Notification,
    QuestionChanged,
    QueueChanged,
    RunStop,
    StateChanged,
    StreamDiscarded,
    TextDelta,
)
from actors.core.request_cycles import CycleDelivery, Projector, RequestCycle, events_of
from actors.core.steps.notices import KINDS
from actors.core.summary import run_id, summarize
from actors.core.transition import Step, context_after, transition
from actors.ports import StoppedRun
from tests.property.step_laws import IN_FLIGHT, check, check_transition, names, notifications

T = TypeVar("T")

UNSAID = "~"
"""Stands in every streamed text and in no other, so that a leak shows (I30)."""


def _row(view: Iterable[Turn]) -> list[tuple[str, Any]]:
    return [(turn.role, block) for turn in view for block in turn.content]


def independent(thing: T) -> T:
    """A copy that what happens to the original does not change; what is in its collections is shared."""
    twin = copy.copy(thing)
    for name, value in vars(thing).items():
        if isinstance(value, (list, dict, set)):
            setattr(twin, name, value.copy())
        elif isinstance(value, (ChainCheck, InvariantChecker, Laws)):
            setattr(twin, name, independent(value))
    return twin


class Laws:
    """The laws of one conversation's life."""

    def __init__(self, context: ConvContext) -> None:
        self.conversation = context.conversation_id
        self.sub_agent = context.is_sub_agent
        self.history: list[content.Message] = []
        self.told: list[Notification] = []
        self.chain_check = ChainCheck()
        self.audit = InvariantChecker(context.conversation_id)
        self.slots: dict[tuple[str, int], str] = {}
        self.used_ids: set[str] = set()
        self.models: dict[str, str] = {}
        self.last_attempt: dict[str, int] = {}
        self.roots: dict[str, str] = {}
        self.stopped: dict[str, RunStop] = {}
        self.accepted: set[str] = set()
        self.fates: dict[str, str] = {}
        self.follow_ups: list[str] = []
        """Queued messages that wait for a run of their own, in their order."""
        self.fan_in: tuple[str, ...] = ()
        self.view: list[tuple[str, Any]] = []
        self.view_answered = True
        self.mode_changed = False
        self.requests = 0
        self.turns = 0
        """How many the task of a sub-agent allows; 0 if it says nothing."""
        self.nudges = 0
        self.last_text = ""
        self.parent_told = 0
        self.awaited: ClientToolCall | None = None
        """The call whose result a client was asked for."""
        self.asked: dict[int, QuestionChanged] = {}
        """The questions of tools that wait for a person."""
        self.cut_off = False
        """A run was cancelled or cut off by a restart, and the agent has not been told."""

    def take_over(self, history: Sequence[content.Message], stops: Sequence[StoppedRun], ledger: states.Ledger) -> None:
        """Begin as a fork, with the history of another life."""
        self.audit.begin_mid_log()
        for message in history:
            found = [*self.chain_check.feed(message), *self.audit.preload(message)]
            check("I23 a fork begins with a valid chain", not found, found)
            self._use(f"message {message.id}")
            self.history.append(message)
            if message.type is content.MessageType.USER:
                if message.delivery != "steer":
                    self.roots[message.run] = message.id
                self._fate(message.id, message.delivery)
                self.accepted.add(message.id)
            if message.type is content.MessageType.AGENT:
                self.last_attempt[message.request_id] = message.attempt
                self.view = _row(provider_view(self.history, message.through_sequence))
        ends = {stop.last_sequence: [s.stop for s in stops if s.last_sequence == stop.last_sequence] for stop in stops}
        for message in history:
            self.told += [MessageAdded(message), *ends.get(message.sequence, ())]
        self.stopped = {stop.stop.run: stop.stop for stop in stops}
        waiting = {notice.kind for notice in ledger.pending_notices}
        self.mode_changed = any(message.kind in KINDS.values() for message in history) or bool(
            {*KINDS.values()} & waiting
        )
        self.cut_off = content.SystemKind.INTERRUPTED in waiting

    # --- one transition

    def step(self, before: states.State, step: Step) -> None:
        """Check one transition and remember what it did."""
        after, effects = step.new_state, step.effects
        check_transition(before, step.context, step.event, after, effects)
        cancels = isinstance(step.event, UserCancel) and bool(effects) and before.ledger.live
        self.cut_off = self.cut_off or (cancels and not self.sub_agent)
        if isinstance(step.event, StartSubAgent):
            self.turns = step.event.max_turns
        for effect in effects:
            self._effect(effect, step)
            self._audit(effect)
        for told in notifications(effects):
            self.told.append(told)
            self._notification(told, step)
        self._attempt(after)
        self._fan_in(after)
        self._round(after)
        if isinstance(after, (states.LlmRequesting, states.AwaitingContinuation)):
            if after.phase is states.LlmPhase.STREAMING:
                self.slots.setdefault((after.request_id, after.attempt), "open")
            check("I40 no notice waits during a request", not after.ledger.pending_notices, after)
        if isinstance(after, states.Failed):
            self._partial(after)

    def ignored(self, before: states.State, context: ConvContext, event: Event) -> None:
        """Check an event that changed nothing: it is not one of those that always count."""
        again = transition(before, context, event)
        check("I2 what is ignored changes nothing", (again.new_state, again.effects) == (before, ()), event, again)
        ledger = before.ledger
        match event:
            case UsageReported():
                check("C44 what was spent always counts", not event.usage.context_tokens, event)
            case UserCancel() if not isinstance(before, states.INACTIVE):
                live = run_id(self.conversation, ledger.run) if ledger.live else ""
                again_or_late = isinstance(before, states.Cancelling) or event.run_id not in ("", live)
                check("I7 a cancel of what runs counts", again_or_late, event, before)
            case Restart() | InternalFault():
                check("C33 an end counts while anything runs", isinstance(before, states.INACTIVE), event, before)
            case SetMode():
                runs = isinstance(before, states.ToolExecuting) and before.phase is states.ToolPhase.RUNNING
                stopped = runs and getattr(before, "current_tool_id", "") in event.stop
                check("C29 another mode counts", event.mode is context.mode and not stopped, event, context.mode)
            case StartSubAgent() | UserMessage():
                check("C37 who speaks is answered", False, event)
            case _:
                pass

    def _audit(self, effect: Effect) -> None:
        """What `bedrock verify` would say of it."""
        told: Durable | None = MessageAdded(effect.message) if isinstance(effect, PersistMessage) else None
        if isinstance(effect, NotifyClient) and not isinstance(effect.data, TextDelta):
            told = effect.data
        if told:
            check("an audit finds nothing", not (found := list(self.audit.check(told))), found)

    def _effect(self, effect: Effect, step: Step) -> None:
        match effect:
            case PersistMessage():
                self._message(effect.message, step)
            case PersistMode():
                self.mode_changed = True
            case RequestLlm():
                self._model(effect, step.context)
                self._request(effect, step)
            case RequestContinuation():
                self._model(effect, step.context)
                self._summary_request(effect)
            case ExecuteTool() | AwaitToolResult():
                self._use(f"execution {effect.execution_id}")
                check("I16 calls run in request order", effect.tool_use_id == self.chain_check.open_calls[0], effect)
                check("I41 no tool runs in the grace turn", not step.new_state.ledger.grace, effect)
            case SpawnSubAgent():
                self._use(effect.task.agent_id)
                check("C31 a deadline for every sub-agent", effect.deadline == step.event.at + effect.task.timeout_ms)
            case NotifyParent():
                self.parent_told += 1
                check("I20 once in a life", self.parent_told == 1, effect)
            case _:
                pass

    def _message(self, message: content.Message, step: Step) -> None:
        self._use(f"message {message.id}")
        check("I23 a valid chain", not (found := self.chain_check.feed(message)), found)
        self.history.append(message)
        match message.type:
            case content.MessageType.AGENT:
                self._answer(message, step)
            case content.MessageType.USER:
                self._user_message(message)
            case content.MessageType.SYSTEM if message.kind is content.SystemKind.INTERRUPTED:
                check("C48 only what was cut off is told", self.cut_off and not message.run, message)
                self.cut_off = False
            case content.MessageType.SYSTEM if message.kind is content.SystemKind.NUDGE:
                self.nudges += 1
                check("I41 nudges in a row", self.nudges <= step.context.limits.max_nudges, self.nudges)
            case _:
                pass
        if message.request_id:
            slot = (message.request_id, message.attempt)
            check("I43 a slot closes once", self.slots.get(slot, "open") == "open", slot)
            self.slots[slot] = "message"
        check("I30 no discarded text is stored", UNSAID not in content.text_of(message.content), message)

    def _answer(self, message: content.Message, step: Step) -> None:
        event = step.event
        assert isinstance(event, LlmResponse), f"I30 only an answer is stored as one: {event}"
        given = [call.id for call in content.tool_uses(event.content)]
        stored = tuple(
            replace(block, id=given.pop(0)) if isinstance(block, content.ToolUse) else block
            for block in message.content
        )
        whole = (event.content, event.request_id, event.attempt) == (stored, message.request_id, message.attempt)
        check("I30 an answer is stored whole, but for ids that are used twice", whole, event)
        self.view_answered = True
        self.last_text = content.text_of(message.content).strip() or self.last_text
        if content.tool_uses(message.content):
            self.nudges = 0

    def _user_message(self, message: content.Message) -> None:
        if message.delivery == "steer":
            check("I27 a steer belongs to a run", message.run in self.roots, message)
        else:
            check("I26 one root per run", message.run not in self.roots, message)
            check("I26 a run comes before its end", message.run not in self.stopped, message)
            self.roots[message.run] = message.id
        self._fate(message.id, message.delivery)

    def _fate(self, message_id: str, fate: str) -> None:
        check("I27 one fate each", message_id not in self.fates, message_id, fate)
        self.fates[message_id] = fate

    def _use(self, identity: str) -> None:
        check("I18 an id is used once", identity not in self.used_ids, identity)
        self.used_ids.add(identity)

    def _request(self, effect: RequestLlm, step: Step) -> None:
        self.requests += effect.attempt == 1
        if self.sub_agent:
            turns = step.new_state.ledger.max_turns or step.context.limits.max_turns
            check("I41 turns", self.requests <= turns + 1, self.requests)
            check("I41 as many turns as its task says", turns == (self.turns or turns), turns, self.turns)
        check("I24 every call is answered", not self.chain_check.open_calls, effect)
        check("C48 the model knows what was cut off", not self.cut_off, effect)
        check("C19 the request contains all that was said", effect.through_sequence == len(self.history), effect)
        self._announced(step.context)
        view = provider_view(self.history, effect.through_sequence)
        roles = [turn.role for turn in view]
        check("I24 roles alternate", roles == (["user", "assistant"] * len(view))[: len(view)] and len(view) % 2, roles)
        row = _row(view)
        calls = [block.id for _, block in row if isinstance(block, content.ToolUse)]
        check("I24 unique tool ids", len(calls) == len(set(calls)), calls)
        sent = self.view
        if not self.view_answered and sent and sent[-1] == ("user", content.Text("Continue.")):
            sent = sent[:-1]
        check("append-only", row[: len(sent)] == sent, sent, row)
        self.view, self.view_answered = row, False

    def _model(self, effect: RequestLlm | RequestContinuation, context: ConvContext) -> None:
        expected = self.models.setdefault(effect.request_id, context.model_id)
        check("2.12 a new model holds from the next request on", effect.model == expected, effect, expected)

    def _summary_request(self, effect: RequestContinuation) -> None:
        check("I24 every call is answered", not self.chain_check.open_calls, effect)
        turns = summary_view(self.history, effect.through_sequence, effect.rejected)
        check("REQ-BED-020 tool-less", all(type(b).__name__ in ("Text", "Image") for t in turns for b in t.content))

    def _announced(self, context: ConvContext) -> None:
        if self.mode_changed and not self.sub_agent:
            notices = [message for message in self.history if message.kind in KINDS.values()]
            named = (
                re.search(r"\b(?:(?:un)?restricted|workspace)\b", content.text_of(notices[-1].content))
                if notices
                else None
            )
            check("I40 the model knows its mode", named and named[0] == context.mode.value, context.mode, notices[-1:])
            check("C48 its kind says it too", notices[-1].kind is KINDS[context.mode], context.mode, notices[-1:])

    def _notification(self, told: Notification, step: Step) -> None:
        match told:
            case StateChanged():
                check("it shows the state", told.state == summarize(step.new_state, step.context), told)
            case TextDelta():
                slot = (told.request_id, told.attempt)
                check("I34 no text after the end", self.slots.setdefault(slot, "open") == "open", told)
            case StreamDiscarded():
                slot = (told.request_id, told.attempt)
                check("I43 only an open slot is discarded", self.slots.get(slot) == "open", told)
                self.slots[slot] = "discarded"
            case QueueChanged():
                self._queue(told)
            case RunStop():
                self.stopped[told.run] = told
                self.cut_off = self.cut_off or (told.detail == "restart" and not self.sub_agent)
            case ApprovalRequested():
                upgrade = told.call.name == "request_mode_upgrade"
                check("C15 what is asked for", told.kind.value == ("mode_upgrade" if upgrade else "tool"), told)
                check("C16 since when it is asked", told.since == step.event.at, told, step.event)
            case ClientToolCall():
                self._client_call(told, step)
            case QuestionChanged():
                self._question(told, step)
            case _:
                pass

    def _client_call(self, told: ClientToolCall, step: Step) -> None:
        """A wait begins when nothing else waits, and ends once, with the call's result."""
        if told.status is CallStatus.PENDING:
            check("I44 one wait at a time", self.awaited is None, told, self.awaited)
            self.awaited = told
            return
        check("I44 what ends had begun", self.awaited == replace(told, status=CallStatus.PENDING), told, self.awaited)
        self.awaited = None
        stored = [effect.message for effect in step.effects if isinstance(effect, PersistMessage)]
        answers = [block for message in stored for block in message.content if content.is_tool_result(block)]
        (result,) = [block for block in answers if block.tool_use_id == told.call.id]
        expected = {
            CallStatus.ANSWERED: (content.ToolOutcome.OK, content.ToolOutcome.ERROR),
            CallStatus.TIMED_OUT: (content.ToolOutcome.TIMED_OUT,),
            CallStatus.WITHDRAWN: (content.ToolOutcome.CANCELLED, content.ToolOutcome.ERROR),
        }
        check("I44 the result says how", result.outcome in expected[told.status], told, result)

    def _question(self, told: QuestionChanged, step: Step) -> None:
        """A question is asked once, by the call that runs, and ends once, at the latest with its call."""
        number = told.question.number
        if told.status is states.QuestionStatus.PENDING:
            self._use(f"question {number}")
            check("C59 sub-agents ask nobody", not self.sub_agent, told)
            self.asked[number] = told
            return
        asked = self.asked.pop(number, None)
        check("I45 what ends had been asked", asked == replace(told, status=states.QuestionStatus.PENDING), told, asked)
        answered = told.status in (states.QuestionStatus.ANSWERED, states.QuestionStatus.DECLINED)
        check("I45 who ends it", answered == isinstance(step.event, AnswerQuestion), told, step.event)
        past = step.new_state.ledger.past_questions[-1:]
        check(
            "C60 how it ended is remembered", past == (states.PastQuestion(number, told.status),) or not answered, past
        )

    def _queue(self, told: QueueChanged) -> None:
        """Keep the order of follow-ups, and the fates of messages that do not run."""
        message_id = told.input.message_id
        if told.fate is Fate.QUEUED:
            self.follow_ups += [message_id] * (told.delivery == "follow_up")
            return
        self.follow_ups = [other for other in self.follow_ups if other != message_id]
        if told.fate in (Fate.RETURNED, Fate.WITHDRAWN):
            self._fate(message_id, told.fate.value)

    def _attempt(self, after: states.State) -> None:
        if isinstance(after, (states.LlmRequesting, states.AwaitingContinuation)):
            last = self.last_attempt.get(after.request_id, 1)
            check("I11 attempts do not go back", last <= after.attempt, after)
            check("I11 a new request begins at 1", after.request_id in self.last_attempt or after.attempt == 1, after)
            self.last_attempt[after.request_id] = after.attempt

    def _fan_in(self, after: states.State) -> None:
        if not isinstance(after, states.AwaitingSubAgents):
            self.fan_in = ()
            return
        pending, done = after.pending_ids, tuple(report.agent_id for report in after.completed_results)
        everybody = tuple(sorted((*pending, *done)))
        check("I15 disjoint, no duplicates", len(set(everybody)) == len(everybody), everybody)
        check("I15 nobody comes or goes", everybody == (self.fan_in or everybody), everybody, self.fan_in)
        self.fan_in = everybody

    def _round(self, after: states.State) -> None:
        match after:
            case states.ToolExecuting():
                results, current, waiting = after.completed_results, after.current_tool_id, after.remaining_tool_ids
            case states.AwaitingSubAgents() if after.tool_use_id:
                results, current, waiting = after.tool_results, after.tool_use_id, after.remaining_tool_ids
            case _:
                return
        stored = []
        for message in reversed(self.history):
            if message.type is content.MessageType.AGENT:
                break
            stored += [block for block in message.content if message.type is content.MessageType.TOOL]
        check("I42 the round's results are those stored", list(results) == stored[::-1], results, stored)
        check("I16 the rest waits in order", self.chain_check.open_calls == (current, *waiting), after)

    def _partial(self, after: states.Failed) -> None:
        expected = "" if after.kind is ErrorKind.SUB_AGENT_ERROR else self.last_text
        check("I41 the last text is kept", after.partial_result == expected, after, expected)

    # --- one commit

    def chain(self, event: Event, before: states.State, steps: tuple[Step, ...]) -> None:
        """Check one commit, at whose end the machine rests."""
        after = steps[-1].new_state
        started = [effect for step in steps for effect in step.effects if isinstance(effect, IN_FLIGHT)]
        check("I3 one operation per commit", len(started) <= 1, started)
        if started:
            check("I3 the resting state names it", names(after, started[0]), after, started)
        follows = len(before.ledger.follows) + 1
        check("I39 chains end", len(steps) <= 3 + 2 * follows, len(steps))
        self._rests(after)
        mode = context_after(steps[-1].context, steps[-1].effects).mode
        check("an audit finds nothing", not (found := list(self.audit.check_end(after, mode))), found)
        if isinstance(event, UserMessage):
            self.accepted.add(event.message_id)
        self._fates(after)
        self._runs(after)
        if isinstance(event, UserCancel):
            self._cancel_settles(before, after)
        streaming = (
            isinstance(after, (states.LlmRequesting, states.AwaitingContinuation))
            and after.phase is states.LlmPhase.STREAMING
        )
        opened = [slot for slot, end in self.slots.items() if end == "open"]
        expected = [(after.request_id, after.attempt)] if streaming else []  # type: ignore[union-attr]
        check("I43 only what streams is open", opened == expected, opened, expected)

    def _rests(self, after: states.State) -> None:
        ledger = after.ledger
        check("I39 AwaitingLlm never rests", not isinstance(after, states.AwaitingLlm), after)
        check("I39 no queue at rest", not (isinstance(after, (states.Idle, states.Error)) and ledger.follows), after)
        if isinstance(after, states.Cancelling):
            check(
                "I39 only sub-agents are waited for",
                after.kind is states.CancelKind.AGENTS and after.pending_agents,
                after,
            )
        if isinstance(after, states.INACTIVE):
            check("I25 no open run", not ledger.live, after)
            check("I25 no steers, no queue", not ledger.steers and not ledger.follows, after)
            check("I25 no open call", not self.chain_check.open_calls, self.chain_check.open_calls)
        notices = [notice.kind for notice in ledger.pending_notices]
        check("C48 one notice per kind", len(notices) == len(set(notices)), notices)
        if self.sub_agent:
            elsewhere = (
                states.Error,
                states.AwaitingToolApproval,
                states.AwaitingSubAgents,
                states.Cancelling,
                states.AwaitingContinuation,
                states.ContextExhausted,
            )
            check("I19 where sub-agents never rest", not isinstance(after, elsewhere), after)
            check("I19 a started sub-agent is not idle", not (self.roots and isinstance(after, states.Idle)), after)
        else:
            check("sub-agents alone complete or fail", not isinstance(after, (states.Completed, states.Failed)), after)

    def _fates(self, after: states.State) -> None:
        waiting = [one.message_id for one in (*after.ledger.steers, *after.ledger.follows)]
        lost = self.accepted - self.fates.keys()
        check("I27 nothing is lost", lost == set(waiting) and len(waiting) == len(lost), lost, waiting)

    def _runs(self, after: states.State) -> None:
        ledger = after.ledger
        runs = {run_id(self.conversation, number) for number in range(1, ledger.run + 1)}
        live = {run_id(self.conversation, ledger.run)} if ledger.live else set()
        check("I26 each run ends once", self.stopped.keys() == runs - live, self.stopped.keys(), runs, live)

    def _cancel_settles(self, before: states.State, after: states.State) -> None:
        if self.sub_agent:
            check("I7 a sub-agent is terminal at once", isinstance(after, states.TERMINAL), after)
        elif isinstance(before, (states.AwaitingSubAgents, states.Cancelling)):
            check("I7 at most the sub-agents' last words", isinstance(after, states.Cancelling), after)
        else:
            next_run = isinstance(after, states.LlmRequesting) and after.ledger.run > before.ledger.run
            check("I7 a cancel settles in its commit", isinstance(after, states.INACTIVE) or next_run, before, after)

    # --- a whole walk

    def end(self, tools: tuple[ToolTraits, ...]) -> None:
        """Check what only the whole shows: the request-cycle projection (I29)."""
        groups = {traits.name: traits.group for traits in tools}
        events = list(events_of(self.told, groups))
        projector = Projector(strict=True)
        whole = projector.project(events)
        for cut in (len(events) // 3, len(events) // 2):
            check("I29 incremental", projector.project(events[cut:], projector.project(events[:cut])) == whole, cut)
        for number, cycle in enumerate(whole.cycles, 1):
            self._cycle(run_id(self.conversation, number), cycle)
        check("I29 as many cycles as runs", len(whole.cycles) == len(self.roots), len(whole.cycles), self.roots)
        check("I29 the queue is what waits", [one.id for one in whole.queue] == self.follow_ups, whole.queue)

    def _cycle(self, run: str, cycle: RequestCycle) -> None:
        check("I29 the run's root", cycle.root.id == self.roots[run], cycle.root, run)
        kind = "follow_up" if cycle.kind is CycleDelivery.FOLLOW_UP else "direct"
        root = next(message for message in self.history if message.id == cycle.root.id)
        check("I29 the root's kind", root.delivery == kind, root, kind)
        stop = self.stopped.get(run)
        assert (cycle.stop and cycle.stop.reason) == (stop and stop.reason), f"I29 the run's end: {stop}"
