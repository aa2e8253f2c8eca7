"""A server that ends and comes back: in order, or not."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from actors.conversation.supervisor import Supervisor
from actors.core.content import ToolUse
from actors.core.context import ApprovalPolicy
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import ApprovalDecision, ApprovalResolved, Durable, RunStop, ToolTreeReaped
from actors.core.states import AwaitingToolApproval, Error, Idle, ToolExecuting
from actors.messages import SendMessageCommand, UpdateConversationCommand
from actors.ports import ConversationRecord
from actors.ports.telemetry import Telemetry

World = Any


def reborn(world: World) -> Any:
    """Another server over the same store, as after kill -9."""
    successor = type(world)(world.store)
    successor.restored = successor.supervisor.start()
    return successor


def until_told_to_stop(actor: Any) -> None:
    """Wait until the word is in the mailbox of an actor that is held up."""
    pause = threading.Event()
    while not actor.mailbox._urgent:
        pause.wait(0.002)


def again(successor: Any, talk: Any) -> Any:
    return type(talk)(successor, talk.id)


def test_the_old_owner_of_a_conversation_can_write_nothing_any_more(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    successor = reborn(world)
    try:
        after = again(successor, talk)
        after.send("new owner")
        exchange.say("from the grave")
        after.answer("alive")
        assert "from the grave" not in after.texts()
    finally:
        successor.close()


def test_approvals_are_not_kept_over_a_restart(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_ALL)
    talk.asks("go").call(ToolUse("t1", "bash", "{}"))
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    successor = reborn(world)
    try:
        after = again(successor, talk)
        after.rest(Idle)
        assert [answer.decision for answer in after.found(ApprovalResolved)] == [ApprovalDecision.WITHDRAWN]
    finally:
        successor.close()


def test_a_graceful_shutdown_ends_every_run_and_refuses_new_work(world: World) -> None:
    talk = world.create()
    talk.asks("go").call(ToolUse("t1", "bash", "{}"))
    run = talk.tool()
    run.reap.set()
    assert isinstance(talk.state, ToolExecuting)
    world.supervisor.stop(0)
    talk.rest(Idle)
    assert run.context.cancel.cancelled
    assert world.supervisor.live_count() == 0
    refusal = world.supervisor.ask(talk.id, SendMessageCommand("too late")).exception(10)
    assert isinstance(refusal, Rejected)
    assert refusal.reason is Reason.SHUTTING_DOWN


def test_a_drain_waits_for_the_run_of_a_message_that_is_just_being_accepted(world: World, hold: Any) -> None:
    talk = world.create()
    actor = world.supervisor._live[talk.id]
    world.faults.arm("commit.before", hold)
    sent = world.supervisor.ask(talk.id, SendMessageCommand("go"))
    hold.wait()
    stopping = threading.Thread(target=world.supervisor.stop, args=(60,))
    stopping.start()
    pause = threading.Event()
    while actor.mailbox.empty():
        pause.wait(0.002)
    hold.release()
    assert sent.result(60).disposition == "direct"
    talk.exchange().say("done in time")
    stopping.join(60)
    assert talk.texts() == ["go", "done in time"]


def test_a_drain_does_not_wait_for_people(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_ALL)
    talk.asks("go").call(ToolUse("t1", "bash", "{}"))
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    world.supervisor.stop(3_600)
    talk.rest(Idle)


def test_a_skipped_drain_waits_for_nothing(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    world.supervisor.skip_drain()
    world.supervisor.stop(3_600)
    talk.rest(Idle)
    assert exchange.cancel.cancelled


def test_callers_that_still_wait_when_the_server_stops_get_an_error(world: World, hold: Any) -> None:
    talk = world.create()
    talk.asks("go")
    actor = world.supervisor._live[talk.id]
    world.faults.arm("commit.before", hold)
    first = world.supervisor.ask(talk.id, SendMessageCommand("steer", delivery="steer"))
    hold.wait()
    waiting = [world.supervisor.ask(talk.id, SendMessageCommand(str(n), delivery="steer")) for n in range(3)]
    stopping = threading.Thread(target=world.supervisor.stop, args=(0,))
    stopping.start()
    until_told_to_stop(actor)
    hold.release()
    stopping.join(60)
    assert first.result(60).disposition == "steer_queued"
    reasons = [failure.reason for answer in waiting if (failure := answer.exception(10))]
    assert reasons == [Reason.SHUTTING_DOWN] * 3
    talk.rest(Idle)


def test_an_error_outlives_a_nap_but_not_a_restart(world: World) -> None:
    object.__setattr__(world.services, "idle_seconds", 0.0)
    talk = world.create()
    talk.asks("go").fail(ErrorKind.AUTH)
    talk.rest(Error)
    gone = threading.Event()
    while world.supervisor.live_count():
        gone.wait(0.005)
    talk.ask(UpdateConversationCommand(title="still an error"))
    assert isinstance(talk.state, Error)
    successor = reborn(world)
    try:
        assert successor.restored == (talk.id,)
        talk.rest(Idle)
    finally:
        successor.close()


def test_while_the_last_processes_die_nothing_new_begins(world: World, hold: Any) -> None:
    talk = world.create()
    talk.asks("go").call(ToolUse("t1", "bash", "{}"))
    run = talk.tool()
    actor = world.supervisor._live[talk.id]
    world.faults.arm("commit.before", hold)
    world.supervisor.ask(talk.id, UpdateConversationCommand(title="holds everything up"))
    hold.wait()
    queued = world.supervisor.ask(talk.id, SendMessageCommand("too late"))
    stopping = threading.Thread(target=world.supervisor.stop, args=(0,))
    stopping.start()
    until_told_to_stop(actor)
    hold.release()
    refusal = queued.exception(10)
    assert isinstance(refusal, Rejected)
    assert refusal.reason is Reason.SHUTTING_DOWN
    assert world.supervisor.live_count() == 1, "it waits for the processes of its tool"
    run.reap.set()
    stopping.join(60)
    assert world.supervisor.live_count() == 0
    assert [reaped.pids for reaped in talk.found(ToolTreeReaped)] == [(4711,)]
    talk.rest(Idle)


class Ends(Telemetry):
    """Keeps what a restart has ended."""

    on = True

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def recovered(
        self, record: ConversationRecord, run: str, calls: Iterable[ToolUse], events: Iterable[Durable]
    ) -> None:
        self.told.append((run, *(f"{call.id} {call.name}" for call in calls)))
        self.told += [(ended.run, ended.detail) for ended in events if isinstance(ended, RunStop) and ended.run == run]


def test_the_ends_of_what_a_restart_cut_off_are_told_by_the_new_process(world: World) -> None:
    talk = world.create()
    run = talk.send("go").run
    talk.exchange().call(ToolUse("t1", "bash", "{}"), ToolUse("t2", "made-up", "{}"))
    talk.tool().reap.set()
    talk.send("later", delivery="follow_up")
    ends = Ends()
    successor = type(world)(world.store)
    try:
        successor.supervisor = Supervisor(replace(successor.services, telemetry=ends))
        successor.supervisor.start()
    finally:
        successor.close()
    assert ends.told == [(run, "t1 bash", "t2 made-up"), (run, "restart")]
