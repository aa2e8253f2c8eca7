"""A world of real actors: real threads and mailboxes, scripted models and tools, an SQLite store."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pykka import ActorRegistry

from actors import messages, ports
from actors.conversation.supervisor import Supervisor
from actors.core.content import Content, Text, ToolUse, Usage
from actors.core.context import ApprovalPolicy, Limits, ReasoningEffort, ToolGroup, ToolTraits
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import violations
from actors.core.notifications import Durable
from actors.core.states import Idle, State
from actors.maintenance.verify import findings
from actors.publishing.hub import EventHub
from actors.runtime.services import SystemClock
from tests.integration.actors.family import FamilyBox, FamilyModel
from tests.support.catalogs import OneModelCatalog
from tests.support.patience import PATIENCE, eventually
from tests.support.replaying import differences
from tests.support.services import in_memory
from tests.support.stores import new_store
from tests.support.toolboxes import NothingKept


class Calendar(SystemClock):
    """The clock of the system, some days later."""

    def __init__(self) -> None:
        self.days = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.days * 86_400_000


@dataclass
class Exchange:
    """One model request that a test answers by hand."""

    request: ports.ModelRequest
    sink: ports.ModelSink
    cancel: ports.CancelToken
    counted: Usage | None = None
    """What an abort tells of the cost."""
    _answer: queue.SimpleQueue[ports.ModelAnswer | Exception] = field(default_factory=queue.SimpleQueue)

    def say(self, *content: Content | str, **answer: Any) -> None:
        blocks = tuple(Text(block) if isinstance(block, str) else block for block in content)
        self._answer.put(ports.ModelAnswer(blocks, answer.pop("end_turn", True), **answer))

    def call(self, *calls: ToolUse, text: str = "") -> None:
        self.say(*((Text(text),) if text else ()), *calls, end_turn=False)

    def fail(
        self, kind: ErrorKind, text: str = "staged", retry_after_ms: int | None = None, usage: Usage | None = None
    ) -> None:
        self._answer.put(ports.ModelFailedError(LlmFailure(kind, text), retry_after_ms, usage))

    def crash(self) -> None:
        self._answer.put(ZeroDivisionError("a bug in an adapter"))

    def wait(self) -> ports.ModelAnswer:
        self.cancel.on_cancel(lambda: self._answer.put(ports.ModelAbortedError(self.counted)))
        answer = self._answer.get(timeout=PATIENCE * 3)
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedModel:
    """A model whose requests wait in `exchanges` until the test answers them."""

    info = ports.ModelInfo(
        "scripted", "Scripted", "tests", "demo", 200_000, 8_000, 190_000, images=True,
        reasoning_efforts=(ReasoningEffort.LOW, ReasoningEffort.HIGH), answer_limit=8_000,
    )  # fmt: skip

    def __init__(self) -> None:
        self.exchanges: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self.asked = 0

    def respond(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        self.asked += 1
        exchange = Exchange(request, sink, cancel)
        self.exchanges.put(exchange)
        return exchange.wait()


@dataclass
class ToolRun:
    """One running tool that a test ends by hand; a cancel ends it after `reap`."""

    arguments: Mapping[str, Any]
    context: ports.ToolContext
    finish: queue.SimpleQueue[ports.ToolOutput | Exception] = field(default_factory=queue.SimpleQueue)
    reap: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> ports.ToolOutput:
        self.context.cancel.on_cancel(lambda: self.finish.put(ports.ToolOutput("cut off", is_error=True)))
        output = self.finish.get(timeout=PATIENCE * 3)
        if self.context.cancel.cancelled:
            assert self.reap.wait(PATIENCE)
            self.context.reaped((4711,))
        if isinstance(output, Exception):
            raise output
        return output


class ScriptedTool:
    """A tool whose runs wait in `runs`; starts and ends are counted, to see that they never overlap."""

    def __init__(self, name: str, **traits: Any) -> None:
        group = traits.pop("group", ToolGroup.OTHER)
        self.spec = ports.ToolSpec(f"{name} for tests", {"type": "object"}, ToolTraits(name, group, **traits))
        self.runs: queue.SimpleQueue[ToolRun] = queue.SimpleQueue()
        self.started = 0
        self.running = 0

    def run(self, arguments: Mapping[str, Any], context: ports.ToolContext) -> ports.ToolOutput:
        self.started += 1
        self.running += 1
        assert self.running == 1, "two tools at once"
        run = ToolRun(arguments, context)
        self.runs.put(run)
        try:
            return run.wait()
        finally:
            self.running -= 1


class Box(NothingKept):
    """bash (writes) and look (retry-safe)."""

    def __init__(self) -> None:
        self.tools = {
            "bash": ScriptedTool("bash", writes=True, group=ToolGroup.BASH),
            "look": ScriptedTool("look", retry_safe=True, group=ToolGroup.READ),
        }

    def specs(self, *, sub_agent: bool) -> tuple[ports.ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    def get(self, name: str) -> ScriptedTool | None:
        return self.tools.get(name)

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        if name not in self.tools:
            raise ports.InvalidToolInputError(f"there is no tool {name}")
        return {"raw": raw}


class Trap:
    """Fault points where a test may step in."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._lock = threading.Lock()
        self._armed: dict[str, list[Callable[[], object]]] = {}
        self._at: dict[int, Callable[[], object]] = {}

    def arm(self, point: str, action: Callable[[], object]) -> None:
        """Do this at the next pass of a point, once."""
        self._armed.setdefault(point, []).append(action)

    def arm_pass(self, number: int, action: Callable[[], object]) -> None:
        """Do this at the so-manieth pass of any point, from 0."""
        self._at[number] = action

    def hit(self, point: str) -> None:
        with self._lock:
            actions = [self._at.pop(len(self.passed), None)]
            self.passed.append(point)
            if self._armed.get(point):
                actions.append(self._armed[point].pop(0))
        for action in actions:
            if action is not None:
                action()


