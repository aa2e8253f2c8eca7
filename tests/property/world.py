"""A fake world around the pure machine: it performs the effects, badly.

What the machine starts stays in flight until an outcome is delivered; what it aborts may still answer, late, twice or
never. Time is the number of events. Every commit is checked against the laws.
"""

from collections import Counter
from typing import Self

import msgspec
from msgspec.structs import replace

from actors.core import effects, events, states
from actors.core.context import ConvContext
from actors.core.errors import InvalidTransition, Reason, Rejected
from actors.core.notifications import CallStatus, ClientToolCall, QuestionChanged, RunStop
from actors.core.summary import run_id
from actors.core.transition import Step, context_after, run_chain
from tests.property.laws import Laws, independent
from tests.property.step_laws import check

COMMANDS = (
    events.UserMessage,
    events.ApprovalResponse,
    events.TriggerContinuation,
    events.SpawnSubAgents,
    events.StartSubAgent,
    events.SetMode,
    events.SubmitToolResult,
    events.AnswerQuestion,
    events.WithdrawMessage,
)
"""Commands that may be refused; UserCancel never is."""

Request = effects.RequestLlm | effects.RequestContinuation


def _written(*values: object) -> tuple[bytes, ...]:
    """What values hold, for a comparison with what they hold later: they are frozen, but not against every trick."""
    return tuple(map(msgspec.json.encode, values))


