"""Sub-agents that are stopped, with their parent or alone: at any instant, by whatever. Nobody is left behind."""

import contextlib
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors import messages
from actors.core.content import SubAgentComplete, ToolCancelled
from actors.core.context import Limits
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.history import violations
from actors.core.notifications import ConversationUpdated, RunStop
from actors.core.states import INACTIVE, TERMINAL, AwaitingSubAgents, Completed, Error, Failed, Idle
from actors.ports import StoreUnavailableError
from actors.runtime.actor import tell
from tests.integration.actors.conftest import ShakyStore
from tests.integration.actors.family import FamilyBox, FamilyModel, aggregate, all_left, child, tasks
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import new_store

World = Any
Talk = Any

CANCELS = int(os.environ.get("BEDROCK_AGENT_CANCELS", "30"))
"""Families that are cancelled at some instant of their life."""

MIXED = tasks("hang", "use linger", "overloaded", "submit 42", "use look", "wait gate")
"""One in a request, one in a tool, one in backoff, one done, one between the two, one that may end any moment."""


def check_family(world: World, parent_id: str) -> None:
    """At rest: all are over, every chain is valid, every call has one result, what was stored is sound."""
    truth = world.truth
    for key in (parent_id, *truth.children(parent_id)):
        record = truth.load(key)
        assert isinstance(record.state, INACTIVE if key == parent_id else TERMINAL), record.state
        assert not record.state.ledger.live
        assert violations(truth.history(key, record.state.ledger.seq)) == ()
        assert truth.verify(key) == ()
        stops = [each.notification for each in truth.events(key, after=0, limit=10_000)]
        runs = [each.run for each in stops if isinstance(each, RunStop)]
        assert runs == [f"{key}:{run}" for run in range(1, record.state.ledger.run + 1)]


def begin(world: World, message: str = MIXED) -> Talk:
    """A parent whose sub-agents are all at work."""
    talk = world.create()
    talk.send(message)
    talk.until(lambda: isinstance(talk.state, AwaitingSubAgents))
    assert world.box.lingering.acquire(timeout=PATIENCE)
    for number in range(1, 7):
        world.model.until_asked(f"{talk.id}-a{number}")
    child(talk, 4).rest(Completed)
    talk.until(lambda: f"{talk.id}-a4" not in talk.state.pending_ids)
    return talk


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_cancel_ends_all_at_once_and_the_parent_is_idle(family: World) -> None:
    talk = begin(family)
    receipt = talk.cancel()
    assert {f"{talk.id}-a{number}" for number in (1, 2, 3, 6)} <= set(receipt.sub_agents)
    talk.rest(Idle)
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "")]
    for number in (1, 2, 3, 6):
        failed = child(talk, number).rest(Failed)
        assert failed.kind is ErrorKind.CANCELLED
        assert failed.error.endswith(": its parent was stopped")
    assert child(talk, 4).rest(Completed).result == "42"
    assert family.box.ended.acquire(timeout=PATIENCE), "the tool is told"
    all_left(family)
    check_family(family, talk.id)
    (result,) = [block for message in family.truth.history(talk.id, 99) for block in message.content][2:]
    assert isinstance(result, ToolCancelled)
    talk.send("and now?")
    talk.rest(Idle)


def test_a_cancel_goes_ahead_of_what_waits_for_a_sub_agent(family: World, hold: Any) -> None:
    talk = family.create()
    talk.send(tasks("hang"))
    family.model.until_asked(f"{talk.id}-a1")
    agent = child(talk, 1)
    family.faults.arm("commit.before", hold)
    changes = [family.supervisor.ask(agent.id, messages.UpdateConversationCommand(title="one"))]
    hold.wait()
    changes.append(family.supervisor.ask(agent.id, messages.UpdateConversationCommand(title="two")))
    talk.cancel()
    hold.release()
    assert [change.result(PATIENCE).title for change in changes] == ["one", "two"]
    agent.rest(Failed)
    told = [type(event.notification) for event in agent.events()]
    assert [kind for kind in told if kind in (RunStop, ConversationUpdated)][-2:] != [ConversationUpdated, RunStop]
    talk.rest(Idle)


