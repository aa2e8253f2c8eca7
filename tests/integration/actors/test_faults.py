"""FaultPoints at every named point: as a bug that raises there, and as the end of the process there.

One life of a conversation passes all points that there are. Then it is lived again and again, each time with a fault
at another pass. Whatever happens, the conversation comes to rest by itself, its history is valid, every run has
stopped once, and it can be talked to.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from actors import messages, ports
from actors.core.content import MessageType, Text, ToolError, ToolUse
from actors.core.context import Limits, ToolGroup, ToolTraits
from actors.core.errors import ErrorKind, LlmFailure, Rejected
from actors.core.events import InternalFault
from actors.core.history import violations
from actors.core.notifications import MessageAdded, RunStop, StreamDiscarded
from actors.core.states import INACTIVE, ContextExhausted, Error, Idle, LlmPhase, LlmRequesting
from tests.integration.actors.conftest import ShakyStore
from tests.support.patience import PATIENCE
from tests.support.stores import new_store
from tests.support.toolboxes import FunctionTool, NothingKept

World = Any

BASH = ToolUse("t1", "bash", "{}")


class Crash(BaseException):
    """What a fault point raises; nothing in the code expects it."""


def crash() -> None:
    raise Crash


class Obliging:
    """A model that does what the last message says."""

    info = ports.ModelInfo("scripted", "Scripted", "tests", "demo", 200_000, 8_000, 190_000)

    def __init__(self) -> None:
        self.hangs = threading.Event()

    def respond(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        last = request.turns[-1].content[-1]
        word = last.text if isinstance(last, Text) and request.tools else "answer"
        name = request.request_id.replace(":", "-")
        match word:
            case "use tools":
                calls = ToolUse(f"{name}-1", "look", "{}"), ToolUse(f"{name}-2", "bash", "{}")
                return ports.ModelAnswer((Text("I will look."), *calls), end_turn=False)
            case "use a slow tool":
                return ports.ModelAnswer((ToolUse(f"{name}-1", "slow", "{}"),), end_turn=False)
            case "stumble" if request.attempt == 1:
                raise ports.ModelFailedError(LlmFailure(ErrorKind.SERVER_ERROR, "overloaded"))
            case "hang":
                sink.text("Once upon")
                sink.flush()
                self.hangs.set()
                assert cancel.wait(PATIENCE)
                raise ports.ModelAbortedError
            case _:
                sink.started()
                sink.text("fine")
                sink.flush()
                return ports.ModelAnswer((Text("fine"),), end_turn=True)


class Tools(NothingKept):
    """look stumbles once, bash works, slow lasts until it is cancelled."""

    def __init__(self) -> None:
        self.slow = threading.Event()
        self.looks = 0
        self.started: Counter[str] = Counter()

    def specs(self, *, sub_agent: bool) -> tuple[ports.ToolSpec, ...]:
        names = ("look", "bash", "slow")
        traits = [ToolTraits(name, ToolGroup.OTHER, retry_safe=name == "look") for name in names]
        return tuple(ports.ToolSpec(each.name, {}, each) for each in traits)

    def get(self, name: str) -> Any:
        return FunctionTool(getattr(self, f"run_{name}"))

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        return {}

    def run_look(self, context: ports.ToolContext) -> ports.ToolOutput:
        self.looks += 1
        if self.looks % 2:
            raise ports.ToolTransientError("no process", begun=False)
        return ports.ToolOutput("seen")

    def run_bash(self, context: ports.ToolContext) -> ports.ToolOutput:
        self.started["bash"] += 1
        return ports.ToolOutput("done")

    def run_slow(self, context: ports.ToolContext) -> ports.ToolOutput:
        self.slow.set()
        assert context.cancel.wait(PATIENCE)
        context.reaped((4711,))
        return ports.ToolOutput("cut off", is_error=True)


class Life:
    """A conversation that is talked to, whatever it answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id = ""

    def try_to(self, request: Any) -> None:
        """Ask; a refusal or a fault is an answer, silence is not."""
        with contextlib.suppress(Rejected, messages.UnknownConversationError, Crash):
            self.world.supervisor.ask(self.id, request).result(PATIENCE)

    def live(self) -> None:
        """From the beginning to the end: passes every fault point."""
        try:
            self.id = (
                self.world.supervisor.create(messages.CreateConversationCommand("tester", "/tmp")).result(PATIENCE).id
            )
        except (Crash, Rejected):
            return
        self.say("use tools")
        self.say("stumble")
        self.say("hang", self.world.model.hangs)
        self.say("use a slow tool", self.world.box.slow)
        self.try_to(messages.TriggerContinuationCommand())
        self.rest()

    def say(self, text: str, then_cancel: threading.Event | None = None) -> None:
        self.try_to(messages.SendMessageCommand(text))
        if then_cancel is not None:
            self.wait(lambda: then_cancel.is_set() or self.resting)
            self.try_to(messages.CancelConversationCommand())
        self.rest()

    @property
    def record(self) -> Any:
        return self.world.truth.load(self.id)

    @property
    def resting(self) -> bool:
        return isinstance(self.record.state, INACTIVE)

    def rest(self) -> None:
        self.wait(lambda: self.resting)

    def wait(self, true: Callable[[], bool]) -> None:
        """A publication may be what the fault has eaten: nobody can wait to be woken here."""
        pause, deadline = threading.Event(), time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"stuck in {self.record.state}"
            pause.wait(0.002)

    def check(self) -> None:
        """What must hold at rest, and after any fault."""
        truth, record, history, events = self.world.truth, None, (), list[Any]()
        while record != (record := self.record):  # the end of a tool's processes may be recorded meanwhile
            history = truth.history(self.id, record.state.ledger.seq)
            events = [event.notification for event in truth.events(self.id, after=0, limit=10_000)]
        assert violations(history) == ()
        assert truth.verify(self.id) == ()
        assert len(events) == record.revision
        stops = [event.run for event in events if isinstance(event, RunStop)]
        assert stops == [f"{self.id}:{run}" for run in range(1, record.state.ledger.run + 1)]
        assert not record.state.ledger.live
        said = [event.message for event in events if isinstance(event, MessageAdded)]
        assert tuple(said) == history

    def still_works(self) -> None:
        if isinstance(self.record.state, ContextExhausted):
            return
        self.world.supervisor.ask(self.id, messages.SendMessageCommand("hello")).result(PATIENCE)
        self.wait(lambda: self.resting and self.texts()[-1] == "fine")
        self.check()

    def texts(self) -> list[str]:
        history = self.world.truth.history(self.id, self.record.state.ledger.seq)
        return [block.text for message in history for block in message.content if isinstance(block, Text)]


