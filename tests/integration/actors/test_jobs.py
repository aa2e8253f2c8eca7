"""Background jobs and the conversation they belong to: who ends them, who is told, and what a deletion waits for."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from msgspec.structs import replace

from actors import messages
from actors.conversation import conversation_actor
from actors.conversation.conversation_actor import LEFTOVER_PROCESSES
from actors.core.content import ToolUse
from actors.core.context import Limits, Mode, wider
from actors.core.errors import Reason, Rejected
from actors.core.notifications import BackgroundJobChanged, ToolTreeReaped
from actors.core.states import BackgroundJob, Idle, JobStatus, LlmRequesting, ToolExecuting, ToolPhase
from actors.core.tool_run import KillReceipt
from actors.ports import FencedError, SandboxReport, Store, ToolOutput, ToolTransientError
from tests.integration.actors.conftest import Box, Hold, ShakyStore
from tests.support.patience import PATIENCE, eventually
from tests.support.services import NoSandbox
from tests.support.stores import new_store

World = Any

BASH = ToolUse("t1", "bash", "{}")


class JobBox(Box):
    """Jobs that a test starts, and lets die."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, list[str]] = {}
        self.dying: list[Callable[[], None]] = []
        self.told = threading.Semaphore(0)
        """Released when jobs are told to end."""
        self.forgotten: list[tuple[str, bool]] = []
        """Conversations, each with whether it was still stored."""
        self.store: Store | None = None
        self.leaked = False

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Handles with an r are of restricted jobs."""
        handles = self.running.get(conversation_id, ())
        return tuple(handle for handle in handles if wider_than is None or wider(_mode(handle), wider_than))

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        handles = self.jobs(conversation_id, wider_than)
        for handle in handles:
            receipt = KillReceipt(f"call-of-{handle}", 1, (100, 101), 7, self.leaked)
            self.dying.append(functools.partial(self._die, conversation_id, handle, ended, receipt))
        self.told.release()
        return handles

    def _die(
        self, conversation_id: str, handle: str, ended: Callable[[KillReceipt], None], receipt: KillReceipt
    ) -> None:
        if handle in self.running[conversation_id]:
            self.running[conversation_id].remove(handle)
        ended(receipt)

    def forget(self, conversation_id: str) -> None:
        assert self.store is not None
        self.forgotten.append((conversation_id, self.store.load(conversation_id) is not None))

    def let_die(self, count: int = 100) -> None:
        for _ in range(min(count, len(self.dying))):
            self.dying.pop(0)()


class Cell(NoSandbox):
    """A machine that can restrict tools."""

    report = SandboxReport("A", 7, pid_namespace=True)


def _mode(handle: str) -> Mode:
    return Mode.RESTRICTED if handle.startswith("r") else Mode.UNRESTRICTED


@pytest.fixture
def yard(make_world: Callable[..., World]) -> World:
    """A world whose actors leave as soon as they may."""
    return yard_over(make_world, new_store(), idle_seconds=0.0)


def yard_over(make_world: Callable[..., World], store: Any, **settings: Any) -> World:
    box = JobBox()
    box.store = store
    return make_world(store, box=box, **settings)


def started(world: World, *handles: str) -> Any:
    """A conversation with these jobs."""
    talk = world.create()
    world.box.running[talk.id] = list(handles)
    return talk


def reaped(talk: Any, count: int) -> list[ToolTreeReaped]:
    talk.until(lambda: len(talk.found(ToolTreeReaped)) >= count)
    return list(talk.found(ToolTreeReaped))


# --- cancel -------------------------------------------------------------------------------------------------------


def test_a_cancel_leaves_the_jobs_and_names_them(yard: World) -> None:
    talk = started(yard, "b-1", "b-2")
    receipt = talk.cancel()
    assert (receipt.no_op, receipt.ended_jobs, receipt.surviving_jobs) == (True, (), ("b-1", "b-2"))
    exchange = talk.asks("go")
    receipt = talk.cancel()
    assert exchange.cancel.cancelled
    assert (receipt.no_op, receipt.ended_jobs, receipt.surviving_jobs) == (False, (), ("b-1", "b-2"))


def test_an_idle_conversation_s_jobs_are_ended_on_request_and_each_end_is_reported(yard: World) -> None:
    talk = started(yard, "b-1", "b-2")
    receipt = talk.cancel(kill_jobs=True)
    assert (receipt.no_op, receipt.ended_jobs, receipt.surviving_jobs) == (False, ("b-1", "b-2"), ())
    assert receipt.run == ""
    assert talk.found(ToolTreeReaped) == []
    assert yard.supervisor.live_count() == 1, "somebody has to be there to record it"
    yard.box.let_die()
    assert reaped(talk, 2) == [
        ToolTreeReaped("call-of-b-1", (100, 101), 7, leaked=False),
        ToolTreeReaped("call-of-b-2", (100, 101), 7, leaked=False),
    ]
    talk.check()
    assert talk.cancel(kill_jobs=True).no_op


def test_an_end_is_reported_once_though_it_was_requested_twice(yard: World) -> None:
    talk = started(yard, "b-1")
    for _ in range(2):
        assert talk.cancel(kill_jobs=True).ended_jobs == ("b-1",)
    yard.box.let_die()
    yard.box.running[talk.id] = ["b-2"]
    talk.cancel(kill_jobs=True)
    yard.box.let_die()
    assert [each.tool_use_id for each in reaped(talk, 2)] == ["call-of-b-1", "call-of-b-2"]


def test_a_job_that_exits_while_it_is_killed_is_reported_too(yard: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the one who told it knows how many there are."""
    talk = started(yard, "b-1")
    end_jobs = yard.box.end_jobs

    def at_once(conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None) -> tuple[str, ...]:
        handles: tuple[str, ...] = end_jobs(conversation_id, ended, wider_than)
        yard.box.let_die()
        return handles

    monkeypatch.setattr(yard.box, "end_jobs", at_once)
    assert talk.cancel(kill_jobs=True).ended_jobs == ("b-1",)
    assert len(reaped(talk, 1)) == 1


