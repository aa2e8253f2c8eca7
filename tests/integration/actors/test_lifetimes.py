"""Who lives how long: actors, runners, threads; and what happens to those who come at the wrong moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from actors import messages
from actors.core.content import Text, ToolUse
from actors.core.context import ApprovalPolicy
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import LlmResponse
from actors.core.notifications import RunStop, ToolTreeReaped
from actors.core.states import AwaitingToolApproval, ContextExhausted, Error, Idle, LlmPhase, LlmRequesting
from actors.ports import ModelAnswer, ToolOutput
from actors.ports.tools import NoMcpServers
from actors.runtime.actor import tell
from tests.support.patience import PATIENCE, eventually

World = Any

BASH = ToolUse("t1", "bash", "{}")


def all_gone(world: World) -> None:
    """Wait until no conversation is alive."""
    with world.supervisor._changed:
        assert world.supervisor._changed.wait_for(lambda: not world.supervisor._live, PATIENCE)


def ours() -> set[threading.Thread]:
    """The threads of actors and tools."""
    names = ("Conversation", "Runner", "bedrock-tool")
    return {thread for thread in threading.enumerate() if any(name in thread.name for name in names)}


def until_none(threads: Callable[[], set[threading.Thread]]) -> None:
    """Wait until the last of these threads has ended its job: an idle thread has another name."""
    eventually(lambda: not threads(), "their jobs have ended")


@pytest.fixture
def hasty(make_world: Any) -> World:
    """A world whose conversations leave as soon as they may."""
    return make_world(idle_seconds=0.0)


def test_fifty_conversations_later_everything_is_as_it_was(hasty: World) -> None:
    before = ours()

    def live(number: int) -> None:
        talk = hasty.create()
        for text in ("hello", "again"):
            talk.send(f"{text} {number}")
            answer(hasty)
            talk.rest(Idle)
        talk.ask(messages.DeleteConversationCommand() if number % 2 else messages.CancelConversationCommand())
        talk._watch.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(50)))
    all_gone(hasty)
    until_none(lambda: ours() - before)
    assert hasty.hub._channels == {}
    assert hasty.supervisor._shared.admission.in_flight == 0


def test_what_models_keep_of_a_conversation_goes_when_it_sleeps_or_is_deleted(hasty: World, make_world: Any) -> None:
    talk = hasty.create()
    talk.send("hello")
    answer(hasty)
    talk.rest(Idle)
    all_gone(hasty)
    assert set(hasty.services.models.forgotten) == {talk.id}

    awake = make_world(idle_seconds=3600.0)
    talk = awake.create()
    talk.send("hello")
    answer(awake)
    talk.rest(Idle)
    assert awake.services.models.forgotten == []
    talk.ask(messages.DeleteConversationCommand())
    all_gone(awake)
    assert set(awake.services.models.forgotten) == {talk.id}


def test_a_request_that_outlives_its_conversation_leaves_nothing_behind(
    hasty: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled and nobody waited for it: what it rendered since is dropped when it ends."""
    begun, go_on = threading.Event(), threading.Event()

    def stubborn(*_: object) -> ModelAnswer:
        begun.set()
        assert go_on.wait(PATIENCE)
        return ModelAnswer((Text("too late"),), end_turn=True)

    monkeypatch.setattr(hasty.model, "respond", stubborn)
    before = ours()
    talk = hasty.create()
    talk.send("hello")
    assert begun.wait(PATIENCE)
    talk.ask(messages.CancelConversationCommand())
    talk.rest(Idle)
    all_gone(hasty)
    hasty.services.models.forgotten.clear()
    go_on.set()
    until_none(lambda: ours() - before)
    assert hasty.services.models.forgotten == [talk.id]


def answer(world: World) -> None:
    """Some request is answered; which of them does not matter."""
    exchange = world.model.exchanges.get(timeout=PATIENCE)
    exchange.sink.started()
    exchange.sink.text("hi")
    exchange.sink.flush()
    exchange.say("hi")


def test_a_creation_that_came_to_nothing_keeps_no_thread(world: World) -> None:
    with pytest.raises(Rejected):
        world.create(model="unheard-of")
    request = messages.CreateConversationCommand(
        "tester", "/tmp", request_id="33333333-3333-4333-8333-333333333333", body_hash="h"
    )
    made = [world.supervisor.create(request) for _ in range(10)]
    assert len({each.result(PATIENCE).id for each in made}) == 1
    with pytest.raises(messages.UnknownConversationError):
        world.supervisor.ask("nobody", messages.SendMessageCommand("hello")).result(PATIENCE)
    with world.supervisor._changed:
        assert world.supervisor._changed.wait_for(lambda: len(world.supervisor._live) == 1, PATIENCE)


