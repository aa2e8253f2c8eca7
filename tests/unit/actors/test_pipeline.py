"""A change on its way from the core to the store, and what is kept of histories."""

import random
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actors import ports
from actors.adapters.store.sqlite.store import open_store
from actors.conversation import creation, settings
from actors.conversation.pipeline import ConversationPipeline, LoadedConversation
from actors.core.content import Delivery, Image, Message, MessageType, Text, ToolSuccess, ToolUse, Usage
from actors.core.context import Action, ApprovalRule, ConvContext, Mode
from actors.core.effects import ExecuteTool, RequestLlm
from actors.core.errors import Rejected
from actors.core.events import LlmResponse, LlmStreamStarted, SetMode, ToolComplete, UserCancel, UserMessage
from actors.core.history import Room
from actors.core.notifications import ContextWarning, MessageAdded, RunStop, StateChanged, StopReason
from actors.core.states import Idle, LlmPhase, LlmRequesting
from actors.maintenance.verify import Replay
from actors.messages import (
    CreateConversationCommand,
    Created,
    EffectOutcome,
    SettingsChanged,
    TreeReaped,
    UpdateConversationCommand,
)
from actors.runners import request_builder
from actors.runners.request_builder import HistoryCache
from actors.runtime.services import Services
from tests.property.drive import a_context
from tests.property.tape import Tape
from tests.property.test_verify_and_replay import live
from tests.property.written import WrittenWorld
from tests.support.stores import new_store

# Draft, commit, adopt: all of it or nothing, and everybody sees the same numbers.


RULE = ApprovalRule("r1", Action.ALLOW, tool="bash")


