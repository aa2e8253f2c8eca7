"""A conversation and its sub-agents against a world that loses, repeats and reorders (I23 to I30, I43).

Parent and children are real machines; what passes between them is mail. The laws are checked at every commit of each.
"""

from collections import Counter
from typing import ClassVar, Self

from hypothesis import stateful
from msgspec.structs import replace

from actors.core import events
from actors.core.content import Delivery, ToolUse
from actors.core.context import ConvContext, Mode
from actors.core.effects import SpawnSubAgent
from actors.core.states import TERMINAL, AwaitingSubAgents, AwaitingToolApproval, Cancelling, Idle
from tests.property.drive import a_context, happen, progress, some_calls_of, some_tasks
from tests.property.profiles import everything_was_seen, profile
from tests.property.step_laws import check
from tests.property.tape import Tape, tapes
from tests.property.world import World

DETAILS = tapes(16, 16)


class Parent(World):
    """A conversation whose sub-agents really run."""

    def __init__(self, context: ConvContext, limits: Tape, seen: Counter[str]) -> None:
        super().__init__(context, seen)
        self.children: dict[str, World] = {}
        self.mail: list[tuple[World, events.Event]] = []
        self._limits = limits

    def fork(self) -> Self:
        """The copy is alone: nobody real hears of what would be."""
        twin = super().fork()
        twin.__class__ = World  # type: ignore[assignment]
        return twin

    def spawn(self, effect: SpawnSubAgent) -> None:
        super().spawn(effect)
        agent_id = effect.task.agent_id
        child = World(a_context(self._limits, agent_id, sub_agent=True), self.seen)
        self.children[agent_id] = child
        self.mail.append((child, events.StartSubAgent(0, f"{agent_id}-task", effect.task.task)))

    def cancel_agents(self, agent_ids: tuple[str, ...]) -> None:
        super().cancel_agents(agent_ids)
        self.mail += [(self.children[agent_id], events.UserCancel(0)) for agent_id in agent_ids]