def test_jobs_are_ended_together_with_the_running_call(yard: World) -> None:
    talk = started(yard, "b-1")
    run = talk.starts(BASH)
    receipt = talk.cancel(kill_jobs=True)
    assert (receipt.tool_use_ids, receipt.ended_jobs) == (("t1",), ("b-1",))
    run.reap.set()
    yard.box.let_die()
    assert {each.tool_use_id for each in reaped(talk, 2)} == {"t1", "call-of-b-1"}


def test_a_cancel_of_a_run_that_is_not_in_progress_spares_the_jobs(yard: World) -> None:
    talk = started(yard, "b-1")
    run = talk.send("go").run
    talk.answer("done")
    receipt = talk.cancel(run_id=run, kill_jobs=True)
    assert (receipt.no_op, receipt.surviving_jobs) == (True, ("b-1",))
    second = talk.send("again").run
    talk.exchange()
    assert talk.cancel(run_id=run, kill_jobs=True).surviving_jobs == ("b-1",)
    assert talk.cancel(run_id=second, kill_jobs=True).ended_jobs == ("b-1",)
    yard.box.let_die()
    reaped(talk, 1)


def test_jobs_are_ended_though_the_store_takes_nothing(make_world: Callable[..., World]) -> None:
    world = yard_over(make_world, ShakyStore(new_store()))
    talk = started(world, "b-1")
    exchange = talk.asks("go")
    world.store.down = True
    receipt = talk.cancel(kill_jobs=True)
    assert (receipt.recorded, receipt.ended_jobs) == (False, ("b-1",))
    assert exchange.cancel.cancelled
    world.box.let_die()
    world.store.down = False
    assert [each.tool_use_id for each in reaped(talk, 1)] == ["call-of-b-1"]
    talk.rest(Idle)


# --- the end of a job ---------------------------------------------------------------------------------------------

SERVE = BackgroundJob("b-1", "t1", "serve")
ENDED = replace(SERVE, status=JobStatus.EXITED, exit_code=3)
LOST = replace(SERVE, status=JobStatus.LOST)


def let_go(world: World) -> tuple[Any, Callable[[BackgroundJob], None]]:
    """An idle conversation with a running job, and how that job reports its end."""
    talk = started(world, "b-1")
    run = talk.starts(BASH)
    run.context.job_changed(SERVE)
    run.finish.put(ToolOutput("still running"))
    talk.answer("It runs.")
    return talk, run.context.job_changed


def job_changes(talk: Any) -> list[BackgroundJob]:
    return [changed.job for changed in talk.found(BackgroundJobChanged)]


def last_turn(talk: Any) -> str:
    exchange = talk.asks("And now?")
    exchange.say("I see.")
    talk.rest(Idle)
    return str(exchange.request.turns[-1])


