"""Two servers on one store: what one of them does once the other owns a conversation, and how it is taken over."""

import logging
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from actors.conversation.pipeline import LoadedConversation, taken_over
from actors.core.content import ToolUse
from actors.core.context import Limits, Mode
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import UserMessage
from actors.core.notifications import BackgroundJobChanged, RunStop
from actors.core.states import BackgroundJob, Completed, Failed, Idle, JobStatus, LlmRequesting, ToolExecuting
from actors.maintenance.retention import Housekeeper, Retention
from actors.messages import (
    ArchiveConversationCommand,
    CancelConversationCommand,
    DeleteConversationCommand,
    SendMessageCommand,
    SetModeCommand,
    UpdateConversationCommand,
)
from actors.ports import FencedError, NotOwnerError, Owner, ToolOutput
from tests.integration.actors.conftest import Hold, ShakyStore, Talk, World
from tests.integration.actors.family import FamilyBox, FamilyModel, child, tasks
from tests.integration.actors.nodes import FakeNode, all_gone
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import SharedDatabase

FIRST, SECOND = Owner(1, "first", "127.0.0.1:1"), Owner(2, "second", "127.0.0.1:2")
BASH = ToolUse("t1", "bash", '{"cmd": "ls"}')


class Pair:
    """Two servers on one database."""

    def __init__(
        self, make_world: Callable[..., World], shared: SharedDatabase, shaky: bool = False, family: bool = False
    ) -> None:
        self.shared, self.reader = shared, shared.reader
        parts: dict[str, Any] = {"limits": Limits(retry_base_ms=1), "idle_seconds": 3_600.0}
        self.worlds: list[Any] = []
        for owner in (FIRST, SECOND):
            store: Any = self.shared.node(owner.incarnation)
            store = ShakyStore(store) if shaky and owner is FIRST else store
            if family:
                parts |= {"model": FamilyModel(), "box": FamilyBox()}
            world = make_world(store, cluster=FakeNode(), node=f"{owner.name}-{owner.incarnation}", **parts)
            world.services.cluster.on_taken = world.supervisor.wake
            self.worlds.append(world)
        self.first, self.second = self.worlds

    def take_over(self, *ids: str) -> None:
        """The second server declares the first one dead, and takes these over with their families."""
        self.shared.kill(FIRST.incarnation)
        for id_ in ids:
            self.second.store.claim(id_, self.second.services.cluster.on_taken)

    def seen_by_second(self, talk: Talk) -> Talk:
        return Talk(self.second, talk.id)


@pytest.fixture
def make_pair(shared_database: SharedDatabase, make_world: Callable[..., World]) -> Callable[..., Pair]:
    """Makes one pair."""
    return partial(Pair, make_world, shared_database)


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()


def refused_as_not_owned(answer: Any) -> Owner | None:
    """Wait for an answer, which must be that another server owns the conversation; return which."""
    error = answer.exception(PATIENCE)
    assert isinstance(error, NotOwnerError), repr(error)
    return error.owner


def begin_tool(talk: Talk) -> Any:
    """Begin a run whose tool does not end; return the tool's run."""
    run = talk.starts(BASH)
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    return run


def published(world: World, watch: Any) -> list[int]:
    """The revisions that a watcher has been given so far."""
    return [each.event.revision for each in watch.read(0, live_text=False).events]


def test_what_was_taken_over_comes_to_rest_and_its_last_owner_stops_its_work(pair: Pair) -> None:
    talk = pair.first.create()
    tool = begin_tool(talk)
    pair.take_over(talk.id)
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    assert taken.found(RunStop)[-1].detail == "restart"
    all_gone(pair.second)
    assert not tool.context.cancel.cancelled, "nothing has told the first server yet"
    head = taken.record
    assert refused_as_not_owned(pair.first.supervisor.ask(talk.id, UpdateConversationCommand(title="late"))) == SECOND
    assert tool.context.cancel.wait(PATIENCE)
    tool.reap.set()
    all_gone(pair.first)
    assert taken.record == head, "nothing of the last owner was written"
    taken.turn("again", "here")
    assert taken.texts()[-2:] == ["again", "here"]


def test_jobs_of_the_last_owner_are_lost_to_the_next_one(pair: Pair) -> None:
    talk = pair.first.create()
    run = talk.starts(BASH)
    job = BackgroundJob("b-1", "t1", "serve")
    run.context.job_changed(job)
    run.finish.put(ToolOutput("still running"))
    talk.answer("It runs.")
    pair.take_over(talk.id)
    second = pair.seen_by_second(talk)
    second.send("And now?")
    assert "b-1: ended with the server" in str(second.exchange().request.turns[-1])
    run.context.job_changed(msgspec.structs.replace(job, status=JobStatus.EXITED, exit_code=0))
    second.cancel()
    second.rest(Idle)
    assert [changed.job.status for changed in second.found(BackgroundJobChanged)] == [JobStatus.RUNNING, JobStatus.LOST]


