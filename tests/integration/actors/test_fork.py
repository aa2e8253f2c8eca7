"""Forks: another conversation with the history up to the end of a run, over real actors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import messages
from actors.conversation.forking import forked_conversation
from actors.core.content import Image, Message, MessageType, SystemKind, Text, ToolUse, Usage, text_of
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, Budget, ClientTool, FollowUpPolicy, Mode, Profile
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.history.chain import first_notices
from actors.core.notifications import StopReason
from actors.core.states import ContextExhausted, Error, Idle
from actors.ports import Attachment, ConversationRecord, RevisionTooOldError, Store, ToolOutput, date_of
from actors.ports.store import Selection
from tests.integration.actors.conftest import Calendar, Talk
from tests.integration.actors.test_modes import Cell
from tests.support.patience import PATIENCE
from tests.support.stores import new_store

World = Any
BASH = ToolUse("t1", "bash", "{}")


class ForkedTalk(Talk):
    """A fork, whose events begin after those of its origin."""

    def events(self, after: int = 0) -> Any:
        try:
            return super().events(after)
        except RevisionTooOldError as error:
            return super().events(error.oldest)


def fork(talk: Talk, run: str = "", **fields: Any) -> ForkedTalk:
    command = messages.ForkConversationCommand("tester", talk.id, run, **fields)
    record = talk.world.supervisor.create(command).result(PATIENCE)
    made = ForkedTalk(talk.world, record.id)
    made.check()
    return made


def refused(talk: Talk, reason: Reason, run: str = "") -> str:
    with pytest.raises(Rejected) as refusal:
        fork(talk, run)
    assert refusal.value.reason is reason
    return str(refusal.value)


def said(world: World, texts: int = 3, **fields: Any) -> Talk:
    """A conversation of so many runs."""
    talk = world.create(**fields)
    for number in range(1, texts + 1):
        talk.asks(f"question {number}").say(f"answer {number}", usage=Usage(number * 100, 10))
        talk.rest(Idle)
    assert isinstance(talk, Talk)
    return talk


def runs(talk: Talk) -> list[str]:
    return [run.stop.run for run in talk.world.truth.stopped_runs(talk.id, limit=100)]


def test_a_fork_goes_on_from_the_last_run_with_the_same_request_prefix(world: World) -> None:
    talk = world.create(title="Flowers", labels={"team": "blue"}, budget=Budget(conversation_tokens=5_000))
    exchange = talk.asks("question 1")
    exchange.call(BASH)
    talk.tool().finish.put(ToolOutput("there are files"))
    second = talk.exchange()
    second.say("answer 1", usage=Usage(4_000, 10))
    talk.rest(Idle)
    before = talk.record
    forked = fork(talk)
    assert talk.record == before, "the origin does not change"
    record = forked.record
    assert (record.title, record.labels, record.budget) == (before.title, before.labels, before.budget)
    assert (record.mode, record.model, record.cwd) == (before.mode, before.model, before.cwd)
    assert (record.profile.forked_from, record.profile.forked_at) == (talk.id, f"{talk.id}:1")
    assert record.slug != before.slug
    ledger = record.state.ledger
    assert (ledger.used_tokens, ledger.total_usage) == (4_010, Usage()), "what a fork spends counts from zero on"
    request = forked.asks("question 2")
    sent, now = second.request, request.request
    assert (now.system, now.tools) == (sent.system, sent.tools)
    assert now.cache_key == talk.id
    assert now.turns[: len(sent.turns)] == sent.turns
    assert now.request_id.startswith(f"{forked.id}:r")
    last = text_of(now.turns[-1].content)
    assert last.startswith("question 2")
    assert "files are as they are now" in last
    request.say("answer 2")
    forked.rest(Idle)
    assert forked.texts()[-1] == "answer 2"
    assert runs(forked) == [f"{forked.id}:1", f"{forked.id}:2"]
    assert runs(talk) == [f"{talk.id}:1"]


def test_a_fork_ends_where_it_is_asked_to_and_can_be_forked_again(world: World) -> None:
    talk = said(world)
    forked = fork(talk, f"{talk.id}:2", slug="second-try", title="Another")
    assert (forked.record.slug, forked.record.title) == ("second-try", "Another")
    assert forked.texts() == ["question 1", "answer 1", "question 2", "answer 2"]
    history = world.truth.history(forked.id, 100)
    assert all(message.id.startswith(forked.id) and message.run.startswith(forked.id) for message in history)
    forked.turn("another question", "another answer")
    assert runs(forked) == [f"{forked.id}:{number}" for number in (1, 2, 3)]
    again = fork(forked, f"{forked.id}:1")
    assert again.texts() == ["question 1", "answer 1"]
    assert again.record.profile.cache_key == talk.id, "all of a family share the provider's cache"
    assert again.record.profile.forked_from == forked.id


def test_a_busy_conversation_is_forked_where_it_last_ended_and_notices_nothing(world: World) -> None:
    talk = said(world, 1)
    exchange = talk.asks("question 2")
    talk.send("later", delivery="follow_up")
    step = talk.record.step
    forked = fork(talk)
    assert forked.texts() == ["question 1", "answer 1"]
    assert not forked.record.state.ledger.follows
    assert f"request cycle {talk.id}:2 has not ended" in refused(talk, Reason.CYCLE_RUNNING, f"{talk.id}:2")
    assert talk.record.step == step
    exchange.say("answer 2")
    talk.exchange().say("answer 3")
    talk.until(lambda: "answer 3" in talk.texts())


def test_an_error_is_forked_as_a_conversation_at_rest(world: World) -> None:
    talk = said(world, 1)
    talk.asks("question 2").fail(ErrorKind.AUTH, "no key")
    talk.rest(Error)
    forked = fork(talk)
    assert isinstance(forked.state, Idle)
    assert [run.stop.reason for run in world.truth.stopped_runs(forked.id, limit=9)][-1] is StopReason.ERROR
    forked.send("again")
    assert "no key" not in str(forked.exchange().request.turns)


def test_an_exhausted_conversation_is_forked_before_its_summary(world: World) -> None:
    talk = said(world, 2)
    talk.ask(messages.TriggerContinuationCommand())
    talk.answer("the summary", ContextExhausted)
    forked = fork(talk)
    assert isinstance(forked.state, Idle)
    assert forked.texts() == ["question 1", "answer 1", "question 2", "answer 2"]
    assert forked.record.continued_by == ""


def test_a_run_that_used_up_the_context_cannot_be_forked_at(world: World) -> None:
    talk = said(world, 1)
    talk.asks("go on").say(BASH, end_turn=False, usage=Usage(world.model.info.usable_window * 9 // 10))
    talk.answer("the summary", ContextExhausted)
    assert "earlier" in refused(talk, Reason.NOT_FORKABLE, f"{talk.id}:2")
    assert fork(talk).texts() == ["question 1", "answer 1"]


def test_a_fork_is_as_full_as_its_history_and_has_been_warned_of_it(world: World) -> None:
    talk = world.create()
    talk.asks("go on").say("much", usage=Usage(world.model.info.usable_window * 85 // 100))
    talk.rest(Idle)
    assert talk.record.state.ledger.warned
    assert fork(talk).state.ledger.warned


def test_an_interruption_of_a_later_run_is_none_of_the_copied_one() -> None:
    """Conversations of old were not told of theirs."""
    said = Message("c:2:3", 3, MessageType.USER, (Text("…"),), 1)
    told = Message("c:2:4", 4, MessageType.SYSTEM, (Text("…"),), 1, kind=SystemKind.INTERRUPTED)
    later = (said, told)
    for seen, kinds in ((later, []), (later[1:], [SystemKind.INTERRUPTED])):
        notices = first_notices(Mode.RESTRICTED, (), StopReason.INTERRUPTED, seen, 1)
        assert [notice.kind for notice in notices] == [*kinds, SystemKind.FORKED]


def test_a_history_that_fills_the_context_cannot_be_forked(world: World) -> None:
    talk = world.create()
    talk.asks("go on").say("long", usage=Usage(world.model.info.usable_window * 9 // 10))
    talk.exchange()  # the summary
    talk.cancel()
    talk.rest(Idle)
    assert "fills" in refused(talk, Reason.NOT_FORKABLE, f"{talk.id}:1")


def test_what_cannot_be_forked(world: World) -> None:
    talk = world.create()
    assert "nothing to fork" in refused(talk, Reason.NOT_FORKABLE)
    other = said(world, 1)
    with pytest.raises(messages.InvalidFieldError, match="has no such request cycle") as wrong:
        fork(talk, f"{other.id}:1")
    assert wrong.value.field == "request_cycle"
    with pytest.raises(messages.UnknownConversationError):
        fork(ForkedTalk(world, "nobody"))


def test_a_sub_agent_is_not_forked(family: World) -> None:
    talk = family.create()
    child = talk.ask(messages.SpawnSubAgentsCommand((messages.SpawnSubAgentsTask("submit 42"),))).sub_agents[0]
    talk.rest(Idle)
    refused(ForkedTalk(family, child), Reason.SUB_AGENT)


def test_an_archived_conversation_has_forks_that_are_not(world: World) -> None:
    talk = said(world, 1)
    talk.ask(messages.ArchiveConversationCommand(True))
    forked = fork(talk)
    assert forked.record.archived_at is None
    forked.turn("hello", "hi")


def test_the_model_is_told_of_the_mode_only_if_the_history_says_another(make_world: Callable[..., World]) -> None:
    world = make_world(sandbox=Cell())
    talk = said(world, 1)
    talk.ask(messages.SetModeCommand(Mode.UNRESTRICTED))
    talk.turn("question 2", "answer 2")
    early, late = fork(talk, f"{talk.id}:1"), fork(talk)
    assert early.record.mode is late.record.mode is Mode.UNRESTRICTED
    told = [notice.kind for notice in early.state.ledger.pending_notices]
    assert told == [SystemKind.MODE_UNRESTRICTED, SystemKind.FORKED]
    assert [notice.kind for notice in late.state.ledger.pending_notices] == [SystemKind.FORKED]
    talk.ask(messages.SetModeCommand(Mode.RESTRICTED))
    told = [notice.kind for notice in fork(talk, f"{talk.id}:2").state.ledger.pending_notices]
    assert told == [SystemKind.MODE_RESTRICTED, SystemKind.FORKED]


def test_the_date_that_the_model_knows_is_that_of_the_copied_messages(make_world: Callable[..., World]) -> None:
    clock = Calendar()
    world = make_world(clock=clock)
    talk = said(world, 1)
    for days in (1, 2):
        clock.days = days
        forked = fork(talk)
        forked.turn("question 2", "answer 2")
        told = [message.content for message in world.truth.history(forked.id, 100) if message.meta]
        assert told == [(Text(f"The date is now {date_of(clock.now_ms())} (UTC)."),)]
        forked.check()


@pytest.mark.parametrize("told", [False, True])
def test_the_model_is_told_that_the_last_run_was_cut_off(world: World, told: bool) -> None:
    talk = said(world, 1)
    talk.asks("question 2")
    talk.cancel()
    talk.rest(Idle)
    if told:
        talk.turn("question 3", "answer 3")
    forked = fork(talk, f"{talk.id}:2")
    assert [notice.kind for notice in forked.state.ledger.pending_notices] == [
        SystemKind.INTERRUPTED,
        SystemKind.FORKED,
    ]
    forked.turn("question 4", "answer 4")
    kinds = [message.kind for message in world.truth.history(forked.id, 100) if message.type is MessageType.SYSTEM]
    assert kinds == [SystemKind.INTERRUPTED, SystemKind.FORKED]


def test_a_request_id_makes_one_fork(world: World) -> None:
    talk = said(world, 1)
    command = messages.ForkConversationCommand("tester", talk.id, request_id="55555555-5555-4555-8555-555555555555")
    made = {world.supervisor.create(command).result(PATIENCE).id for _ in range(3)}
    assert len(made) == 1


class Told:
    """A store whose record of a conversation is another one."""

    def __init__(self, store: Store, record: ConversationRecord) -> None:
        self._store, self._record = store, record

    def load(self, _: str) -> ConversationRecord:
        return self._record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_begins_afresh_and_that_all_else_is_taken_over(world: World) -> None:
    talk = said(world, 1)
    chosen = Profile("In rhymes.", replaces_prompt=True, tools=("look",), client_tools=(ClientTool("mine"),))
    chosen = msgspec.structs.replace(chosen, forked_from="g", forked_at="g:4", cache_key="key")
    fresh = {"slug": "s", "state_updated_at": 1, "created_at": 2, "updated_at": 3, "archived_at": 4, "node": "n"}
    fresh |= {"continued_from": "g", "continued_by": "h", "epoch": 5, "log_hash": "l"}
    taken: dict[str, Any] = {
        "title": "Flowers",
        "labels": {"a": "b"},
        "system_prompt": "You.",
        "approval_rules": (ApprovalRule("r", Action.ALLOW, tool="x"),),
    }
    taken |= {"approval_policy": ApprovalPolicy.ASK_ALL, "follow_up_policy": FollowUpPolicy.COMPLETED_ONLY}
    taken |= {"budget": Budget(1, 2, 3), "mode": Mode.UNRESTRICTED}
    origin = msgspec.structs.replace(talk.record, profile=chosen, **fresh, **taken)
    services: Any = SimpleNamespace(**vars(world.services) | {"store": Told(world.truth, origin)})
    services.context_of = world.services.context_of
    record, commit = forked_conversation(services, "f", messages.ForkConversationCommand("tester", talk.id), 9)
    assert same_fields(origin, record) == fields_of(origin) - fresh.keys() - {
        "id",
        "profile",
        "state",
        "step",
        "revision",
    }
    assert same_fields(chosen, record.profile) == fields_of(chosen) - {"forked_from", "forked_at"}
    own = {"id", "run", "request_id"}
    history = world.truth.history(talk.id, 100)
    for theirs, ours in zip(history, commit.messages, strict=True):
        assert same_fields(theirs, ours) - own == fields_of(theirs) - own
        assert not same_fields(theirs, ours) & {"id", "run"}


def fields_of(struct: Any) -> set[str]:
    return set(struct.__struct_fields__)


def same_fields(one: Any, other: Any) -> set[str]:
    return {name for name in fields_of(one) if getattr(one, name) == getattr(other, name)}


def test_forks_at_the_same_moment_are_whole_also_while_the_origin_is_deleted(world: World) -> None:
    talk = said(world, 3)
    commands = [
        messages.ForkConversationCommand("tester", talk.id, slug="one-of-them" if each < 4 else "")
        for each in range(10)
    ]
    asked = [world.supervisor.create(command) for command in commands[:8]]
    deleted = world.supervisor.ask(talk.id, messages.DeleteConversationCommand())
    asked += [world.supervisor.create(command) for command in commands[8:]]
    refusals = [answer.exception(PATIENCE) for answer in asked]
    assert deleted.result(PATIENCE) == ()
    taken = [error for error in refusals[:4] if isinstance(error, Rejected)]
    gone = [error for error in refusals if isinstance(error, messages.UnknownConversationError)]
    made = [answer.result(0).id for answer, error in zip(asked, refusals, strict=True) if error is None]
    assert all(error.reason is Reason.SLUG_TAKEN for error in taken)
    assert len(taken) + len(gone) + len(made) == len(asked)
    for each in made:
        forked = ForkedTalk(world, each)
        forked.check()
        assert forked.texts()[-1] == "answer 3"
    assert {record.id for record in world.truth.list(Selection("tester"), limit=100).records} == set(made)
    with pytest.raises(messages.UnknownConversationError):
        fork(talk)


@pytest.mark.parametrize("read", ["stopped_runs", "history"])
@pytest.mark.parametrize("wanted", ["", ":1"])
def test_an_origin_that_is_deleted_between_two_reads_is_not_found(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, wanted: str, read: str
) -> None:
    store = new_store()
    world = make_world(store)
    talk = said(world, 1)
    original = getattr(store, read)

    def delete_and_read(conversation_id: str, *args: Any, **page: Any) -> Any:
        store.delete(conversation_id)
        return original(conversation_id, *args, **page)

    monkeypatch.setattr(store, read, delete_and_read)
    with pytest.raises(messages.UnknownConversationError):
        fork(talk, wanted and talk.id + wanted)


def test_a_fork_outlives_its_origin_with_its_images(world: World) -> None:
    talk = world.create()
    shot = Image("sha256-1", "image/png", 1, 2)
    world.store.put_attachment(talk.id, Attachment("sha256-1", "image/png", b"bytes", 1, 2))
    world.store.put_attachment(talk.id, Attachment("sha256-2", "image/png", b"of later", 1, 2))
    talk.asks("what is this?", images=(shot,)).say("an image")
    talk.rest(Idle)
    forked = fork(talk)
    assert talk.ask(messages.DeleteConversationCommand()) == ()
    forked.check()
    kept = world.store.attachment(forked.id, "sha256-1")
    assert kept == Attachment("sha256-1", "image/png", b"bytes", 1, 2)
    assert world.store.attachment(forked.id, "sha256-2") is None
    forked.send("and now?")
    assert shot in forked.exchange().request.turns[0].content


def test_the_events_before_a_fork_are_those_of_its_origin(world: World) -> None:
    talk = said(world, 1)
    forked = fork(talk)
    ended = world.truth.stopped_runs(talk.id, limit=1)[0].revision
    assert forked.record.revision == ended
    with pytest.raises(RevisionTooOldError) as old:
        world.truth.events(forked.id, after=0, limit=10)
    assert old.value.oldest == ended
    assert world.truth.events(forked.id, after=ended, limit=10) == ()
    forked.turn("question 2", "answer 2")
    assert world.truth.events(forked.id, after=ended, limit=1)[0].revision == ended + 1