def test_a_cancel_at_any_instant_leaves_no_sub_agent_running(family: World) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for number in range(CANCELS):
        talk = family.create()
        talk.send(MIXED)
        threading.Event().wait(rng.random() ** 2 * 0.06)
        talk.cancel()
        talk.until(lambda talk=talk: isinstance(talk.state, Idle))
        asked = len(family.model.requests)
        all_left(family)
        assert len(family.model.requests) == asked, f"a request began after the end: seed {seed}, family {number}"
        eventually(family.model.at_rest, "no request in flight")
        check_family(family, talk.id)


def test_a_sub_agent_that_cannot_stop_blocks_the_parent_for_two_seconds_at_most(make_world: Any, hold: Any) -> None:
    bounds = Limits(cancel_timeout_ms=50)
    assert Limits().cancel_timeout_ms == 2_000
    world = make_world(model=FamilyModel(), box=FamilyBox(), limits=bounds)
    world.faults.arm("create_sub_agent.before", hold)
    talk = world.create()
    talk.send(tasks("submit 42"))
    hold.wait()
    talk.cancel()
    talk.rest(Idle)
    assert [stop.detail for stop in talk.found(RunStop)] == ["cancel_timeout"]
    asked = len(world.model.requests)
    hold.release()
    all_left(world)
    assert len(world.model.requests) == asked, "the model was asked for a sub-agent that nobody waits for"
    check_family(world, talk.id)


def test_a_person_may_stop_one_of_them_and_the_others_go_on(family: World) -> None:
    talk = family.create()
    talk.send(tasks("hang", "wait b"))
    for number in (1, 2):
        family.model.until_asked(f"{talk.id}-a{number}")
    child(talk, 1).cancel(reason="enough")
    child(talk, 1).rest(Failed)
    assert isinstance(talk.state, AwaitingSubAgents)
    family.model.gates["b"].set()
    talk.rest(Idle)
    assert aggregate(talk) == [
        'Task: "hang"\nFailed: cancelled before result submission: enough',
        'Task: "wait b"\nResult: b',
    ]


@pytest.mark.parametrize(
    "request_",
    [messages.SendMessageCommand("hello"), messages.TriggerContinuationCommand(), messages.DeleteConversationCommand()],
    ids=lambda each: type(each).__name__,
)
def test_only_its_parent_controls_a_sub_agent(family: World, request_: Any) -> None:
    talk = family.create()
    talk.send(tasks("wait a"))
    family.model.until_asked(f"{talk.id}-a1")
    with pytest.raises(Rejected) as refusal:
        child(talk, 1).ask(request_)
    assert refusal.value.reason is (
        Reason.AGENT_BUSY if isinstance(request_, messages.DeleteConversationCommand) else Reason.SUB_AGENT
    )
    family.model.gates["a"].set()
    talk.rest(Idle)


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deletion_stops_all_then_removes_all(family: World) -> None:
    talk = begin(family)
    with pytest.raises(Rejected):
        talk.ask(messages.DeleteConversationCommand())
    ids = [talk.id, *family.truth.children(talk.id)]
    assert len(ids) == 7
    assert talk.ask(messages.DeleteConversationCommand(force=True)) == ()
    assert family.box.ended.acquire(blocking=False), "its tools are dead before it is answered"
    eventually(family.model.at_rest, "no request to a model left")
    assert [family.truth.load(key) for key in ids] == [None] * 7
    assert set(ids) <= set(family.box.forgotten)
    eventually(lambda: not family.supervisor.live_count(), "no live conversation")


def test_a_sub_agent_that_is_deleted_at_work_has_failed(family: World) -> None:
    talk = family.create()
    talk.send(tasks("hang", "submit 42"))
    family.model.until_asked(f"{talk.id}-a1")
    child(talk, 1).ask(messages.DeleteConversationCommand(force=True))
    talk.rest(Idle)
    assert aggregate(talk)[0].startswith('Task: "hang"\nFailed: cancelled')
    assert family.truth.children(talk.id) == (f"{talk.id}-a2",)