def test_a_late_commit_is_refused_and_whoever_waits_gets_the_owner(pair: Pair, hold: Hold) -> None:
    talk = pair.first.create()
    exchange = talk.asks("go")
    talk.until(lambda: isinstance(talk.state, LlmRequesting))
    pair.first.faults.arm("commit.before", hold)
    exchange.say("too late")
    hold.wait()
    ask = pair.first.supervisor.ask
    waiting = [
        ask(talk.id, request)
        for request in (
            SendMessageCommand("more", delivery="follow_up"),
            SetModeCommand(Mode.UNRESTRICTED),
            ArchiveConversationCommand(True),
            CancelConversationCommand(),
            DeleteConversationCommand(force=True),
        )
    ]
    pair.take_over(talk.id)
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    head = taken.record
    hold.release()
    assert {refused_as_not_owned(answer) for answer in waiting} == {SECOND}
    all_gone(pair.first)
    assert taken.record == head
    assert "too late" not in taken.texts()
    assert refused_as_not_owned(ask(talk.id, SendMessageCommand("once more"))) == SECOND
    all_gone(pair.first)


def test_what_was_committed_is_published_late_in_order_and_no_tool_starts_after_the_lease(
    pair: Pair, hold: Hold
) -> None:
    talk = pair.first.create()
    watch = pair.first.hub.attach(talk.id, lambda: None)
    exchange = talk.asks("go")
    talk.until(lambda: isinstance(talk.state, LlmRequesting))
    pair.first.faults.arm("commit.after", hold)
    exchange.call(BASH)
    hold.wait()
    committed = talk.record.revision
    pair.first.services.cluster.lease.is_valid = False
    pair.take_over(talk.id)
    pair.seen_by_second(talk).rest(Idle)
    assert talk.record.revision > committed
    hold.release()
    all_gone(pair.first)
    revisions = published(pair.first, watch)
    assert revisions == list(range(1, revisions[-1] + 1))
    assert revisions[-1] == committed, "what it had committed, and nothing else"
    assert pair.first.box.tools["bash"].started == 0
    watch.close()


@pytest.mark.parametrize("point", ["effect.before.ExecuteTool", "tool.before"])
def test_a_tool_is_not_started_late(pair: Pair, hold: Hold, point: str) -> None:
    talk = pair.first.create()
    exchange = talk.asks("go")
    pair.first.faults.arm(point, hold)
    exchange.call(BASH)
    hold.wait()
    pair.first.services.cluster.lease.is_valid = False
    pair.take_over(talk.id)
    pair.seen_by_second(talk).rest(Idle)
    hold.release()
    all_gone(pair.first)
    assert pair.first.box.tools["bash"].started == 0


def test_while_the_lease_is_old_no_command_is_taken_but_a_cancel_and_a_tool_waits_until_it_is_valid(
    pair: Pair, hold: Hold
) -> None:
    lease = pair.first.services.cluster.lease
    talk = pair.first.create(mode=Mode.UNRESTRICTED)
    talk.send("go")
    pair.first.faults.arm("effect.before.ScheduleRetry", hold)
    lease.is_valid = False
    for request in (
        SetModeCommand(Mode.UNRESTRICTED),
        SendMessageCommand("more"),
        UpdateConversationCommand(title="x"),
    ):
        with pytest.raises(
            Rejected, match="lease expired", check=lambda error: error.reason is Reason.STORE_UNAVAILABLE
        ):
            talk.ask(request)
    talk.exchange().call(BASH)
    hold.wait()
    lease.is_valid = True
    hold.release()
    talk.tool().finish.put(ToolOutput("done"))
    exchange = talk.exchange()
    assert talk.texts()[-1] == "done"
    lease.is_valid = False
    talk.cancel()
    assert exchange.cancel.cancelled
    talk.rest(Idle)
    lease.is_valid = True
    talk.ask(SetModeCommand(Mode.UNRESTRICTED))