def test_the_end_of_a_job_is_an_event_at_once_and_news_to_the_agent_with_its_next_request(yard: World) -> None:
    talk, report = let_go(yard)
    assert job_changes(talk) == [SERVE]
    assert yard.supervisor.live_count() == 1, "whose actor would leave, if there were no job"
    report(ENDED)
    talk.until(lambda: len(job_changes(talk)) == 2)
    assert job_changes(talk) == [SERVE, ENDED]
    eventually(lambda: yard.supervisor.live_count() == 0, "the end of its actor")
    assert "b-1: exit code 3: serve" in last_turn(talk)
    assert "b-1" not in last_turn(talk).replace("- b-1", "")
    talk.check()


def test_an_end_that_the_store_does_not_take_is_recorded_later(make_world: Callable[..., World]) -> None:
    world = yard_over(make_world, ShakyStore(new_store()))
    talk, report = let_go(world)
    world.store.down = True
    report(ENDED)
    assert world.store.refusals.acquire(timeout=PATIENCE)
    world.store.down = False
    talk.until(lambda: job_changes(talk) == [SERVE, ENDED])
    talk.check()


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_job_that_ended_with_a_killed_server_is_lost(make_world: Callable[..., World], looked_at: bool) -> None:
    world = yard_over(make_world, new_store())
    talk, _ = let_go(world)
    after = yard_over(make_world, world.store)
    assert after.supervisor.start() == ()
    again = type(talk)(after, talk.id)
    if looked_at:  # as a stream does whose client was there before
        after.supervisor.wake((talk.id,))
        again.until(lambda: job_changes(again) == [SERVE, LOST])
    assert "b-1: ended with the server" in last_turn(again)
    assert job_changes(again) == [SERVE, LOST]
    again.check()


def test_an_interrupted_run_and_its_jobs_are_recovered_together(make_world: Callable[..., World]) -> None:
    world = yard_over(make_world, new_store())
    talk, _ = let_go(world)
    talk.asks("more")
    after = yard_over(make_world, world.store)
    assert after.supervisor.start() == (talk.id,)
    again = type(talk)(after, talk.id)
    assert job_changes(again) == [SERVE, LOST]
    again.rest(Idle)


def test_a_stop_of_the_server_records_that_its_jobs_end(yard: World) -> None:
    talk, report = let_go(yard)
    yard.supervisor.stop(0)
    assert job_changes(talk) == [SERVE, LOST]
    report(ENDED)
    assert job_changes(talk) == [SERVE, LOST]
    talk.check()


def test_a_copy_that_is_read_again_keeps_the_jobs_that_run_here(yard: World) -> None:
    talk, report = let_go(yard)

    def fenced() -> None:
        raise FencedError

    yard.faults.arm("commit.before", fenced)
    with pytest.raises(Rejected):
        talk.ask(messages.UpdateConversationCommand(title="t"))
    talk.ask(messages.UpdateConversationCommand(title="t"))
    assert job_changes(talk) == [SERVE]
    report(ENDED)
    talk.until(lambda: job_changes(talk) == [SERVE, ENDED])
    talk.check()


# --- a tool of which nothing runs ---------------------------------------------------------------------------------


def test_a_tool_that_waits_for_its_next_attempt_is_cancelled_at_once(make_world: Callable[..., World]) -> None:
    world = yard_over(make_world, new_store(), limits=Limits(retry_base_ms=3_600_000))
    talk = world.create()
    talk.asks("go").call(ToolUse("t0", "look", "{}"), BASH)
    talk.tool("look").finish.put(ToolTransientError("no process", begun=True))
    talk.until(lambda: isinstance(talk.state, ToolExecuting) and talk.state.phase is ToolPhase.BACKOFF)
    assert talk.cancel().tool_use_ids == ("t0", "t1")
    talk.rest(Idle)
    talk.turn("next", "fine")
    assert [world.box.tools[name].started for name in ("look", "bash")] == [1, 0]


def test_a_tool_that_is_held_back_is_cancelled_at_once_and_never_begins(yard: World) -> None:
    talk = yard.create()
    dying = talk.starts(BASH)
    talk.cancel()
    talk.asks("next").call(ToolUse("t2", "look", "{}"))
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    assert talk.cancel().tool_use_ids == ("t2",)
    talk.rest(Idle)
    dying.reap.set()
    assert [each.tool_use_id for each in reaped(talk, 1)] == ["t1"]
    talk.asks("and now").call(ToolUse("t3", "look", "{}"))
    talk.tool("look").finish.put(ToolOutput("seen"))
    talk.answer("fine")
    assert yard.box.tools["look"].started == 1


# --- others that end jobs, or name them ---------------------------------------------------------------------------


def test_archiving_ends_the_jobs(yard: World) -> None:
    talk = started(yard, "b-1")
    talk.ask(messages.ArchiveConversationCommand(archived=True))
    yard.box.let_die()
    assert len(reaped(talk, 1)) == 1
    yard.box.running[talk.id] = ["b-2"]
    talk.ask(messages.ArchiveConversationCommand(archived=False))
    assert yard.box.jobs(talk.id) == ("b-2",)