class Failing:
    """A store in front of a real one: it fails as often as a test says, before or after the commit."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.before = 0
        self.after = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, *parts: ports.Commit, urgent: bool = False) -> None:
        if self.before:
            self.before -= 1
            raise ports.StoreUnavailableError("disk full")
        self._store.commit(*parts, urgent=urgent)
        if self.after:
            self.after -= 1
            raise ports.StoreUnavailableError("it was written, but nobody can tell")


class Bus:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[Any] = []

    def publish(self, conversation_id: str, events: Any, record: Any) -> None:
        self.published.extend(events)


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def store() -> Failing:
    return Failing(new_store())


@pytest.fixture
def machine(services: Services, store: Failing, bus: Bus) -> LoadedConversation:
    ours: Any = {"store": store, "bus": bus}
    services = replace(services, **ours)
    services.toolbox.tools["bash"] = lambda context: None  # type: ignore[attr-defined]
    record, commit = creation.new_conversation(services, "c1", CreateConversationCommand("p", "/tmp"), 1)
    store.commit(commit)
    return LoadedConversation(services, record)


def message(text: str = "hello", at: int = 2) -> UserMessage:
    return UserMessage(at, f"m-{text}", text)


def run(machine: LoadedConversation, event: Any) -> tuple[Any, ...]:
    unit = machine.begin()
    unit.run(event)
    return machine.commit(unit)


def answer(*content: Any, end_turn: bool = True) -> LlmResponse:
    return LlmResponse(3, "c1:r1", 1, content or (Text("hi"),), end_turn, Usage(10, 5))


def test_a_chain_is_one_commit_with_a_step_for_each_transition(
    machine: LoadedConversation, store: Failing, bus: Bus
) -> None:
    effects = run(machine, message())
    assert effects == (RequestLlm("c1:r1", 1, "known", 1),)
    assert isinstance(machine.state, LlmRequesting)
    rows = store.transitions("c1", after_step=1, limit=9)
    assert [(row.step, row.first_revision, len(row.notifications)) for row in rows] == [(2, 1, 2), (3, 3, 1)]
    assert [type(event.notification) for event in bus.published] == [MessageAdded, StateChanged, StateChanged]
    assert store.verify("c1") == ()


def test_memory_is_what_the_store_has_and_revisions_have_no_gap(
    machine: LoadedConversation, store: Failing, bus: Bus
) -> None:
    for event in (message(), LlmStreamStarted(3, "c1:r1", 1), answer(), message("again", 4), UserCancel(5)):
        run(machine, event)
        assert msgspec.structs.replace(store.load("c1"), log_hash="") == machine.record
    assert [event.revision for event in bus.published] == list(range(1, machine.record.revision + 1))
    assert tuple(bus.published) == store.events("c1", after=0, limit=100)
    assert machine.state == Idle(machine.state.ledger)


def test_a_window_that_becomes_known_counts_from_the_next_event_on(
    services: Services, machine: LoadedConversation, store: Failing, bus: Bus
) -> None:
    """It is logged with the event that it was judged by."""
    known = ports.ModelInfo("known", "Known", "tests", "demo", 100_000, 8_000, 15)
    run(machine, message())
    services.models.info = known  # type: ignore[attr-defined]
    run(machine, answer())
    assert [type(event.notification) for event in bus.published].count(ContextWarning) == 1
    assert machine.context.usable_window == 15
    assert store.verify("c1") == ()


def test_a_draft_is_nothing_until_it_is_applied(machine: LoadedConversation, bus: Bus) -> None:
    before = machine.record
    unit = machine.begin()
    unit.run(message())
    assert unit.entries
    assert len(unit.find(StateChanged)) == 2
    assert machine.record is before
    assert bus.published == []


def test_a_commit_that_fails_leaves_no_trace_and_the_same_draft_fits_later(
    machine: LoadedConversation, store: Failing, bus: Bus
) -> None:
    before, stored = machine.record, store.load("c1")
    unit = machine.begin()
    unit.run(message())
    store.before = 2
    for _ in range(2):
        with pytest.raises(ports.StoreUnavailableError):
            machine.commit(unit)
        assert machine.record is before
        assert store.load("c1") == stored
        assert bus.published == []
    assert machine.commit(unit)
    assert [event.revision for event in bus.published] == [1, 2, 3]


def test_something_else_in_its_place_is_not_taken_for_its_own(machine: LoadedConversation, store: Failing) -> None:
    store.after = 1
    with pytest.raises(ports.StoreUnavailableError):
        run(machine, message("one"))
    with pytest.raises(ports.FencedError):
        run(machine, message("two"))
    assert machine.state == Idle()


def test_a_refused_or_ignored_event_changes_nothing(machine: LoadedConversation, store: Failing, bus: Bus) -> None:
    run(machine, message())
    before, published = machine.record, len(bus.published)
    unit = machine.begin()
    with pytest.raises(Rejected):
        unit.run(message("busy"))
    assert not unit.entries
    assert run(machine, LlmResponse(3, "c1:r9", 1, (Text("stale"),), True)) == ()
    assert (machine.record, len(bus.published)) == (before, published)


def test_a_state_is_entered_when_its_name_changes(machine: LoadedConversation) -> None:
    run(machine, message())
    run(machine, LlmStreamStarted(30, "c1:r1", 1))
    assert (machine.record.state_updated_at, machine.record.updated_at) == (2, 30)
    run(machine, UserMessage(40, "s", "steer", delivery=Delivery.STEER))
    assert machine.record.state_updated_at == 2
    run(machine, UserCancel(50))
    assert machine.record.state_updated_at == 50


def contexts(store: Failing) -> list[ConvContext | None]:
    rows = store.transitions("c1", after_step=1, limit=99)
    return [msgspec.json.decode(row.context, type=ConvContext) if row.context else None for row in rows]


def test_the_context_is_journalled_with_the_first_step_that_sees_it(
    machine: LoadedConversation, store: Failing
) -> None:
    run(machine, message())
    run(machine, answer())
    first = machine.context
    assert contexts(store) == [first, None, None]
    unit = machine.begin()
    settings.update(machine._services, unit, UpdateConversationCommand(title="same context"), 4)
    settings.update(machine._services, unit, UpdateConversationCommand(labels={}), 4)
    machine.commit(unit)
    unit = machine.begin()
    unit.change(SettingsChanged(4, ("approval_rules",)), 4, (), approval_rules=(RULE,))
    unit.set_context(machine._services.context_of(unit.record))
    machine.commit(unit)
    run(machine, message("again", 5))
    assert contexts(store)[3:] == [None, None, machine.context, None]
    assert machine.context.approval_rules == (RULE,)


def test_a_change_of_mode_is_seen_by_the_steps_that_follow(machine: LoadedConversation, store: Failing) -> None:
    machine.context = msgspec.structs.replace(machine.context, restriction_available=True)
    run(machine, SetMode(2, Mode.RESTRICTED))
    assert machine.context.mode is machine.record.mode is Mode.RESTRICTED
    run(machine, message("m", 3))
    seen = [context.mode if context else None for context in contexts(store)]
    assert seen == [Mode.UNRESTRICTED, Mode.RESTRICTED, None]


class Performed(list[Any]):
    """In the place of the executor: the effects that it is to perform."""

    def __init__(self) -> None:
        self.rights = self

    def set(self, mode: Mode) -> None:
        pass

    def committed(self, record: Any, context: Any, messages: Any) -> None:
        pass

    def compute(self, call: ExecuteTool, record: ports.ConversationRecord, context: Any) -> ToolComplete | None:
        if call.name != "think":
            return None
        done = ToolSuccess(call.tool_use_id, "Noted.")
        return ToolComplete(record.updated_at, call.tool_use_id, call.execution_id, done)

    def perform(self, effect: Any, record: Any, context: Any) -> None:
        self.append(effect)


@pytest.fixture
def pipeline(machine: LoadedConversation) -> ConversationPipeline:
    executor: Any = Performed()
    made = ConversationPipeline(machine._services, executor, "c1")
    made.loaded = machine
    return made


STARTED = EffectOutcome(LlmStreamStarted(3, "c1:r1", 1))


THINKING = [ToolUse(f"t{number}", name, "{}") for number, name in enumerate(("think", "think", "bash", "think"), 1)]


def test_calls_that_only_compute_share_the_commit_of_what_starts_them_up_to_one_that_does_more(
    machine: LoadedConversation, pipeline: ConversationPipeline, store: Failing
) -> None:
    run(machine, message())
    before = machine.record.step
    for kind in ("before", "after"):  # the failed commits are tried again; the second one is written
        setattr(store, kind, 1)
        with pytest.raises(ports.StoreUnavailableError):
            pipeline.prepare((EffectOutcome(answer(*THINKING, end_turn=False)),)).commit()
        assert list(pipeline.executor) == [], "nothing starts before its commit"  # type: ignore[call-overload]
    pipeline.prepare((EffectOutcome(answer(*THINKING, end_turn=False)),)).commit()
    assert [effect.tool_use_id for effect in pipeline.executor] == ["t3"]  # type: ignore[attr-defined]
    assert machine.record.step == before + 3
    pipeline.prepare((EffectOutcome(ToolComplete(5, "t3", 3, ToolSuccess("t3", "done"))),)).commit()
    assert [type(effect) for effect in pipeline.executor] == [ExecuteTool, RequestLlm]  # type: ignore[attr-defined]
    results = [block for each in store.history("c1", 99) for block in each.content if isinstance(block, ToolSuccess)]
    assert [result.tool_use_id for result in results] == ["t1", "t2", "t3", "t4"]
    assert store.verify("c1") == ()


def test_an_outcome_that_raises_does_not_take_those_before_it_along(
    machine: LoadedConversation, pipeline: ConversationPipeline, bus: Bus
) -> None:
    run(machine, message())
    wrong = EffectOutcome(message("no outcome"))
    prepared = pipeline.prepare((STARTED, wrong, STARTED))
    assert prepared.entries == 1
    prepared.commit()
    assert isinstance(machine.state, LlmRequesting)
    assert machine.state.phase is LlmPhase.STREAMING
    with pytest.raises(Rejected):
        pipeline.prepare((wrong, STARTED))


class Trap:
    def __init__(self, point: str) -> None:
        self.point = point

    def hit(self, point: str) -> None:
        if point == self.point:
            self.point = ""
            raise ZeroDivisionError(point)


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "publish.after"])
def test_wherever_it_breaks_memory_and_store_agree(
    machine: LoadedConversation, store: Failing, bus: Bus, point: str
) -> None:
    object.__setattr__(machine._services, "faults", Trap(point))
    with pytest.raises(ZeroDivisionError):
        run(machine, message())
    assert msgspec.structs.replace(store.load("c1"), log_hash="") == machine.record
    run(machine, UserCancel(3) if machine.record.step > 1 else message())
    assert store.verify("c1") == ()


# Messages for model requests are read once, or taken over as they are committed.


def message_at(sequence: int) -> Message:
    return Message(f"m{sequence}", sequence, MessageType.USER, (Text(str(sequence)),), sequence)


class Shelf:
    """A store that only has messages, and remembers what was read."""

    def __init__(self, count: int) -> None:
        self.messages_there = [message_at(n) for n in range(1, count + 1)]
        self.reads: list[int] = []

    def messages(self, conversation_id: str, *, after: int, limit: int) -> tuple[Message, ...]:
        self.reads.append(after)
        return tuple(self.messages_there[after : after + limit])


def test_each_message_is_read_once_and_later_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_builder, "PAGE", 2)
    shelf = Shelf(5)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    assert [m.sequence for m in history.through(3)] == [1, 2, 3]
    assert [m.sequence for m in history.through(3)] == [1, 2, 3]
    assert shelf.reads == [0, 2]
    shelf.messages_there.append(message_at(6))
    assert [m.sequence for m in history.through(6)] == [1, 2, 3, 4, 5, 6]
    assert shelf.reads == [0, 2, 4]


def test_a_history_that_is_shorter_than_asked_is_never_shown_to_a_model() -> None:
    with pytest.raises(ports.StoreDamagedError, match="message 3 of conversation c"):
        HistoryCache(Shelf(2), "c").through(9)  # type: ignore[arg-type]


def test_what_was_just_committed_is_not_read_back() -> None:
    shelf = Shelf(0)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    for sequence in range(1, 5):
        history.extend([message_at(sequence)])
        assert history.through(sequence)[-1] == message_at(sequence)
    assert shelf.reads == []


def test_messages_behind_a_gap_are_read() -> None:
    """An owner that took the conversation over was not there when the first messages were committed."""
    shelf = Shelf(5)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    history.extend([message_at(5)])
    assert [m.sequence for m in history.through(5)] == [1, 2, 3, 4, 5]
    history.extend([message_at(6), message_at(8)])
    history.extend([message_at(6)])
    assert [m.sequence for m in history.through(6)] == [1, 2, 3, 4, 5, 6]
    assert shelf.reads == [0]


PLAIN = ports.ModelInfo("m", "m", "p", "anthropic", 1_000, 100, 900)
OTHER = msgspec.structs.replace(PLAIN, name="other")
SEEING = msgspec.structs.replace(PLAIN, images=True)


def history_of(count: int) -> HistoryCache:
    return HistoryCache(Shelf(count), "c")  # type: ignore[arg-type]


def test_a_view_is_what_a_new_cache_gives_whatever_was_asked_before() -> None:
    """A model changes and changes back; an abandoned request is built after the one that replaced it."""
    messages = [
        msgspec.structs.replace(message_at(number), type=MessageType.AGENT if number % 2 == 0 else MessageType.USER)
        for number in range(1, 10)
    ]
    used = history_of(0)
    used.extend(messages)
    wide, small = Room(), Room(usable=900)
    asked = ((PLAIN, wide, 3), (PLAIN, wide, 7), (PLAIN, small, 5), (PLAIN, wide, 7), (OTHER, wide, 8))
    for model, room, sequence in (*asked, (PLAIN, wide, 9), (SEEING, small, 9)):
        fresh = history_of(0)
        fresh.extend(messages)
        assert used.view(sequence, model, room, no_size).turns == fresh.view(sequence, model, room, no_size).turns


def no_size(_image: Image) -> int:
    return 0


def test_an_image_of_settled_turns_is_measured_once() -> None:
    measured: list[str] = []

    def size_of(image: Image) -> int:
        measured.append(image.attachment)
        return 10

    history = history_of(0)
    for number in range(1, 40, 2):
        shot = Image(f"sha256-{number}", "image/png", 1, 1)
        history.extend([msgspec.structs.replace(message_at(number), content=(shot,))])
        history.extend([msgspec.structs.replace(message_at(number + 1), type=MessageType.AGENT)])
        history.view(number + 1, SEEING, Room(), size_of)
    assert len(measured) == 20


# A journal run again: what a faulty machine wrote is found, although every row of it is whole.


Row = ports.StoredTransition
Journal = list[ports.StoredTransition]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[Journal, ports.ConversationRecord]:
    with closing(open_store(tmp_path_factory.mktemp("life"))) as store:
        world = WrittenWorld(store, a_context(tape := Tape(random.Random(22).randbytes(700))))
        live(world, tape)
        return list(store.transitions("c", after_step=0, limit=10_000)), world.record


def replayed(journal: Journal) -> tuple[Replay, dict[int, str]]:
    """The replay at its end, and the differences by step."""
    replay = Replay()
    steps = [replay.step(row) for row in journal]
    return replay, {step.step: step.difference for step in steps if step.difference}


def altered(journal: Journal, index: int, **fields: object) -> dict[int, str]:
    """The differences of a journal in which one row says something else."""
    return replayed([*journal[:index], msgspec.structs.replace(journal[index], **fields), *journal[index + 1 :]])[1]


def index_of(journal: Journal, fits: Callable[[Row], bool]) -> int:
    return next(index for index, row in enumerate(journal) if fits(row))


def tells(kind: type) -> Callable[[Row], bool]:
    return lambda row: any(isinstance(told, kind) for told in row.notifications)


def input_is(tag: str) -> Callable[[Row], bool]:
    return lambda row: msgspec.json.decode(row.event)["type"] == tag


def test_a_faithful_journal_has_no_differences_and_leads_to_the_state(
    life: tuple[Journal, ports.ConversationRecord],
) -> None:
    journal, record = life
    replay, differences = replayed(journal)
    assert differences == {}
    assert replay.end(record) == ""


@pytest.mark.parametrize("kind", [MessageAdded, RunStop, StateChanged])
def test_other_events_than_the_machines_are_shown(life: tuple[Journal, ports.ConversationRecord], kind: type) -> None:
    journal, _ = life
    index = index_of(journal, tells(kind))
    row = journal[index]
    without = tuple(told for told in row.notifications if not isinstance(told, kind))
    missing = altered(journal, index, notifications=without)
    assert list(missing) == [row.step]
    stop = RunStop("c:77", StopReason.COMPLETED)
    wrong = tuple(stop if isinstance(told, kind) else told for told in row.notifications)
    assert "differs: replayed" in altered(journal, index, notifications=wrong)[row.step]
    more = altered(journal, index, notifications=(*row.notifications, stop))
    assert more == {row.step: f"it has {len(row.notifications) + 1} events instead of {len(row.notifications)}"}


def test_a_row_that_was_left_out_changes_what_follows(life: tuple[Journal, ports.ConversationRecord]) -> None:
    journal, record = life
    index = index_of(journal, tells(MessageAdded))
    replay, differences = replayed([*journal[:index], *journal[index + 1 :]])
    assert differences
    assert replay.end(record)


def test_what_settles_a_state_must_follow_at_once(life: tuple[Journal, ports.ConversationRecord]) -> None:
    journal, _ = life
    index = index_of(journal, input_is("begin_llm"))
    assert "expected BeginLlm, not" in replayed([*journal[:index], *journal[index + 1 :]])[1][journal[index + 1].step]


def test_an_input_that_changes_nothing_or_is_refused_does_not_belong_there(
    life: tuple[Journal, ports.ConversationRecord],
) -> None:
    journal, _ = life
    begin, start = (journal[index_of(journal, input_is(tag))] for tag in ("begin_llm", "user_message"))
    assert replayed([journal[0], begin])[1][begin.step] == "the state or the context before it is unknown"
    late = msgspec.structs.replace(
        start, event=b'{"type":"retry_timeout","at":%d,"request_id":"c:r9","attempt":9}' % start.at
    )
    assert replayed([journal[0], late])[1][start.step].startswith("RetryTimeout changes nothing")
    busy = msgspec.structs.replace(start, step=journal[-1].step + 1)
    until = index_of(journal, input_is("begin_llm")) + 1
    assert "UserMessage is refused: agent is busy" in replayed([*journal[:until], busy])[1][busy.step]


def test_a_context_with_another_mode_is_shown(life: tuple[Journal, ports.ConversationRecord]) -> None:
    journal, record = life
    index = [index for index, row in enumerate(journal) if row.context is not None][1]
    context = journal[index].context
    assert context is not None
    there = b"restricted" if b'"mode":"unrestricted"' in context else b"unrestricted"
    other = re.sub(rb'"mode":"\w+"', b'"mode":"%s"' % there, context)
    differences = altered(journal, index, context=other)
    assert "its context has the mode" in differences[journal[index].step]
    mode = Mode.RESTRICTED if record.mode is Mode.UNRESTRICTED else Mode.UNRESTRICTED
    assert "the stored mode is" in replayed(journal)[0].end(msgspec.structs.replace(record, mode=mode))


@pytest.mark.parametrize("event", [b"{", b'{"type":"nonsense","at":1}', b'{"type":"user_cancel"}', b"[]"])
def test_what_cannot_be_read_is_a_difference(life: tuple[Journal, ports.ConversationRecord], event: bytes) -> None:
    journal, _ = life
    assert altered(journal, 3, event=event)[journal[3].step] == "its input or context cannot be read"


def test_creations_and_kill_receipts_report_only_what_they_may(life: tuple[Journal, ports.ConversationRecord]) -> None:
    journal, _ = life
    stop = next(told for row in journal for told in row.notifications if isinstance(told, RunStop))
    born = msgspec.json.encode(Created(journal[4].at, "local"))
    assert "created only once" in altered(journal, 4, event=born)[journal[4].step]
    assert "events are not all messages" in altered(journal, 0, notifications=(stop,))[1]
    index = index_of(journal, input_is("tree_reaped"))
    receipt = msgspec.json.encode(TreeReaped(journal[index].at, "another"))
    assert "differs" in altered(journal, index, event=receipt)[journal[index].step]