def test_a_family_is_taken_over_as_a_whole_whichever_of_it_is_called_for(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(family=True)
    talk = pair.first.create()
    talk.send(tasks("hang", "submit 42", "hang"))
    for number in (1, 3):
        pair.first.model.until_asked(f"{talk.id}-a{number}")
    child(talk, 2).rest(Completed)
    pair.shared.kill(FIRST.incarnation)
    called = Talk(pair.second, f"{talk.id}-a3")
    with pytest.raises(Rejected):
        called.ask(SendMessageCommand("are you there?"))  # which claims it, and with it the others
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    for number in (1, 3):
        assert child(taken, number).rest(Failed).kind is ErrorKind.INTERRUPTED
    all_gone(pair.second, f"{talk.id}-a1", f"{talk.id}-a3")
    heads = [pair.reader.load(id_) for id_ in (talk.id, f"{talk.id}-a1", f"{talk.id}-a2", f"{talk.id}-a3")]
    assert refused_as_not_owned(pair.first.supervisor.ask(talk.id, UpdateConversationCommand(title="late"))) == SECOND
    all_gone(pair.first)
    assert [pair.reader.load(head.id) for head in heads if head] == heads
    eventually(pair.first.model.at_rest, "no request is open")
    assert set(pair.first.box.forgotten) >= {talk.id, f"{talk.id}-a1", f"{talk.id}-a3"}


def test_a_command_that_was_committed_and_not_answered_is_not_doubled_by_the_next_owner(pair: Pair, hold: Hold) -> None:
    talk = pair.first.create()
    command = SendMessageCommand("once", request_id="r1", body_hash="h")
    pair.first.faults.arm("commit.after", hold)
    answer = pair.first.supervisor.ask(talk.id, command)
    hold.wait()
    pair.take_over(talk.id)
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    assert taken.ask(command).duplicate
    hold.release()
    wait([answer], PATIENCE)
    refused_as_not_owned(pair.first.supervisor.ask(talk.id, UpdateConversationCommand(title="x")))
    all_gone(pair.first)
    assert taken.texts().count("once") == 1


def test_a_start_can_wait_until_all_that_was_taken_over_is_idle(pair: Pair, hold: Hold) -> None:
    talk = pair.first.create()
    talk.asks("go")
    pair.second.faults.arm("commit.before", hold)
    pair.take_over(talk.id)
    hold.wait()
    assert not pair.second.supervisor.wait_until_woken(0)
    hold.release()
    assert pair.second.supervisor.wait_until_woken(PATIENCE)
    assert isinstance(talk.state, Idle)


def test_what_was_taken_before_the_start_is_recovered_at_the_start_by_its_actor(pair: Pair, hold: Hold) -> None:
    talk = pair.first.create()
    talk.asks("go")
    pair.shared.kill(FIRST.incarnation)
    pair.second.faults.arm("commit.before", hold)
    assert pair.second.store.claim(talk.id) is not None  # which nobody is told of yet
    answer = pair.second.supervisor.ask(talk.id, UpdateConversationCommand(title="early"))
    hold.wait()
    assert pair.second.supervisor.start() == (talk.id,)
    hold.release()
    assert answer.result(PATIENCE).title == "early"
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    assert len(taken.found(RunStop)) == 1


def test_a_waking_is_tried_again_until_the_store_takes_it(
    shared_database: SharedDatabase, make_world: Callable[..., World]
) -> None:
    first = make_world(shared_database.node(FIRST.incarnation))
    store = ShakyStore(shared_database.node(SECOND.incarnation))
    second = make_world(store, cluster=FakeNode())
    talk = first.create()
    talk.asks("go")
    shared_database.kill(FIRST.incarnation)
    store.down = True
    second.supervisor.wake((talk.id,))
    assert store.refusals.acquire(timeout=PATIENCE)
    store.down = False
    Talk(second, talk.id).rest(Idle)
    all_gone(second)


def test_an_outcome_that_waited_for_the_store_is_dropped_once_the_conversation_is_lost(
    make_pair: Callable[..., Pair],
) -> None:
    pair = make_pair(shaky=True)
    talk = pair.first.create()
    exchange = talk.asks("go")
    talk.until(lambda: isinstance(talk.state, LlmRequesting))
    pair.first.store.down = True
    exchange.say("too late")
    assert pair.first.store.refusals.acquire(timeout=PATIENCE)
    pair.take_over(talk.id)
    pair.seen_by_second(talk).rest(Idle)
    pair.first.store.down = False
    all_gone(pair.first)
    assert "too late" not in talk.texts()


def test_a_commit_of_unknown_result_is_not_repeated_by_an_owner_that_has_lost(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(shaky=True)
    talk = pair.first.create()
    pair.first.store.lies = 1
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.STORE_UNAVAILABLE):
        talk.send("written?", request_id="r1", body_hash="h")
    pair.take_over(talk.id)
    taken = pair.seen_by_second(talk)
    answer = taken.send("written?", request_id="r1", body_hash="h")
    assert answer.duplicate
    all_gone(pair.first)
    taken.check()
    assert taken.texts().count("written?") == 1


def test_a_deletion_that_waits_for_a_tool_is_refused_and_nothing_is_deleted(pair: Pair) -> None:
    talk = pair.first.create()
    tool = begin_tool(talk)
    deletion = pair.first.supervisor.ask(talk.id, DeleteConversationCommand(force=True))
    assert tool.context.cancel.wait(PATIENCE)
    pair.take_over(talk.id)
    tool.reap.set()
    assert refused_as_not_owned(deletion) == SECOND
    all_gone(pair.first)
    assert pair.reader.load(talk.id) is not None
    taken = pair.seen_by_second(talk)
    taken.ask(DeleteConversationCommand())
    assert pair.reader.load(talk.id) is None


def test_a_conversation_is_not_taken_back_before_its_tools_have_ended(pair: Pair) -> None:
    talk = pair.first.create()
    tool = begin_tool(talk)
    pair.shared.release(FIRST.incarnation)
    pair.second.store.claim(talk.id, pair.second.services.cluster.on_taken)
    pair.seen_by_second(talk).rest(Idle)
    assert refused_as_not_owned(pair.first.supervisor.ask(talk.id, UpdateConversationCommand(title="x"))) == SECOND
    assert tool.context.cancel.wait(PATIENCE)
    all_gone(pair.second)
    pair.shared.release(SECOND.incarnation)
    again = pair.first.supervisor.ask(talk.id, SendMessageCommand("again"))
    assert refused_as_not_owned(again) == SECOND
    tool.reap.set()
    all_gone(pair.first)
    talk.turn("again", "back")


def test_a_refused_command_is_the_end_of_a_copy_that_another_server_has_claimed_meanwhile(
    make_pair: Callable[..., Pair],
) -> None:
    pair = make_pair(shaky=True)
    talk = pair.first.create()
    pair.first.store.down = True
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.STORE_UNAVAILABLE):
        talk.send("not written")
    pair.take_over(talk.id)
    pair.first.store.down = False
    all_gone(pair.first)