def test_a_refused_archiving_ends_no_jobs(yard: World) -> None:
    talk = started(yard, "b-1")
    exchange = talk.asks("go")
    with pytest.raises(Rejected) as refusal:
        talk.ask(messages.ArchiveConversationCommand(archived=True))
    assert refusal.value.reason is Reason.AGENT_BUSY
    assert yard.box.dying == []
    exchange.say("done")
    talk.rest(Idle)


def test_a_change_of_mode_names_the_jobs_that_may_do_more_and_ends_them_if_asked(
    make_world: Callable[..., World],
) -> None:
    yard = yard_over(make_world, new_store(), idle_seconds=0.0, sandbox=Cell())
    talk = started(yard, "b-1", "r-2", "b-4")
    assert talk.ask(messages.SetModeCommand(Mode.UNRESTRICTED)).surviving_jobs == (), (
        "none of them may do more than that"
    )
    assert talk.ask(messages.SetModeCommand(Mode.RESTRICTED)).surviving_jobs == ("b-1", "b-4")
    assert yard.box.jobs(talk.id) == ("b-1", "r-2", "b-4")
    answer = talk.ask(messages.SetModeCommand(Mode.RESTRICTED, stop_running=True))
    assert (answer.ended_jobs, answer.surviving_jobs) == (("b-1", "b-4"), ())
    yard.box.let_die()
    assert [one.tool_use_id for one in reaped(talk, 2)] == ["call-of-b-1", "call-of-b-4"]
    assert yard.box.jobs(talk.id) == ("r-2",)


# --- deletion -----------------------------------------------------------------------------------------------------


def deleting(world: World, talk: Any) -> Future[Any]:
    """A deletion that has told everything to stop, and waits."""
    delete: Future[Any] = world.supervisor.ask(talk.id, messages.DeleteConversationCommand(force=True))
    assert world.box.told.acquire(timeout=PATIENCE)
    return delete


def test_a_deletion_waits_for_tool_and_jobs_and_accepts_no_commands(yard: World) -> None:
    talk = started(yard, "b-1")
    run = talk.starts(BASH)
    delete = deleting(yard, talk)
    assert run.context.cancel.wait(PATIENCE)
    for request in (
        messages.SendMessageCommand("anybody?"),
        messages.UpdateConversationCommand(title="t"),
        messages.SetModeCommand(Mode.RESTRICTED),
        messages.ArchiveConversationCommand(archived=True),
    ):
        with pytest.raises(messages.UnknownConversationError):
            talk.ask(request)
    assert talk.cancel().no_op
    run.reap.set()
    assert {each.tool_use_id for each in reaped(talk, 1)} == {"t1"}
    assert not delete.done()
    assert yard.store.load(talk.id) is not None
    assert yard.box.forgotten == []
    yard.box.let_die()
    assert delete.result(PATIENCE) == ()
    assert yard.store.load(talk.id) is None
    assert yard.box.forgotten == [(talk.id, False)]


def test_a_refused_deletion_ends_nothing(yard: World) -> None:
    talk = started(yard, "b-1")
    exchange = talk.asks("go")
    with pytest.raises(Rejected, match=r"cancel it first, or delete .* with force") as refusal:
        talk.ask(messages.DeleteConversationCommand())
    assert refusal.value.reason is Reason.AGENT_BUSY
    assert yard.box.jobs(talk.id) == ("b-1",)
    assert not exchange.cancel.cancelled
    exchange.say("done")
    talk.rest(Idle)


def test_every_request_for_the_deletion_is_answered(yard: World) -> None:
    talk = started(yard, "b-1")
    deletions = [deleting(yard, talk), deleting(yard, talk)]
    yard.box.let_die()
    assert [delete.result(PATIENCE) for delete in deletions] == [(), ()]


def test_what_does_not_die_in_time_is_left_behind_with_a_warning(yard: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_actor, "DELETE_WAIT_MS", 5)
    talk = started(yard, "b-1")
    assert deleting(yard, talk).result(PATIENCE) == (LEFTOVER_PROCESSES,)
    assert yard.store.load(talk.id) is None
    yard.box.let_die()  # nobody listens any more, and nothing comes back
    with pytest.raises(messages.UnknownConversationError):
        talk.send("anybody?")
    assert yard.store.load(talk.id) is None