def test_a_slug_that_is_taken_by_chance_is_replaced(world: World) -> None:
    taken = iter(["same", "same", "same", "other"])
    object.__setattr__(world.services.ids, "slug", lambda: next(taken))
    assert [world.create().record.slug for _ in range(2)] == ["same", "other"]


def test_slugs_that_are_always_taken_are_refused_not_tried_for_ever(world: World) -> None:
    object.__setattr__(world.services.ids, "slug", lambda: "same")
    world.create()
    with pytest.raises(Rejected) as refusal:
        world.create()
    assert refusal.value.reason is Reason.SLUG_TAKEN


def test_a_conversation_whose_aborted_request_still_runs_may_leave_and_come_back(hasty: World) -> None:
    talk = hasty.create()
    exchange = talk.asks("hello")
    exchange.cancel._callbacks.clear()  # a socket that does not notice
    talk.cancel()
    all_gone(hasty)
    talk.asks("again").say("hi")
    exchange.say("from the dead")
    talk.rest(Idle)
    all_gone(hasty)
    assert talk.texts() == ["hello", "again", "hi"]
    until_none(ours)


def test_a_conversation_stays_until_its_tools_are_dead_and_holds_the_next_one_back(hasty: World) -> None:
    talk = hasty.create()
    slow = talk.starts(BASH)
    talk.cancel()
    talk.rest(Idle)
    assert hasty.supervisor.live_count() == 1
    talk.asks("next").call(ToolUse("t2", "look", "{}"))
    assert hasty.box.tools["look"].runs.empty()
    slow.reap.set()
    talk.tool("look").finish.put(ToolOutput("seen"))
    talk.answer("done")
    all_gone(hasty)
    assert [reaped.tool_use_id for reaped in talk.found(ToolTreeReaped)] == ["t1"]
    until_none(ours)


def test_a_message_always_finds_its_conversation_however_it_comes_and_goes(hasty: World) -> None:
    talk = hasty.create()
    for n in range(100):
        talk.ask(messages.UpdateConversationCommand(title=str(n)))
    assert talk.record.title == "99"
    with ThreadPoolExecutor(4) as pool:
        titles = list(
            pool.map(
                lambda n: talk.ask(messages.UpdateConversationCommand(labels={"n": str(n)})).labels["n"], range(100)
            )
        )
    assert sorted(map(int, titles)) == list(range(100))
    talk.check()
    all_gone(hasty)