def test_the_loser_of_a_bug_drops_the_conversation_too(pair: Pair, hold: Hold) -> None:
    talk = pair.first.create()
    exchange = talk.asks("go")
    talk.until(lambda: isinstance(talk.state, LlmRequesting))

    def bug() -> None:
        hold()
        raise ZeroDivisionError("a bug before the commit")

    pair.first.faults.arm("commit.before", bug)
    exchange.say("hi")
    hold.wait()
    pair.take_over(talk.id)
    pair.seen_by_second(talk).rest(Idle)
    hold.release()
    all_gone(pair.first)


def test_a_dead_server_creates_nothing_and_forks_nothing(pair: Pair) -> None:
    pair.shared.kill(FIRST.incarnation)
    with pytest.raises(NotOwnerError):
        pair.first.create()
    all_gone(pair.first)


def test_a_server_that_stops_leaves_alone_what_it_has_lost(pair: Pair) -> None:
    talk = pair.first.create()
    talk.asks("go")
    pair.take_over(talk.id)
    taken = pair.seen_by_second(talk)
    taken.rest(Idle)
    head = taken.record
    pair.first.supervisor.stop(0)
    assert taken.record == head


def test_housekeeping_leaves_to_others_what_is_theirs(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    talk = pair.first.create()
    for number in range(3):
        talk.ask(UpdateConversationCommand(title=f"title {number}"))
    talk.ask(ArchiveConversationCommand(True))
    retention = Retention(events_days=1e-9, events_min=1, archived_days=1e-9)

    def keep(world: World) -> None:
        Housekeeper(world.store, world.supervisor, world.clock, retention).sweep()

    kept = len(talk.events())
    eventually(lambda: pair.first.clock.now_ms() > talk.record.updated_at + 2, "some time has passed")
    keep(pair.second)
    assert len(talk.events()) == kept
    assert [line for line in caplog.records if line.levelno >= logging.ERROR] == []
    keep(pair.first)
    assert pair.reader.load(talk.id) is None


def test_a_step_like_ones_own_of_another_owner_is_not_taken_for_ones_own(world: World) -> None:
    talk = world.create()
    record = talk.record
    message = UserMessage(at=5, message_id="m1", text="the same at the same time")
    first, second = (
        LoadedConversation(services, taken_over(record, services.node))
        for services in (replace(world.services, node="first"), replace(world.services, node="second"))
    )
    for loaded in (first, second):
        unit = loaded.begin()
        unit.run(message)
        if loaded is first:
            loaded.commit(unit)
            loaded.record = record  # as if the store had said that it failed
            loaded.commit(unit)
        else:
            with pytest.raises(FencedError):
                loaded.commit(unit)