# --- the end of the server --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True], ids=["parent first", "children first"])
def test_after_a_crash_all_have_ended_and_the_call_has_one_synthetic_result(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, *, backwards: bool
) -> None:
    crashing = ShakyStore(new_store())
    talk = begin(make_world(crashing, model=FamilyModel(), box=FamilyBox()))
    crashing.deaf = True
    assert crashing.refusals.acquire(timeout=PATIENCE), "the sub-agent that uses tools goes on in vain"
    store = crashing.inner
    unrecovered = store.unsettled
    monkeypatch.setattr(store, "unsettled", lambda: unrecovered()[:: -1 if backwards else 1])
    successor = make_world(store, model=FamilyModel(), box=FamilyBox())
    restored = successor.supervisor.start()
    assert set(restored) == {talk.id, *(f"{talk.id}-a{number}" for number in (1, 2, 3, 5, 6))} & set(restored)
    assert successor.model.requests == []
    assert successor.supervisor.live_count() == 0
    check_family(successor, talk.id)
    after = type(talk)(successor, talk.id)
    assert after.texts()[2:] == ["Interrupted by server restart"]
    assert child(after, 1).rest(Failed).kind is ErrorKind.INTERRUPTED
    assert child(after, 4).rest(Completed).result == "42"
    after.send(tasks("submit 43"))
    after.rest(Idle)
    assert child(after, 7).rest(Completed).result == "43", "numbers are not used again"


def test_a_parent_that_was_stored_before_its_sub_agents_were_is_whole_after_a_crash(family: World, hold: Any) -> None:
    family.faults.arm("create_sub_agent.before", hold)
    talk = family.create()
    talk.send(tasks("submit 42"))
    hold.wait()
    successor = type(family)(family.store, model=FamilyModel(), box=FamilyBox())
    try:
        assert successor.supervisor.start() == (talk.id,)
        check_family(successor, talk.id)
        assert successor.truth.children(talk.id) == ()
        assert type(talk)(successor, talk.id).texts()[2:] == ["Interrupted by server restart"]
    finally:
        hold.release()
        successor.close()


def test_a_graceful_shutdown_stops_parents_and_sub_agents(family: World) -> None:
    talk = begin(family)
    family.supervisor.stop(0)
    check_family(family, talk.id)
    assert talk.texts()[2:] == ["Interrupted by server restart"]
    assert family.supervisor.live_count() == 0
    eventually(family.model.at_rest, "no request to a model left")


def test_a_drain_lets_sub_agents_finish(family: World) -> None:
    talk = family.create()
    talk.send(tasks("wait a", "submit b"))
    family.model.until_asked(f"{talk.id}-a1")
    stopping = threading.Thread(target=family.supervisor.stop, args=(PATIENCE,))
    stopping.start()
    family.model.gates["a"].set()
    stopping.join(PATIENCE)
    assert aggregate(talk) == ['Task: "wait a"\nResult: a', 'Task: "submit b"\nResult: b']
    assert talk.texts()[-1] == "All is told."


# --- faults -----------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """What a fault point raises; nothing in the code expects it."""


def crash() -> None:
    raise Crash


def strike(world: World, conversation_id: str) -> None:
    """A bug in the actor of this conversation, and of no other."""
    assert tell(world.supervisor._live[conversation_id].actor_ref, "nobody sends this")


def test_an_actor_that_crashes_is_a_failed_sub_agent(family: World) -> None:
    talk = family.create()
    talk.send(tasks("hang", "submit 42"))
    for number in (1, 2):
        family.model.until_asked(f"{talk.id}-a{number}")
    talk.until(lambda: talk.state.pending_ids == (f"{talk.id}-a1",))
    strike(family, f"{talk.id}-a1")
    talk.rest(Idle)
    assert aggregate(talk) == [
        'Task: "hang"\nFailed: Internal error; see the server log.',
        'Task: "submit 42"\nResult: 42',
    ]
    assert child(talk, 1).rest(Failed).kind is ErrorKind.UNKNOWN


