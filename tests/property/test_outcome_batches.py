"""Outcomes that wait together, and those of calls that only compute, become one commit.

Rows, events and effects are those of one commit for each.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, Self

import pytest
from hypothesis import given

from actors.adapters.store.sqlite.store import PeeweeStore
from actors.conversation import pipeline as pipelines
from actors.conversation.unit_of_work import UnitOfWork
from actors.core.content import Message
from actors.core.context import ConvContext, Mode
from actors.core.effects import ActEffect, ExecuteTool
from actors.core.errors import InvalidTransition, Reason
from actors.core.events import Event, LlmAborted, LlmError, LlmResponse, Restart, ToolComplete, UsageReported
from actors.core.states import Idle
from actors.messages import EffectOutcome
from actors.ports import Commit, ConversationRecord, LogEntry, ModelInfo, StoreUnavailableError, ToolSpec
from actors.runtime.services import Services
from tests.property.drive import a_context, walk
from tests.property.profiles import everything_was_seen, profile
from tests.property.tape import Tape, tapes
from tests.property.world import COMMANDS, World
from tests.support.catalogs import OneModelCatalog
from tests.support.services import in_memory
from tests.support.stores import StoreProxy, new_store
from tests.support.toolboxes import NothingKept

EVERYTHING = 100_000
ALONE = (*COMMANDS, Restart)
"""What never waits with outcomes. A cancel and a fault do, once the store has refused them."""
ENDINGS = (LlmAborted, LlmError, LlmResponse)


class RememberedWorld(World):
    """A world that keeps the events of its life, also those that were refused or ignored."""

    def __init__(self, context: ConvContext) -> None:
        super().__init__(context)
        self.events: list[Event] | None = []

    def fork(self) -> Self:
        twin = super().fork()
        twin.events = None
        return twin

    def apply(self, event: Event) -> bool | Reason:
        if self.events is not None:
            self.events.append(event)
        return super().apply(event)


class Executor:
    """Notes what was committed, the effects that it is to perform, and what the conversation was by then."""

    def __init__(self) -> None:
        self.performed: list[tuple[ActEffect, ConversationRecord, ConvContext]] = []
        self.rights = self
        self.mode: Mode | None = None
        self.messages: list[Message] = []
        self.computed: dict[ExecuteTool, ToolComplete] = {}
        """The outcomes of the calls that only compute."""

    def set(self, mode: Mode) -> None:
        self.mode = mode

    def committed(self, record: ConversationRecord, context: ConvContext, messages: Sequence[Message]) -> None:
        self.messages += messages

    def compute(self, call: ExecuteTool, record: ConversationRecord, context: ConvContext) -> ToolComplete | None:
        return self.computed.get(call)

    def perform(self, effect: ActEffect, record: ConversationRecord, context: ConvContext) -> None:
        self.performed.append((effect, record, context))


class Bus:
    def __init__(self) -> None:
        self.published: list[Any] = []

    def publish(self, conversation_id: str, events: Sequence[Any], record: ConversationRecord) -> None:
        self.published += events


class CountingStore(StoreProxy):
    """Counts commits; fails before or after some of them if a tape says so."""

    def __init__(self, inner: PeeweeStore, tape: Tape | None) -> None:
        super().__init__(inner)
        inner.delete("c")
        self.commits = 0
        self._tape = tape

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        if self._tape is not None and self._tape.one_in(5):
            raise StoreUnavailableError("before")
        self.inner.commit(*parts, urgent=urgent)
        self.commits += 1
        if self._tape is not None and self._tape.one_in(5):
            raise StoreUnavailableError("after")


class Played:
    """A conversation that the events of a life are played to."""

    def __init__(self, services: Services, store: PeeweeStore, context: ConvContext, tape: Tape | None = None) -> None:
        self.store, self.bus, self.executor = CountingStore(store, tape), Bus(), Executor()
        catalog = OneModelCatalog(Model(context.usable_window))
        mine: Any = {"store": self.store, "bus": self.bus, "models": catalog}
        services = replace(services, **mine)
        record = ConversationRecord(
            id=context.conversation_id, slug="", cwd="/work", state=Idle(), state_updated_at=1, created_at=1,
            updated_at=1, mode=context.mode, model="demo", principal="local", step=1, epoch=1,
        )  # fmt: skip
        self.store.inner.commit(Commit(record, 0, log=(LogEntry(1, 1, b"{}", 1, ()),), create=True))
        executor: Any = self.executor
        self.pipeline = pipelines.ConversationPipeline(services, executor, context.conversation_id)
        self.pipeline.loaded = pipelines.LoadedConversation(services, record)
        self.pipeline.loaded.context = context
        self.ended_at_once: dict[ExecuteTool, ToolComplete] = {}
        self.queue: pipelines.CommitRetries[Any] = pipelines.CommitRetries("c", self._prepare, lambda _: None)

    def _prepare(self, entries: Sequence[Any]) -> pipelines.Prepared:
        return self.pipeline.prepare(pipelines.sharing_commit(entries) or tuple(entries[:1]))

    def play_one_by_one(self, events: Sequence[Event]) -> None:
        """Each event in a unit of its own, without a queue; note the calls that end at once."""
        started: list[Any] = []
        for event in events:
            match [effect for effect, _, _ in started], event:
                case [ExecuteTool() as call], ToolComplete() if event.execution_id == call.execution_id:
                    self.ended_at_once[call] = event
            before = len(self.executor.performed)
            usage = getattr(event, "usage", None)
            if not self._command(event).entries and isinstance(event, ENDINGS) and usage is not None:
                self._command(UsageReported(event.at, usage, aside=False))
            started = self.executor.performed[before:]

    def play(self, events: Sequence[Event], tape: Tape) -> None:
        """Each command alone, once all outcomes before it are stored; of those as many at once as the tape has."""
        waiting = deque(events)
        while waiting:
            if isinstance(waiting[0], ALONE):
                self._until_stored()
                self._command(waiting.popleft())
                continue
            most = 1 + tape.number(7)
            batch = [*takewhile(lambda event: not isinstance(event, ALONE), islice(waiting, most))]
            for _ in batch:
                waiting.popleft()
            self.queue.enqueue(*map(EffectOutcome, batch))
        self._until_stored()

    def _command(self, event: Event) -> UnitOfWork:
        loaded = self.pipeline.load()
        unit = loaded.begin()
        with suppress(InvalidTransition):
            unit.run(event)
        while True:
            with suppress(StoreUnavailableError):
                self.pipeline.perform(loaded, unit)
                return unit

    def _until_stored(self) -> None:
        while not self.queue.flush():
            pass

    def seen(self) -> dict[str, Any]:
        """Everything that a commit leaves, and what was done after it."""
        loaded = self.pipeline.load()
        conversation_id = loaded.record.id
        return {
            "rows": self.store.transitions(conversation_id, after_step=0, limit=EVERYTHING),
            "events": self.store.events(conversation_id, after=0, limit=EVERYTHING),
            "messages": self.store.history(conversation_id, loaded.record.state.ledger.seq),
            "record": (loaded.record, loaded.context, self.executor.mode),
            "stored": self.store.load(conversation_id),
            "committed": self.executor.messages,
            "published": self.bus.published,
            "effects": [each for each in self.executor.performed if each[0] not in self.executor.computed],
        }


class NoTools(NothingKept):
    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        return ()


class Model:
    """A model with the window of the life that is played; it is asked nothing."""

    def __init__(self, window: int) -> None:
        self.respond: Any = None
        self.info = ModelInfo("demo", "Demo", "tests", "demo", 200_000, 8_000, window)


@pytest.fixture
def services() -> Iterator[Services]:
    made = in_memory(models=None, toolbox=NoTools())
    yield made
    made.timers.close()


@pytest.mark.parametrize("shaky", [False, True])
@pytest.mark.parametrize("sub_agent", [False, True])
def test_outcomes_that_share_a_commit_leave_what_they_leave_one_by_one(
    services: Services, sub_agent: bool, shaky: bool
) -> None:
    seen: Counter[str] = Counter()
    stores = new_store(), new_store()

    @profile(200)
    @given(tapes(60, 200), tapes(20, 100))
    def live(life: Tape, batches: Tape) -> None:
        context = a_context(life, sub_agent=sub_agent)
        world = RememberedWorld(context)
        walk(world, life)
        assert world.events is not None
        alone = Played(services, stores[0], context)
        together = Played(services, stores[1], context, batches if shaky else None)
        alone.play_one_by_one(world.events)
        together.executor.computed = alone.executor.computed = alone.ended_at_once
        together.play(world.events, batches)
        assert together.seen() == alone.seen()
        assert together.store.commits <= alone.store.commits
        seen["fewer commits"] += together.store.commits < alone.store.commits
        seen["computed"] += len(alone.ended_at_once)
        seen.update(type(event).__name__ for event in world.events)

    live()
    assert seen["fewer commits"]
    assert seen["computed"]
    assert everything_was_seen({"LlmStreamStarted", "LlmResponse", "ToolComplete", "RetryTimeout"}, seen)