def test_an_outcome_that_comes_twice_counts_once(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    actor = world.supervisor._live[talk.id]
    event = LlmResponse(1, exchange.request.request_id, 1, (Text("hi"),), True)
    for _ in range(3):
        assert tell(actor.actor_ref, messages.EffectOutcome(event))
    talk.rest(Idle)
    exchange.say("hi")
    talk.ask(messages.UpdateConversationCommand(title="all of them are through"))
    assert talk.texts() == ["hello", "hi"]
    assert len(talk.found(RunStop)) == 1


def test_a_request_whose_caller_timed_out_is_dropped_unapplied_but_a_cancel_is_not(world: World, hold: Any) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    world.faults.arm("commit.before", hold)
    world.supervisor.ask(talk.id, messages.UpdateConversationCommand(title="holds everything up"))
    hold.wait()
    steer = world.supervisor.ask(talk.id, messages.SendMessageCommand("steer", delivery="steer"))
    cancel = world.supervisor.ask(talk.id, messages.CancelConversationCommand())
    assert steer.cancel()
    assert cancel.cancel()
    hold.release()
    talk.rest(Idle)
    assert exchange.cancel.cancelled
    assert talk.ask(messages.UpdateConversationCommand(title="all of them are through")).title
    assert isinstance(talk.state, Idle)
    assert talk.texts() == ["hello"]


def test_a_cancel_stops_only_work_that_was_running_when_it_was_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = world.create()
    old = talk.asks("old")
    ask, later = world.supervisor._ask, []

    def ask_and_dawdle(conversation_id: str, asked: Any) -> Any:
        answered = ask(conversation_id, asked)
        monkeypatch.undo()
        answered.result(PATIENCE)
        talk.send("new")
        later.append(talk.exchange())
        return answered

    monkeypatch.setattr(world.supervisor, "_ask", ask_and_dawdle)
    talk.cancel()
    assert old.cancel.cancelled
    assert not later[0].cancel.cancelled
    later[0].say("hi")
    talk.rest(Idle)
    assert talk.texts() == ["old", "new", "hi"]


def test_a_tool_that_is_about_to_start_when_the_cancel_comes_never_starts(world: World, hold: Any) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    world.faults.arm("commit.after", hold)
    exchange.call(BASH)
    hold.wait()
    cancel = world.supervisor.ask(talk.id, messages.CancelConversationCommand())
    hold.release()
    assert cancel.result(PATIENCE).tool_use_ids == ("t1",)
    talk.rest(Idle)
    talk.until(lambda: bool(talk.found(ToolTreeReaped)))
    assert world.box.tools["bash"].started == 0


def test_nothing_passing_is_left_in_the_hub_by_any_road_out_of_a_stream(hasty: World) -> None:
    def stream() -> tuple[Any, Any]:
        talk = hasty.create()
        talk._watch.close()
        hasty.supervisor.ask(talk.id, messages.SendMessageCommand("hello")).result(PATIENCE)
        exchange = talk.exchange()
        exchange.sink.text("partial")
        exchange.sink.flush()
        while not (isinstance(talk.state, LlmRequesting) and talk.state.phase is LlmPhase.STREAMING):
            threading.Event().wait(0.002)
        return talk, exchange

    stream()[1].say("hi")
    stream()[1].fail(ErrorKind.AUTH)
    stream()[0].cancel()
    stream()[0].ask(messages.DeleteConversationCommand(force=True))
    stream()[1].crash()
    all_gone(hasty)
    assert hasty.hub._channels == {}


def test_a_message_of_an_unknown_delivery_is_refused_without_side_effects(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    with pytest.raises(messages.InvalidFieldError) as refusal:
        talk.send("?", delivery="by pigeon")
    assert refusal.value.field == "delivery"
    exchange.say("hi")
    talk.rest(Idle)


def test_one_request_id_continues_a_conversation_once(world: World) -> None:
    talk = world.create()
    talk.ask(messages.TriggerContinuationCommand())
    talk.exchange().say("It was short.")
    talk.until(lambda: isinstance(talk.state, ContextExhausted))
    request = messages.ContinueConversationCommand(
        include_summary=True, request_id="44444444-4444-4444-8444-444444444444", body_hash="h"
    )
    first = talk.ask(request)
    assert talk.ask(request) == world.store.load(first.id)
    with pytest.raises(Rejected) as refusal:
        talk.ask(messages.ContinueConversationCommand(request_id=request.request_id, body_hash="other"))
    assert refusal.value.reason is Reason.REQUEST_ID_REUSED
    world.supervisor.ask(first.id, messages.DeleteConversationCommand()).result(PATIENCE)
    with pytest.raises(messages.UnknownConversationError):
        talk.ask(request)
    assert talk.ask(messages.ContinueConversationCommand()).id != first.id


def test_an_answer_to_an_open_question_wakes_a_server_that_drains_for_nothing(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_ALL)
    talk.asks("go").call(BASH)
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    world.supervisor._refusing = True
    answered = world.supervisor.ask(talk.id, messages.ResolveApprovalCommand("t1", True)).exception(PATIENCE)
    assert isinstance(answered, Rejected)
    assert answered.reason is Reason.SHUTTING_DOWN
    assert not talk.cancel().no_op
    talk.rest(Idle)


def test_being_at_capacity_is_a_retryable_failure(make_world: Any) -> None:
    world = make_world(max_llm_requests=1)
    first, second = world.create(), world.create()
    exchange = first.asks("hello")
    second.send("me too")
    error = second.rest(Error)
    assert "1 model requests in flight" in error.message
    exchange.say("hi")
    first.rest(Idle)
    second.turn("now?", "yes")


class Outdated(NoMcpServers):
    """A server whose program runs in another mode than its conversation, once a test says so."""

    running = False

    def outdated(self, record: object) -> tuple[str, ...]:
        return ("files",) if self.running else ()

    def end_outdated(self, record: object) -> None:
        self.running = False


def test_a_refused_message_ends_no_mcp_server(make_world: Any) -> None:
    mcp = Outdated()
    talk = make_world(mcp=mcp).create()
    run = talk.send("go").run
    talk.answer("done")
    mcp.running = True
    with pytest.raises(Rejected) as refusal:
        talk.send("too late", delivery="steer", expected_run=run)
    assert refusal.value.reason is Reason.RUN_OVER
    assert mcp.running, "or the model is never told that its server has forgotten everything"
    talk.send("next")
    assert "files" in str(talk.exchange().request.turns)
    assert not mcp.running