def test_a_parent_that_fails_takes_its_sub_agents_with_it(family: World) -> None:
    talk = begin(family)
    strike(family, talk.id)
    talk.rest(Error)
    all_left(family)
    eventually(family.model.at_rest, "no request to a model left")
    check_family(family, talk.id)


def _live(world: World) -> str:
    """A life that passes every point: sub-agents that end, then ones that are cancelled."""
    talk = world.supervisor.create(messages.CreateConversationCommand("tester", "/tmp")).result(PATIENCE)

    def say(request: Any) -> None:
        with contextlib.suppress(Rejected, messages.UnknownConversationError, Crash):
            world.supervisor.ask(talk.id, request).result(PATIENCE)

    def resting() -> bool:
        return isinstance(world.truth.load(talk.id).state, INACTIVE)

    say(messages.SendMessageCommand(tasks("submit 1", "use look", max_turns=1)))
    eventually(resting, "idle")
    say(messages.SendMessageCommand(tasks("hang")))
    eventually(lambda: resting() or world.model.hanging.is_set(), "idle, or a sub-agent hangs")
    say(messages.CancelConversationCommand())
    eventually(resting, "idle")
    return str(talk.id)


def test_a_fault_at_any_point_leaves_no_caller_waiting(make_world: Callable[..., World]) -> None:
    """Several threads pass the points, so the so-manieth pass is not always the same one."""
    whole = make_world(model=FamilyModel(), box=FamilyBox())
    _live(whole)
    all_left(whole)
    passes = len(whole.faults.passed)
    assert {"create_sub_agent.before", "create_sub_agent.after", "effect.after.NotifyParent"} <= set(
        whole.faults.passed
    )
    for number in range(3, passes):
        world = make_world(model=FamilyModel(), box=FamilyBox())
        world.faults.arm_pass(number, crash)
        parent_id = _live(world)
        all_left(world)
        eventually(world.model.at_rest, "no request in flight")
        check_family(world, parent_id)
        _check_results(world, parent_id)
        world.close()


def _check_results(world: World, parent_id: str) -> None:
    """A call whose end was waited for has one paragraph for each of its sub-agents: two, then one."""
    told = [
        block
        for message in world.truth.history(parent_id, world.truth.load(parent_id).state.ledger.seq)
        for block in message.content
        if isinstance(block, SubAgentComplete)
    ]
    assert [block.output.count("Task: ") for block in told] in ([], [1], [2], [2, 1])


def test_a_store_failure_at_creation_is_a_failure_of_that_sub_agent(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=FamilyBox())
    talk = world.create()
    commit = world.store.commit

    def refuse_births(*parts: Any, urgent: bool = False) -> None:
        if any(part.create for part in parts):
            raise StoreUnavailableError("the disk is full")
        commit(*parts, urgent=urgent)

    world.store.commit = refuse_births
    talk.send(tasks("submit 42"))
    talk.rest(Idle)
    assert "Failed: it could not be started: the store cannot confirm the change now" in aggregate(talk)[0]
    all_left(world)


def test_a_creation_that_was_wrongly_reported_as_failed_is_undone(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=FamilyBox())
    talk = world.create()
    commit = world.store.commit

    def lie_about_creation(*parts: Any, urgent: bool = False) -> None:
        commit(*parts, urgent=urgent)
        if any(part.create and part.record.id.endswith("-a1") for part in parts):
            raise StoreUnavailableError("was it written?")

    world.store.commit = lie_about_creation
    talk.send(tasks("submit 42", "wait b"))
    eventually(
        lambda: isinstance(getattr(world.truth.load(f"{talk.id}-a1"), "state", None), Failed),
        "the sub-agent has failed",
    )
    assert child(talk, 1).rest(Failed).kind is ErrorKind.INTERRUPTED
    assert isinstance(talk.state, AwaitingSubAgents), "it did not take the end of its parent's run"
    world.model.gates["b"].set()
    talk.rest(Idle)
    assert "could not be started" in aggregate(talk)[0]
    all_left(world)
    assert world.model.asked(f"{talk.id}-a1") == 0