@pytest.fixture
def make_life(make_world: Any) -> Callable[..., Life]:
    def make(store: Any = None) -> Life:
        world = make_world(store, model=Obliging(), box=Tools(), limits=Limits(retry_base_ms=1))
        return Life(world)

    return make


def passes(make_life: Callable[..., Life]) -> list[str]:
    """The fault points of an undisturbed life, in order."""
    life = make_life()
    life.live()
    life.check()
    life.world.close()
    assert isinstance(life.record.state, ContextExhausted)
    return list(life.world.faults.passed)


EVERYWHERE = {
    "commit.before", "commit.after", "publish.after", "tool.before", "tool.after",
    *(f"effect.{when}.{effect}" for when in ("before", "after") for effect in (
        "RequestLlm", "RequestContinuation", "AbortLlm", "ExecuteTool", "AbortTool", "ScheduleRetry")),
}  # fmt: skip


def test_a_life_passes_every_fault_point_that_it_can(make_life: Callable[..., Life]) -> None:
    assert set(passes(make_life)) >= EVERYWHERE


def test_a_bug_at_any_point_ends_the_run_and_damages_no_stored_message(make_life: Callable[..., Life]) -> None:
    for number, point in enumerate(passes(make_life)):
        life = make_life()
        life.world.faults.arm_pass(number, crash)
        life.live()
        if life.id:
            try:
                life.check()
                life.still_works()
            except AssertionError as error:
                raise AssertionError(f"after a fault at pass {number}, {point}") from error
        life.world.close()
        assert life.world.supervisor.live_count() == 0