class Hold:
    """An action for a fault point: blocks the thread that passes it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._released.wait(PATIENCE)

    def wait(self) -> None:
        """Wait until a thread is blocked."""
        assert self.reached.wait(PATIENCE)

    def release(self) -> None:
        self._released.set()


class ShakyStore:
    """A store that fails while a test wants it to: before a commit, or after it, as if it had failed."""

    def __init__(self, store: ports.Store) -> None:
        self.inner = store
        self.down = False
        self.deaf = False
        """Reads fail as well."""
        self.lies = 0
        """How many commits will be carried out and reported as failed."""
        self.refusals = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        if self.deaf:
            self.refusals.release()
            raise ports.StoreUnavailableError("the disk is gone")
        return getattr(self.inner, name)

    def commit(self, *parts: ports.Commit, urgent: bool = False) -> None:
        if self.down or self.deaf:
            self.refusals.release()
            raise ports.StoreUnavailableError("the disk is full")
        self.inner.commit(*parts, urgent=urgent)
        if self.lies:
            self.lies -= 1
            self.refusals.release()
            raise ports.StoreUnavailableError("was it written?")


class World:
    """Everything one server has, driven from a test."""

    def __init__(self, store: Any, **settings: Any) -> None:
        self.store = store
        self.truth: ports.Store = store.inner if isinstance(store, ShakyStore) else store
        """What is really stored, whatever the actors get to see."""
        self.model = settings.pop("model", None) or ScriptedModel()
        self.small: Any = settings.pop("small", None)
        self.box = settings.pop("box", None) or Box()
        self.hub = settings.pop("hub", None) or EventHub()
        self.faults = Trap()
        self.services = in_memory(
            models=OneModelCatalog(self.model, self.small),
            toolbox=self.box,
            store=store,
            bus=self.hub,
            faults=self.faults,
            limits=settings.pop("limits", Limits(retry_base_ms=1)),
            **settings,
        )
        self.clock, self.timers = self.services.clock, self.services.timers
        self.supervisor = Supervisor(self.services)

    def close(self) -> None:
        self.supervisor.stop(0)
        self.timers.close()

    def create(self, **fields: Any) -> Talk:
        fields.setdefault("approval_policy", ApprovalPolicy.AUTO)
        record = self.supervisor.create(messages.CreateConversationCommand("tester", "/tmp", **fields)).result(PATIENCE)
        return Talk(self, record.id)


class Talk:
    """One conversation as a test talks to it."""

    def __init__(self, world: World, conversation_id: str) -> None:
        self.world = world
        self.id = conversation_id
        self._news = threading.Condition()
        self._watch = world.hub.attach(conversation_id, self._wake)

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def ask(self, request: Any) -> Any:
        return self.world.supervisor.ask(self.id, request).result(PATIENCE)

    def send(self, text: str, **fields: Any) -> messages.SendMessageResult:
        answer = self.ask(messages.SendMessageCommand(text, **fields))
        assert isinstance(answer, messages.SendMessageResult)
        return answer

    def cancel(self, **fields: Any) -> messages.CancelConversationResult:
        answer = self.ask(messages.CancelConversationCommand(**fields))
        assert isinstance(answer, messages.CancelConversationResult)
        return answer

    def exchange(self) -> Exchange:
        """The next model request."""
        return self.world.model.exchanges.get(timeout=PATIENCE)

    def asks(self, text: str, **fields: Any) -> Exchange:
        """Say something; the model request that it leads to."""
        self.send(text, **fields)
        return self.exchange()

    def answer(self, text: str, kind: type[Any] = Idle) -> Any:
        """Answer the next model request with a text, and wait for what comes of it."""
        self.exchange().say(text)
        return self.rest(kind)

    def turn(self, text: str, answer: str, kind: type[Any] = Idle) -> Any:
        """Say something that is answered with a text."""
        self.send(text)
        return self.answer(answer, kind)

    def tool(self, name: str = "bash") -> ToolRun:
        """The next run of a tool."""
        return self.world.box.tools[name].runs.get(timeout=PATIENCE)

    def starts(self, call: ToolUse, text: str = "go", **fields: Any) -> ToolRun:
        """Say something that the model answers with a call; the run of its tool."""
        self.asks(text, **fields).call(call)
        return self.tool(call.name)

    @property
    def record(self) -> ports.ConversationRecord:
        record = self.world.truth.load(self.id)
        assert record is not None
        return record

    @property
    def state(self) -> State:
        return self.record.state

    def events(self, after: int = 0) -> tuple[ports.StoredEvent, ...]:
        return self.world.truth.events(self.id, after=after, limit=100_000)

    def found(self, kind: type[Durable], after: int = 0) -> list[Any]:
        return [event.notification for event in self.events(after) if isinstance(event.notification, kind)]

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true`, looking again whenever the conversation publishes."""
        with self._news:
            while not true():
                self._watch.read(self.record.revision)
                if not true():
                    assert self._news.wait(PATIENCE), f"never came true; the state is {self.state}"

    def rest(self, kind: type[Any]) -> Any:
        """Wait for a state of this class; the chain must be valid there."""
        self.until(lambda: isinstance(self.state, kind))
        self.check()
        return self.state

    def check(self) -> None:
        """What is stored must be whole; a receipt that is committed meanwhile makes it look again."""
        record, found = None, []
        while record != self.record:
            record, found = self.record, self._faults()
        assert found == []

    def _faults(self) -> list[Any]:
        record, truth = self.record, self.world.truth
        revisions = [event.revision for event in self.events()]
        begins = record.revision + 1 - len(revisions)  # 1, unless it is a fork
        gaps = [] if revisions == list(range(begins, record.revision + 1)) else [revisions]
        history = truth.history(self.id, record.state.ledger.seq)
        return [*violations(history), *gaps, *findings(truth, record), *differences(truth, record)]

    def texts(self) -> list[str]:
        """All plain text and tool output in the history, without what only the model sees."""
        return [
            str(getattr(block, "text", "") or getattr(block, "output", ""))
            for message in self.world.truth.history(self.id, self.record.state.ledger.seq)
            if not message.meta
            for block in message.content
        ]


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Makes worlds over a store, and ends them all."""
    made: list[World] = []

    def make(store: Any = None, **settings: Any) -> World:
        made.append(World(store or new_store(), **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()
    eventually(lambda: not ActorRegistry.get_all(), "every actor and every runner has stopped")


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def family(make_world: Callable[..., World]) -> World:
    """A world whose model and tools are those of tests.integration.actors.family."""
    return make_world(model=FamilyModel(), box=FamilyBox())


@pytest.fixture
def hold() -> Iterator[Hold]:
    made = Hold()
    yield made
    made.release()


@pytest.fixture
def shaky(make_world: Callable[..., World]) -> World:
    """A world over a store that can fail: `shaky.store`."""
    return make_world(ShakyStore(new_store()))