class World:
    """One conversation and all that happens outside of it."""

    def __init__(self, context: ConvContext, seen: Counter[str] | None = None) -> None:
        self.context = context
        self.state: states.State = states.Idle()
        self.at = 1_000_000
        self.made = 0
        self.laws = Laws(context)
        self.request: Request | None = None
        self.tool: effects.ExecuteTool | None = None
        self.wait: effects.AwaitToolResult | None = None
        """The call that a client may answer."""
        self.asking: dict[int, effects.AwaitAnswer] = {}
        """What the tool asks a person, by its place among the questions of the call."""
        self.agents: dict[str, effects.SpawnSubAgent] = {}
        self.dead: list[Request | effects.ExecuteTool | effects.SpawnSubAgent] = []
        """Aborted, but perhaps not silent yet."""
        self.timers: list[events.Event] = []
        """Set and not yet fired. Nobody can stop a timer."""
        self.past: list[events.Event] = []
        """Outcomes that were delivered: they may come again."""
        self.reports: list[effects.NotifyParent] = []
        self.seen: Counter[str] = Counter() if seen is None else seen
        """How often each kind of state, effect, notification and refusal occurred."""

    def fork(self) -> Self:
        """An independent copy of everything, for a look at what would be."""
        twin = independent(self)
        twin.seen = Counter()
        return twin

    def new_id(self, kind: str) -> str:
        """An id that nothing else has, whatever the clock says."""
        self.made += 1
        return f"{kind}-{self.made}"

    @property
    def now(self) -> int:
        """A later moment each time, unless somebody has set `at` back."""
        self.at += 7
        return self.at

    @property
    def quiet(self) -> bool:
        return isinstance(self.state, states.INACTIVE)

    @property
    def terminal(self) -> bool:
        return isinstance(self.state, states.TERMINAL)

    # --- what happens

    def apply(self, event: events.Event) -> bool | Reason:
        """Let it happen. True: it moved something; False: it was ignored; or why it was refused."""
        before = self.state
        given = _written(before, self.context, event)
        try:
            steps = run_chain(before, self.context, event)
        except Rejected as refusal:
            check("C37 only commands are refused", isinstance(event, COMMANDS), event, refusal.reason)
            self._refused(event, refusal.reason)
            self.seen[refusal.reason] += 1
            return refusal.reason
        except InvalidTransition:
            check("C37 only nonsense is invalid", isinstance(event, events.SpawnSubAgents) and not event.tasks, event)
            return Reason.AGENT_BUSY
        if isinstance(event, events.UserMessage) and not isinstance(before, (states.Idle, states.Error)):
            check("I14 busy refuses by default", event.delivery.value != "reject", before, event)
        if not steps:
            check(
                "C37 commands are not ignored",
                not isinstance(event, COMMANDS) or isinstance(event, events.SetMode),
                event,
            )
            self.laws.ignored(before, self.context, event)
            check("I1 the input is left alone", _written(before, self.context, event) == given, event)
            self._somebody_ends_the_wait()
            return False
        check("I1 the input is left alone", _written(before, self.context, event) == given, event)
        at = before
        for step in steps:
            self.laws.step(at, step)
            at = step.new_state
            self.context = context_after(step.context, step.effects)
        self.state = at
        self._ended(event)
        for step in steps:
            for effect in step.effects:
                self._act(effect)
        self.laws.chain(event, before, steps)
        self._somebody_ends_the_wait()
        self._count(steps)
        return True

    def deliver(self, event: events.Event) -> bool:
        """Let the outcome of something in flight arrive, and then once more (I10)."""
        applied = self.apply(event)
        check("an outcome of what is in flight counts", applied is True, event, self.state)
        self.past.append(event)
        if not isinstance(event, events.LlmStreamChunk):
            self.expect_ignored("I10 the second delivery is ignored", event)
        return True

    def expect_ignored(self, law: str, event: events.Event) -> None:
        """Something that concerns nobody (any more) changes nothing."""
        check(law, not run_chain(self.state, self.context, event), self.state, event)

    def _count(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            for effect in step.effects:
                told = effect.data if isinstance(effect, effects.NotifyClient) else effect
                self.seen[type(told).__name__] += 1
                if isinstance(told, RunStop):
                    self.seen[f"run-stop {told.reason} {told.detail}".strip()] += 1
        self.seen[f"{type(self.state).__name__} {getattr(self.state, 'phase', '')}".strip()] += 1

    def _refused(self, event: events.Event, reason: Reason) -> None:
        if isinstance(event, events.UserMessage) and not event.expected_run:
            open_ear = isinstance(self.state, (states.Idle, states.Error)) and not self.context.is_sub_agent
            check("I13 a message while idle is accepted", not open_ear, event, self.state, reason)

    # --- performing effects

    def _ended(self, event: events.Event) -> None:
        """The event ended something: an outcome ends its operation, a crash everything."""
        identity = getattr(event, "request_id", None), getattr(event, "attempt", None)
        request, tool = self.request, self.tool
        outcome = not isinstance(event, (events.LlmStreamStarted, events.LlmStreamChunk, events.RetryTimeout))
        if request and outcome and identity == (request.request_id, request.attempt):
            self.request = None
        execution = getattr(event, "tool_use_id", None), getattr(event, "execution_id", None)
        if isinstance(event, (events.AskQuestion, events.QuestionOver)):
            pass  # the tool goes on
        elif tool and execution == (tool.tool_use_id, tool.execution_id):
            self.tool = None
        if agent_id := getattr(event, "agent_id", None):
            ended = self.agents.pop(agent_id, None)
            if ended and isinstance(event, events.SubAgentTimeout):
                self.dead.append(ended)
        if isinstance(event, events.Restart):
            self._crash()
        timer = replace(event, at=0)
        if timer in self.timers:
            self.timers.remove(timer)

    def _crash(self) -> None:
        """A restart ends what is in flight without an effect; a drained server's workers may still answer."""
        self.dead += [flight for flight in (self.request, self.tool) if flight]
        self.dead += self.agents.values()
        self.request, self.tool = None, None
        self.agents.clear()

    def _act(self, effect: effects.Effect) -> None:
        match effect:
            case effects.RequestLlm() | effects.RequestContinuation():
                check("I3 one request at a time", self.request is None and self.tool is None, effect, self.request)
                self.request = effect
            case effects.AbortLlm():
                check("an abort names what is in flight", self.request, effect)
                assert self.request
                check("an abort names what is in flight", self.request.request_id == effect.request_id, effect)
                self.dead.append(self.request)
                self.request = None
            case effects.ExecuteTool():
                check("I16 one tool at a time", self.request is None and self.tool is None, effect, self.tool)
                self.tool = effect
            case effects.AwaitToolResult():
                idle = self.request is None and self.tool is None and self.wait is None
                check("I16 one call at a time", idle, effect, self.tool, self.wait)
                self.wait = effect
                self.timers.append(events.ToolDeadline(0, effect.tool_use_id, effect.execution_id))
            case effects.NotifyClient(data=ClientToolCall() as told) if told.status is not CallStatus.PENDING:
                check("I44 what ends is what waits", self.wait and self.wait.tool_use_id == told.call.id, told)
                self.wait = None
            case effects.AwaitAnswer():
                named = self.tool and (self.tool.tool_use_id, self.tool.execution_id)
                check("C59 the tool that runs asks", named == (effect.tool_use_id, effect.execution_id), effect)
                check("C59 a question is asked once", effect.place not in self.asking, effect)
                self.asking[effect.place] = effect
                identity = effect.tool_use_id, effect.execution_id, effect.place
                self.timers.append(events.QuestionOver(0, *identity, timed_out=True))
            case effects.AnswerTool():
                asked = self.asking.get(effect.place)
                known = asked and (asked.tool_use_id, asked.execution_id) == (effect.tool_use_id, effect.execution_id)
                check("I45 the tool that asked is told", known, effect, asked)
            case effects.NotifyClient(data=QuestionChanged() as told) if (
                told.status is not states.QuestionStatus.PENDING
            ):
                check("I45 what ends is what was asked", told.question.place in self.asking, told)
                del self.asking[told.question.place]
            case effects.AbortTool():
                check("an abort names what is in flight", self.tool, effect)
                assert self.tool
                named = (self.tool.tool_use_id, self.tool.execution_id)
                check("an abort names what is in flight", named == (effect.tool_use_id, effect.execution_id), effect)
                self.dead.append(self.tool)
                self.tool = None
            case effects.ScheduleRetry() if effect.of is effects.RetryOf.LLM:
                self.timers.append(events.RetryTimeout(0, effect.request_id, effect.attempt))
            case effects.ScheduleRetry():
                self.timers.append(events.ToolRetryTimeout(0, effect.tool_use_id, effect.execution_id, effect.attempt))
            case effects.SpawnSubAgent():
                self.spawn(effect)
            case effects.CancelSubAgents():
                self.cancel_agents(effect.agent_ids)
            case effects.StartTimer():
                self.timers.append(events.CancelTimeout(0, effect.run_id))
            case effects.NotifyParent():
                self.reports.append(effect)
            case _:
                pass

    def spawn(self, effect: effects.SpawnSubAgent) -> None:
        """A child begins."""
        self.agents[effect.task.agent_id] = effect
        self.timers.append(events.SubAgentTimeout(0, effect.task.agent_id))

    def cancel_agents(self, agent_ids: tuple[str, ...]) -> None:
        """Children are asked to stop; their answers are late, or never come."""
        for agent_id in agent_ids:
            if cancelled := self.agents.pop(agent_id, None):
                self.dead.append(cancelled)

    # --- nothing gets stuck

    def _somebody_ends_the_wait(self) -> None:
        """What the state waits for is in flight, and nothing else is: so every wait ends, and I25."""
        state = self.state
        request = tool = wait = None
        asked: tuple[tuple[int, int], ...] = ()
        agents: set[str] = set()
        match state:
            case states.LlmRequesting() | states.AwaitingContinuation() if state.phase is states.LlmPhase.BACKOFF:
                check(
                    "a backoff has its timer",
                    events.RetryTimeout(0, state.request_id, state.attempt) in self.timers,
                    state,
                )
            case states.LlmRequesting() | states.AwaitingContinuation():
                request = (state.request_id, state.attempt)
            case states.ToolExecuting() if state.phase is states.ToolPhase.BACKOFF:
                timer = events.ToolRetryTimeout(0, state.current_tool_id, state.execution_id, state.attempt)
                check("a backoff has its timer", timer in self.timers, state)
            case states.ToolExecuting() if state.deadline:
                wait = effects.AwaitToolResult(state.current_tool_id, state.execution_id, state.deadline)
                deadline = events.ToolDeadline(0, state.current_tool_id, state.execution_id)
                check("a wait for a client has its timer", deadline in self.timers, state)
            case states.ToolExecuting():
                tool = (state.current_tool_id, state.execution_id)
                asked = tuple((question.place, question.deadline) for question in state.questions)
                for place, _ in asked:
                    over = events.QuestionOver(0, *tool, place, timed_out=True)
                    check("a question has its timer", over in self.timers, state)
            case states.AwaitingSubAgents():
                agents = set(state.pending_ids)
            case states.Cancelling():
                timers = [timer for timer in self.timers if isinstance(timer, events.CancelTimeout)]
                check(
                    "a cancel is bounded", any(timer.run_id.endswith(f":{state.ledger.run}") for timer in timers), state
                )
            case states.AwaitingToolApproval():
                check("there is a question", state.undecided, state)
            case _:
                pass
        flight = self.request and (self.request.request_id, self.request.attempt)
        check("I25 the request in flight is the one waited for", flight == request, flight, state)
        running = self.tool and (self.tool.tool_use_id, self.tool.execution_id)
        check("I25 the tool in flight is the one waited for", running == tool, running, state)
        questions = tuple((question.place, question.deadline) for question in self.asking.values())
        check("I25 the questions that wait are the tool's that runs", questions == asked, questions, state)
        check("I25 the client's call is the one waited for", self.wait == wait, self.wait, state)
        check(
            "I25 the sub-agents at work are those waited for", self.agents.keys() == agents, self.agents.keys(), state
        )

    # --- a cancel, looked at from any step

    def cancel_and_go_on(self, *, discard: bool) -> None:
        """Copy the world, cancel it, let it settle, and talk to it again: it must never be stuck."""
        twin = self.fork()
        waiting = len(self.state.ledger.follows)
        for _ in range(1 if discard else waiting + 1):
            ledger = twin.state.ledger
            run = run_id(self.context.conversation_id, ledger.run) if ledger.live else ""
            twin.apply(events.UserCancel(twin.now, run, discard_queued=discard))
            if run:
                again = events.UserCancel(twin.now, run, discard_queued=discard)
                twin.expect_ignored("I8 a second cancel adds nothing", again)
            twin._settle_cancel()
            if twin.quiet:
                break
        check("I7 cancelled conversations are quiet", twin.quiet, self.state, twin.state)
        if twin.terminal:
            check("only sub-agents end by a cancel", self.context.is_sub_agent or self.terminal, twin.state)
            return
        check(
            "I13 it can be written to again",
            twin.apply(events.UserMessage(twin.now, twin.new_id("after"), "again")) is True,
        )
        twin.laws.end(self.context.tools)

    def _settle_cancel(self) -> None:
        """Sub-agents answer a cancel, or two seconds pass."""
        if not isinstance(self.state, states.Cancelling):
            return
        late = [events.SubAgentTimeout(0, agent.agent_id) for agent in self.state.pending_agents]
        timeout = next(timer for timer in reversed(self.timers) if isinstance(timer, events.CancelTimeout))
        twin = self.fork()
        twin.apply(replace(timeout, at=twin.now))
        check("I7 two seconds are enough", not isinstance(twin.state, states.Cancelling), twin.state)
        for event in late:
            check("I7 the last words count", self.apply(replace(event, at=self.now)) is True, event)
        check("I7 the last words are enough", not isinstance(self.state, states.Cancelling), self.state)