class Family(stateful.RuleBasedStateMachine):
    """Everything that can happen to a conversation and its sub-agents."""

    seen: ClassVar[Counter[str]] = Counter()

    @stateful.initialize(tape=DETAILS)
    def begin(self, tape: Tape) -> None:
        self.parent = Parent(a_context(tape), tape, self.seen)
        self.told: set[str] = set()
        self.parent.apply(events.UserMessage(self.parent.now, "first", "hello"))

    @property
    def worlds(self) -> list[World]:
        return [self.parent, *self.parent.children.values()]

    @property
    def at_work(self) -> list[World]:
        return [child for child in self.parent.children.values() if not child.quiet]

    # --- what happens inside of one of them

    @stateful.rule(who=DETAILS, tape=DETAILS)
    def something_is_done(self, who: Tape, tape: Tape) -> None:
        world = who.pick(self.worlds)
        if not (isinstance(world, Parent) and world.agents) and not (world.context.is_sub_agent and _unborn(world)):
            progress(world, tape)

    @stateful.precondition(lambda self: self.at_work)
    @stateful.rule(who=DETAILS, tape=tapes(32, 32))
    def a_sub_agent_works(self, who: Tape, tape: Tape) -> None:
        child = who.pick(self.at_work)
        for _ in range(4):
            if not child.terminal:
                progress(child, tape)

    @stateful.precondition(lambda self: any(child.request for child in self.at_work))
    @stateful.rule(who=DETAILS)
    def a_sub_agent_submits(self, who: Tape) -> None:
        """The way there by chance is long too."""
        child = who.pick([child for child in self.at_work if child.request])
        request = child.request
        assert request
        call = ToolUse(f"t-{request.request_id}-r", "submit_result", '{"result":"done"}')
        child.deliver(events.LlmResponse(child.now, request.request_id, request.attempt, (call,), False))

    @stateful.rule(who=DETAILS, tape=DETAILS)
    def anything_happens(self, who: Tape, tape: Tape) -> None:
        world = who.pick(self.worlds)
        if not (isinstance(world, Parent) and world.agents):
            happen(world, tape)

    @stateful.precondition(lambda self: not self.parent.agents and self.parent.request)
    @stateful.rule(tape=DETAILS)
    def sub_agents_are_wanted(self, tape: Tape) -> None:
        """The way there by chance is long; this shortens it."""
        parent, request = self.parent, self.parent.request
        assert request
        calls = (
            ToolUse(f"t-{request.request_id}-s", "spawn_sub_agent", "{}"),
            *some_calls_of(parent.context, request.request_id, tape),
        )
        parent.deliver(
            events.LlmResponse(parent.now, request.request_id, request.attempt, calls[: tape.pick((1, 3))], True)
        )
        while isinstance(parent.state, AwaitingToolApproval):
            parent.apply(events.ApprovalResponse(parent.now, parent.state.undecided[0], approve=True))
        if parent.tool:
            tasks = (*some_tasks(tape), *some_tasks(Tape(b"\1")))
            parent.deliver(events.AgentsSpawned(parent.now, parent.tool.tool_use_id, parent.tool.execution_id, tasks))

    @stateful.rule(delivery=DETAILS)
    def a_person_speaks(self, delivery: Tape) -> None:
        now = self.parent.now
        self.parent.apply(events.UserMessage(now, f"m-{now}", "and?", (), delivery.pick(tuple(Delivery))))

    @stateful.rule(tape=DETAILS)
    def a_person_cancels(self, tape: Tape) -> None:
        self.parent.apply(events.UserCancel(self.parent.now, discard_queued=tape.pick((False, True))))

    @stateful.rule(tape=DETAILS)
    def the_mode_is_set(self, tape: Tape) -> None:
        self.parent.apply(events.SetMode(self.parent.now, tape.pick(tuple(Mode))))

    @stateful.rule(tape=DETAILS)
    def a_timer_fires(self, tape: Tape) -> None:
        world = tape.pick(self.worlds)
        if world.timers:
            world.apply(replace(tape.pick(world.timers), at=world.now))

    @stateful.rule(tape=DETAILS)
    def the_server_restarts(self, tape: Tape) -> None:
        """Seldom. What was on its way is lost, and nothing goes on by itself."""
        if not tape.one_in(4):
            return
        self.parent.mail.clear()
        for world in self.worlds if tape.pick((True, False)) else self.worlds[::-1]:
            world.apply(events.Restart(world.now))
            check("C35 a restart brings rest", world.quiet and not world.request and not world.tool, world.state)

    # --- what passes between them

    @stateful.precondition(lambda self: self.parent.mail)
    @stateful.rule(which=DETAILS)
    def mail_arrives(self, which: Tape) -> None:
        """In any order."""
        self._deliver(which.number(len(self.parent.mail) - 1))

    @stateful.precondition(lambda self: self.parent.mail)
    @stateful.rule(which=DETAILS)
    def an_answer_is_lost(self, which: Tape) -> None:
        target, event = self.parent.mail[which.number(len(self.parent.mail) - 1)]
        if isinstance(event, events.SubAgentResult):
            self.parent.mail.remove((target, event))

    @stateful.precondition(lambda self: self.parent.mail)
    @stateful.rule(which=DETAILS)
    def mail_arrives_twice(self, which: Tape) -> None:
        target, event = self.parent.mail[which.number(len(self.parent.mail) - 1)]
        self._deliver(self.parent.mail.index((target, event)))
        if isinstance(event, events.SubAgentResult):
            target.expect_ignored("I10 a sub-agent ends once", replace(event, at=target.now))

    def _deliver(self, index: int) -> None:
        target, event = self.parent.mail.pop(index)
        waited_for = isinstance(event, events.SubAgentResult) and event.agent_id in self.parent.agents
        applied = target.apply(replace(event, at=target.now))
        check("I15 a result that is waited for counts", applied is True or not waited_for, event, target.state)

    # --- what must hold

    @stateful.rule(discard=DETAILS)
    def a_cancel_would_settle(self, discard: Tape) -> None:
        if not self.parent.terminal:
            self.parent.cancel_and_go_on(discard=discard.pick((False, True)))

    @stateful.invariant()
    def the_end_of_a_child_is_reported(self) -> None:
        for agent_id, child in self.parent.children.items():
            check(
                "I20 a report at the end and not before",
                len(child.reports) == isinstance(child.state, TERMINAL),
                child.state,
            )
            if child.reports and agent_id not in self.told:
                self.told.add(agent_id)
                self.parent.mail.append((self.parent, events.SubAgentResult(0, agent_id, child.reports[0].result)))

    @stateful.invariant()
    def a_child_that_is_waited_for_can_still_end(self) -> None:
        for agent_id in self.parent.agents:
            deadline = events.SubAgentTimeout(0, agent_id)
            check("C31 every sub-agent has a deadline", deadline in self.parent.timers, agent_id)

    def teardown(self) -> None:
        """Let everything run out: nobody is left behind."""
        for _ in range(400):
            self.the_end_of_a_child_is_reported()
            if self.parent.mail:
                self._deliver(0)
            elif busy := [world for world in self.worlds if not world.quiet and _can_go_on(world)]:
                progress(busy[-1], Tape(b""))
            elif not self._time_passes():
                break
        check("everything comes to rest", all(world.quiet for world in self.worlds), [w.state for w in self.worlds])
        for world in self.worlds:
            world.laws.end(world.context.tools)

    def _time_passes(self) -> bool:
        """Lost answers are made up for by timers."""
        state, parent = self.parent.state, self.parent
        if isinstance(state, Cancelling):
            timer: events.Event = next(
                timer for timer in reversed(parent.timers) if isinstance(timer, events.CancelTimeout)
            )
        elif isinstance(state, AwaitingSubAgents):
            timer = events.SubAgentTimeout(0, state.pending_ids[0])
        else:
            return False
        return parent.apply(replace(timer, at=parent.now)) is True


def _unborn(world: World) -> bool:
    return isinstance(world.state, Idle)


def _can_go_on(world: World) -> bool:
    return bool(world.request or world.tool or world.timers or isinstance(world.state, AwaitingToolApproval)) and not (
        isinstance(world, Parent) and isinstance(world.state, AwaitingSubAgents | Cancelling)
    )


def test_a_conversation_and_its_sub_agents_keep_every_law_whatever_the_world_does() -> None:
    Family.seen.clear()
    stateful.run_state_machine_as_test(Family, settings=profile(150, steps=50))
    expected = set("AwaitingSubAgents Cancelling Completed Failed SubAgents CancelSubAgents NotifyParent".split())
    expected |= {"run-stop interrupted cancel_timeout", "run-stop interrupted restart"}
    assert everything_was_seen(expected, Family.seen), f"never reached: {expected - Family.seen.keys()}"