def test_the_end_of_the_process_at_any_point_is_repaired_at_the_next_start(make_life: Callable[..., Life]) -> None:
    for number, point in enumerate(passes(make_life)):
        store = ShakyStore(new_store())
        dying = make_life(store)

        def die(store: Any = store) -> None:
            store.deaf = True
            raise Crash

        dying.world.faults.arm_pass(number, die)
        live_until_dead(dying)
        after = make_life(store.inner)
        after.id = dying.id
        after.world.supervisor.start()
        if after.id:
            try:
                assert after.resting
                after.check()
                after.still_works()
            except AssertionError as error:
                raise AssertionError(f"after the end of the process at pass {number}, {point}") from error
        for life in (dying, after):
            life.world.close()


def live_until_dead(life: Life) -> None:
    """Talk until the process is dead; nobody waits for the dead."""
    waiting = Life.wait

    def wait(self: Life, true: Callable[[], bool]) -> None:
        waiting(self, lambda: life.world.store.deaf or true())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Life, "wait", wait)
        life.live()


def test_a_fault_in_the_actor_ends_the_run_as_an_error_that_says_so(world: World) -> None:
    talk = world.create()
    sent = talk.send("go")
    world.faults.arm("effect.before.ExecuteTool", crash)
    talk.exchange().call(BASH, ToolUse("t2", "look", "{}"))
    error = talk.rest(Error)
    assert error.error_kind is ErrorKind.UNKNOWN
    assert [(stop.run, stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [
        (sent.run, "error", "unknown")
    ]
    history = world.truth.history(talk.id, 99)
    results = [block for message in history for block in message.content if isinstance(block, ToolError)]
    assert [result.tool_use_id for result in results] == ["t1", "t2"]
    assert history[-1].type is MessageType.ERROR
    assert world.box.tools["bash"].started == 0
    talk.turn("again", "fine")


def test_a_fault_while_text_streams_closes_its_slot_and_hangs_up(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    exchange.sink.text("Once")
    exchange.sink.flush()
    talk.until(lambda: isinstance(talk.state, LlmRequesting) and talk.state.phase is LlmPhase.STREAMING)
    world.faults.arm("commit.before", crash)
    with pytest.raises(Crash):
        talk.send("steer", delivery="steer")
    talk.rest(Error)
    assert exchange.cancel.cancelled
    assert len(talk.found(StreamDiscarded)) == 1
    assert world.hub.attach(talk.id, threading.Event().set).read(talk.record.revision).text is None


@pytest.mark.parametrize("deaf", [False, True])
def test_a_fault_that_cannot_be_recorded_either_is_repaired_from_the_store_as_soon_as_it_works(
    shaky: World, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    talk = shaky.create()
    exchange = talk.asks("go")
    road = shaky.supervisor._live[talk.id]._pipeline
    advance = road.advance

    def fail(event: Any) -> Any:
        if isinstance(event, InternalFault):
            shaky.store.deaf = deaf
            raise Crash
        return advance(event)

    monkeypatch.setattr(road, "advance", fail)
    shaky.faults.arm("commit.before", crash)
    exchange.say("lost")
    if deaf:
        assert shaky.store.refusals.acquire(timeout=PATIENCE)
        assert shaky.store.refusals.acquire(timeout=PATIENCE)
        shaky.store.deaf = False
    talk.rest(Idle)
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "restart")]
    talk.turn("again", "fine")


def test_a_fault_that_the_store_does_not_take_now_is_recorded_later(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("go")

    def fail() -> None:
        shaky.store.down = True
        raise Crash

    shaky.faults.arm("commit.before", fail)
    exchange.say("lost")
    assert shaky.store.refusals.acquire(timeout=PATIENCE)
    shaky.store.down = False
    assert talk.rest(Error).error_kind is ErrorKind.UNKNOWN


def test_a_fault_affects_no_other_conversation(world: World) -> None:
    broken, sound = world.create(), world.create()
    exchange = sound.asks("hello")
    world.faults.arm("commit.before", crash)
    with pytest.raises(Crash):
        broken.send("go")
    broken.rest(Idle)
    exchange.say("hi")
    sound.rest(Idle)


def test_a_conversation_deleted_behind_its_back_lets_go(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    world.store.delete(talk.id)
    exchange.say("to nobody")
    with world.supervisor._changed:
        assert world.supervisor._changed.wait_for(lambda: not world.supervisor._live, PATIENCE)
    with pytest.raises(messages.UnknownConversationError):
        talk.send("hello?")