def test_what_others_could_not_end_is_warned_of_too(yard: World) -> None:
    yard.box.leaked = True
    talk = started(yard, "b-1")
    delete = deleting(yard, talk)
    yard.box.let_die()
    assert delete.result(PATIENCE) == (LEFTOVER_PROCESSES,)


def test_a_deletion_that_the_store_does_not_take_leaves_an_intact_idle_conversation(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = new_store()
    store = ShakyStore(inner)
    world = yard_over(make_world, store)
    talk = started(world, "b-1")
    talk.asks("go")
    delete = deleting(world, talk)
    talk.until(lambda: isinstance(talk.state, Idle))
    store.deaf = True
    world.box.let_die()
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.STORE_UNAVAILABLE):
        delete.result(PATIENCE)
    store.deaf = False
    assert world.box.forgotten == []
    talk.until(lambda: isinstance(talk.state, Idle))
    talk.turn("still here", "yes")
    world.box.store = inner
    assert talk.ask(messages.DeleteConversationCommand()) == ()


def test_a_stop_of_the_server_finishes_a_deletion_or_says_that_it_did_not(yard: World) -> None:
    talk = started(yard, "b-1")
    delete = deleting(yard, talk)
    stopping = threading.Thread(target=yard.supervisor.stop, args=(PATIENCE,))
    stopping.start()
    assert not delete.done()
    yard.box.let_die()
    stopping.join(PATIENCE)
    assert delete.result(PATIENCE) == ()
    assert yard.store.load(talk.id) is None


@pytest.mark.parametrize("busy_with", [LlmRequesting, ToolExecuting])
def test_a_message_that_races_a_deletion_raises_nothing_from_the_dead(yard: World, hold: Hold, busy_with: type) -> None:
    """It comes between the end of the run and the end of the rows."""
    talk = started(yard, "b-1")
    exchange = talk.asks("go")
    if busy_with is ToolExecuting:
        exchange.call(BASH)
        talk.tool().reap.set()
    yard.faults.arm("delete.before", hold)
    delete = deleting(yard, talk)
    yard.box.let_die()
    hold.wait()
    late = [
        yard.supervisor.ask(talk.id, each)
        for each in (
            messages.SendMessageCommand("anybody?"),
            messages.CancelConversationCommand(kill_jobs=True),
            messages.DeleteConversationCommand(),
        )
    ]
    hold.release()
    assert delete.result(PATIENCE) == ()
    for answer in late:
        assert isinstance(answer.exception(PATIENCE), messages.UnknownConversationError)
    assert yard.store.load(talk.id) is None
    assert yard.store.events(talk.id, after=0, limit=10) == ()


@pytest.mark.parametrize("busy", [True, False])
def test_the_end_of_the_process_at_any_point_of_a_deletion_leaves_all_or_nothing(
    make_world: Callable[..., World], busy: bool
) -> None:
    def prepared() -> tuple[World, Any]:
        world = yard_over(make_world, new_store(), limits=Limits(retry_base_ms=1))
        talk = started(world, "b-1")
        if busy:
            talk.starts(BASH).reap.set()
        return world, talk

    world, talk = prepared()
    first = len(world.faults.passed)
    delete = deleting(world, talk)
    world.box.let_die()
    delete.result(PATIENCE)
    points = len(world.faults.passed) - first
    assert points >= 2
    outcomes = set()
    for number in range(points):
        world, talk = prepared()
        held = Hold()
        world.faults.arm_pass(len(world.faults.passed) + number, held)
        world.supervisor.ask(talk.id, messages.DeleteConversationCommand(force=True))
        for _ in range(2):
            world.box.told.acquire(timeout=0.2)
            world.box.let_die()
        held.wait()  # the process is dead from here on: what is stored now is all there is
        after = make_world(world.store, box=world.box)
        after.supervisor.start()
        record = after.store.load(talk.id)
        outcomes.add(record is None)
        again = type(talk)(after, talk.id)
        if record is None:
            with pytest.raises(messages.UnknownConversationError):
                again.send("anybody?")
        else:
            assert isinstance(record.state, Idle)
            again.check()
            again.turn("go on", "yes")
        held.release()
    assert outcomes == {True, False}


def test_a_tool_that_ends_by_itself_while_its_conversation_is_deleted_changes_nothing(yard: World, hold: Hold) -> None:
    talk = started(yard, "b-1")
    run = talk.starts(BASH)
    yard.faults.arm("tool.after", hold)
    run.finish.put(ToolOutput("late"))
    hold.wait()
    delete = deleting(yard, talk)
    yard.box.let_die()
    hold.release()
    assert delete.result(PATIENCE) == ()
    assert yard.store.load(talk.id) is None
