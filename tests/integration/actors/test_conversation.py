"""A conversation from the first message to its end, over real actors."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from actors import ports
from actors.core import notifications
from actors.core.content import MessageType, ToolError, ToolOutcome, ToolUse, text_of
from actors.core.context import ApprovalPolicy, Budget
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.states import AwaitingToolApproval, Error, Idle, LlmPhase, LlmRequesting, ToolExecuting
from actors.core.summary import run_id
from actors.messages import (
    ArchiveConversationCommand,
    CancelConversationCommand,
    ContinueConversationCommand,
    CreateConversationCommand,
    DeadlineExceededError,
    DeleteConversationCommand,
    EtagMismatchError,
    InvalidFieldError,
    ResolveApprovalCommand,
    SendMessageCommand,
    SpawnSubAgentsCommand,
    SpawnSubAgentsTask,
    TriggerContinuationCommand,
    UnknownConversationError,
    UpdateConversationCommand,
)
from actors.ports.records import etag_of
from actors.ports.sandbox import ALL_PERMISSIONS
from actors.publishing.hub import EventHub
from tests.integration.actors.conftest import Calendar, ScriptedModel
from tests.support.patience import PATIENCE, eventually
from tests.support.replaying import differences

World = Any

BASH = ToolUse("t1", "bash", '{"cmd": "ls"}')
LOOK = ToolUse("t2", "look", "{}")


def refused(reason: Reason, text: str = "") -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason and text in str(error))


def test_a_full_conversation_runs_its_tools_serially_and_in_order(world: World) -> None:
    talk = world.create()
    sent = talk.send("list the files")
    assert sent.disposition == "direct"
    assert sent.revision == 0
    talk.exchange().call(BASH, LOOK, text="I will look.")
    talk.tool("bash").finish.put(ports.ToolOutput("a.txt"))
    talk.tool("look").finish.put(ports.ToolOutput("nothing", is_error=True))
    last = talk.exchange()
    results = [block for block in last.request.turns[-1].content if hasattr(block, "tool_use_id")]
    assert [(r.tool_use_id, r.output) for r in results] == [("t1", "a.txt"), ("t2", "nothing")]
    last.say("There is a.txt.")
    talk.rest(Idle)
    assert talk.texts() == ["list the files", "I will look.", "", "", "a.txt", "nothing", "There is a.txt."]
    stops = talk.found(notifications.RunStop)
    assert [(stop.run, stop.reason) for stop in stops] == [(sent.run, notifications.StopReason.COMPLETED)]


def test_text_streams_before_the_message_and_never_after_it(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    exchange.sink.started()
    exchange.sink.text("Hel")
    exchange.sink.text("lo")
    exchange.sink.flush()
    seen: list[str] = []
    talk.until(lambda: isinstance(talk.state, LlmRequesting) and talk.state.phase is LlmPhase.STREAMING)
    watch = world.hub.attach(talk.id, threading.Event().set)
    talk.until(lambda: _collect(watch, talk, seen) == "Hello")
    exchange.say("Hello")
    talk.rest(Idle)
    assert watch.read(talk.record.revision).text is None
    watch.close()


class Torrent(ScriptedModel):
    """Streams without end, until it is cancelled, and a little beyond."""

    def respond(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        while not cancel.cancelled:
            sink.text("on and ")
            sink.flush()
        sink.text("on")
        sink.flush()
        raise ports.ModelAbortedError


class CountingHub(EventHub):
    """Counts the texts that it took."""

    taken = 0

    def text_delta(self, conversation_id: str, revision: int, *deltas: notifications.TextDelta) -> bool:
        taken = super().text_delta(conversation_id, revision, *deltas)
        self.taken += taken
        return taken


def test_no_text_follows_a_cancel(make_world: Callable[..., World]) -> None:
    hub = CountingHub()
    world = make_world(model=Torrent(), hub=hub)
    talk = world.create()
    for number in range(100):
        before = hub.taken
        talk.send("go on")
        talk.until(lambda: hub.taken > before + number % 3)  # noqa: B023
        cancelled = world.supervisor.ask(talk.id, CancelConversationCommand())
        taken = hub.taken  # the cancel may not even be committed
        assert not cancelled.result(PATIENCE).no_op
        assert hub.taken == taken, number
    talk.rest(Idle)
    assert len(talk.found(notifications.StreamDiscarded)) == 100


def _collect(watch: Any, talk: Any, seen: list[str]) -> str:
    batch = watch.read(talk.record.revision)
    if batch.text:
        seen.extend(chunk.text for chunk in batch.text.chunks)
    return "".join(seen)


def test_a_message_to_a_busy_agent_is_refused_and_changes_nothing(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("first")
    before = talk.record
    with refused(Reason.AGENT_BUSY) as refusal:
        talk.send("second")
    assert isinstance(refusal.value, Rejected)
    assert refusal.value.run == (talk.id, run_id(talk.id, before.state.ledger.run))
    assert talk.record == before
    exchange.say("done")
    talk.rest(Idle)


def test_steers_reach_the_model_at_the_next_boundary_and_follow_ups_start_the_next_run(world: World) -> None:
    talk = world.create()
    first = talk.asks("one")
    assert talk.send("steer me", delivery="steer").disposition == "steer_queued"
    queued = talk.send("and then", delivery="follow_up")
    assert (queued.disposition, queued.run) == ("follow_up_queued", "")
    first.say("answer one")
    second = talk.exchange()
    assert second.request.turns[-1].content[-1].text == "steer me"
    second.say("answer two")
    third = talk.exchange()
    assert third.request.turns[-1].content[-1].text == "and then"
    third.say("answer three")
    talk.rest(Idle)
    fates = [(change.input.text, change.fate) for change in talk.found(notifications.QueueChanged)]
    assert fates.count(("steer me", notifications.Fate.DELIVERED)) == 1
    assert fates.count(("and then", notifications.Fate.DELIVERED)) == 1
    assert len(talk.found(notifications.RunStop)) == 2


@pytest.mark.parametrize("approve", [True, False])
def test_writes_wait_for_an_answer_under_ask_writes(world: World, approve: bool) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    talk.asks("go").call(BASH)
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    assert [asked.call for asked in talk.found(notifications.ApprovalRequested)] == [BASH]
    with refused(Reason.UNKNOWN_OR_DECIDED):
        talk.ask(ResolveApprovalCommand("nope", True))
    talk.ask(ResolveApprovalCommand("t1", approve, note="because"))
    if approve:
        talk.tool().finish.put(ports.ToolOutput("ok"))
    talk.answer("fine")
    decision = notifications.ApprovalDecision.APPROVE if approve else notifications.ApprovalDecision.DENY
    assert [answer.decision for answer in talk.found(notifications.ApprovalResolved)] == [decision]
    outcome = next(
        b for m in talk.found(notifications.MessageAdded) for b in m.message.content if hasattr(b, "outcome")
    ).outcome
    assert outcome is (ToolOutcome.OK if approve else ToolOutcome.DENIED)
    assert world.box.tools["bash"].started == int(approve)


def test_a_bug_in_a_model_adapter_is_an_error_not_a_hang(world: World) -> None:
    talk = world.create()
    talk.asks("go").crash()
    assert talk.rest(Error).error_kind is ErrorKind.UNKNOWN


def test_a_bug_in_a_tool_is_an_error_result(world: World) -> None:
    talk = world.create()
    talk.starts(BASH).finish.put(ZeroDivisionError("bug"))
    told = talk.exchange()
    assert told.request.turns[-1].content == (ToolError("t1", "The tool failed because of an internal error."),)
    told.say("I see")
    talk.rest(Idle)


def test_a_safe_tool_is_retried_and_an_unsafe_one_is_not(world: World) -> None:
    talk = world.create()
    talk.asks("go").call(LOOK, BASH)
    talk.tool("look").finish.put(ports.ToolTransientError("no process", begun=True))
    talk.tool("look").finish.put(ports.ToolOutput("seen"))
    talk.tool("bash").finish.put(ports.ToolTransientError("lost", begun=True))
    talk.answer("ok")
    assert (world.box.tools["look"].started, world.box.tools["bash"].started) == (2, 1)


def test_cancel_of_a_model_request_is_idle_at_once_and_keeps_no_text(world: World) -> None:
    talk = world.create()
    sent = talk.send("long story")
    exchange = talk.exchange()
    exchange.sink.started()
    exchange.sink.text("Once upon")
    exchange.sink.flush()
    talk.until(lambda: isinstance(talk.state, LlmRequesting) and talk.state.phase is LlmPhase.STREAMING)
    answer = talk.cancel()
    assert not answer.no_op
    assert (answer.run, answer.state.kind) == (sent.run, "idle")
    assert exchange.cancel.cancelled
    talk.rest(Idle)
    assert talk.texts() == ["long story"]
    assert len(talk.found(notifications.StreamDiscarded)) == 1
    kinds = [change.state.kind for change in talk.found(notifications.StateChanged)]
    assert kinds[-2:] == ["cancelling", "idle"]


def test_cancel_of_a_tool_is_idle_before_the_tree_is_dead_and_holds_the_next_tool_back(world: World) -> None:
    talk = world.create()
    talk.asks("go").call(BASH, LOOK)
    slow = talk.tool()
    answer = talk.cancel()
    assert answer.tool_use_ids == ("t1", "t2")
    talk.rest(Idle)
    assert talk.texts()[-2:] == ["Cancelled by user", "Skipped due to cancellation"]
    assert talk.found(notifications.ToolTreeReaped) == []
    talk.asks("next").call(ToolUse("t5", "bash", "{}"))
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    assert world.box.tools["bash"].started == 1
    slow.reap.set()
    talk.tool().finish.put(ports.ToolOutput("after"))
    talk.answer("done")
    receipt = talk.found(notifications.ToolTreeReaped)[0]
    assert (receipt.tool_use_id, receipt.pids, receipt.leaked) == ("t1", (4711,), False)


def test_a_process_tree_that_survives_is_reported_as_leaked_and_blocks_nothing_for_ever(world: World) -> None:
    talk = world.create()
    stuck = talk.starts(BASH)
    talk.cancel()
    world.box.tools["bash"].running = 0
    talk.asks("next").call(ToolUse("t5", "look", "{}"))
    talk.tool("look").finish.put(ports.ToolOutput("after"))
    talk.answer("done")
    assert talk.found(notifications.ToolTreeReaped)[0].leaked
    stuck.reap.set()


def test_cancel_when_nothing_runs_is_a_no_op_and_a_late_one_spares_the_next_run(world: World) -> None:
    talk = world.create()
    assert talk.cancel().no_op
    first = talk.send("one")
    talk.answer("done")
    exchange = talk.asks("two")
    assert talk.cancel(run_id=first.run).no_op
    assert not exchange.cancel.cancelled
    exchange.say("done too")
    talk.rest(Idle)


def test_cancel_returns_steers_and_drops_follow_ups_only_on_request(world: World) -> None:
    talk = world.create()
    talk.asks("one")
    talk.send("steer", delivery="steer")
    talk.send("later", delivery="follow_up")
    answer = talk.cancel(discard_queued=True)
    fates = {change.input.text: change.fate for change in answer.settled}
    assert fates == {"steer": notifications.Fate.RETURNED, "later": notifications.Fate.DISCARDED}
    assert answer.settled_at == talk.record.updated_at
    talk.rest(Idle)
    assert len(talk.found(notifications.RunStop)) == 2


def test_cancel_overtakes_a_backlog(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    asked = [world.supervisor.ask(talk.id, SendMessageCommand(str(n))) for n in range(2_000)]
    talk.cancel()
    assert exchange.cancel.cancelled
    outcomes = [answer.exception(30) for answer in asked]
    assert any(isinstance(outcome, Rejected) for outcome in outcomes)


def test_a_cancel_is_carried_out_before_the_messages_that_wait(world: World, hold: Any) -> None:
    talk = world.create()
    exchange = talk.asks("go")
    world.faults.arm("commit.before", hold)
    messages = [world.supervisor.ask(talk.id, SendMessageCommand("0", delivery="steer"))]
    hold.wait()
    messages += [world.supervisor.ask(talk.id, SendMessageCommand(str(n), delivery="steer")) for n in (1, 2)]
    cancelled = world.supervisor.ask(talk.id, CancelConversationCommand())
    assert exchange.cancel.cancelled
    hold.release()
    returned = [change.input.text for change in cancelled.result(PATIENCE).settled]
    assert returned == ["0"]
    assert [sent.result(PATIENCE).disposition for sent in messages] == ["steer_queued", "direct", "steer_queued"]


def test_one_request_id_fifty_times_in_parallel_is_one_message(world: World) -> None:
    talk = world.create()
    request = SendMessageCommand("once", request_id="11111111-1111-4111-8111-111111111111", body_hash="h")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: talk.ask(request), range(50)))
    assert len({answer.message_id for answer in answers}) == 1
    assert sum(not answer.duplicate for answer in answers) == 1
    talk.answer("done")
    assert talk.texts().count("once") == 1
    with refused(Reason.REQUEST_ID_REUSED, request.request_id):
        talk.ask(SendMessageCommand("other", request_id=request.request_id, body_hash="x"))


def test_a_request_id_counts_within_its_conversation_and_for_creations_within_their_caller(world: World) -> None:
    """Whatever the command is: one id is one command of a conversation."""
    request_id = "44444444-4444-4444-8444-444444444444"
    create = CreateConversationCommand("tester", "/tmp", request_id=request_id, body_hash="c")
    mine = world.supervisor.create(create).result(60)
    yours = world.supervisor.create(msgspec.structs.replace(create, principal="another")).result(60)
    assert mine.id != yours.id
    assert world.supervisor.create(create).result(60).id == mine.id
    talks = [type(world.create())(world, record.id) for record in (mine, yours)]
    for talk in talks:
        answer = talk.ask(SendMessageCommand("go", request_id=request_id, body_hash="s"))
        assert not answer.duplicate, "the same id elsewhere is another command"
        talk.answer("done")
        assert talk.ask(SendMessageCommand("go", request_id=request_id, body_hash="s")).duplicate
        with refused(Reason.REQUEST_ID_REUSED):
            talk.ask(SpawnSubAgentsCommand((SpawnSubAgentsTask("look"),), request_id=request_id, body_hash="p"))
        with refused(Reason.REQUEST_ID_REUSED):
            talk.ask(ContinueConversationCommand(request_id=request_id, body_hash="n"))


def test_a_refused_command_may_be_sent_again_under_its_id(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("busy")
    request = SendMessageCommand("later", request_id="22222222-2222-4222-8222-222222222222", body_hash="h")
    with refused(Reason.AGENT_BUSY):
        talk.ask(request)
    exchange.say("done")
    talk.rest(Idle)
    assert not talk.ask(request).duplicate
    talk.answer("done")


def test_creating_twice_under_one_request_id_is_one_conversation(world: World) -> None:
    request = CreateConversationCommand(
        "tester", "/tmp", request_id="33333333-3333-4333-8333-333333333333", body_hash="h"
    )
    made = [world.supervisor.create(request) for _ in range(20)]
    assert len({answer.result(60).id for answer in made}) == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"working_directory": "/does/not/exist"}, Reason.WORKING_DIRECTORY_INVALID),
        ({"working_directory": "tmp"}, Reason.WORKING_DIRECTORY_INVALID),
        ({"working_directory": "/tmp\0"}, Reason.WORKING_DIRECTORY_INVALID),
        ({"model": "gpt-0"}, Reason.MODEL_UNAVAILABLE),
    ],
)
def test_a_conversation_that_cannot_be_is_not_created(world: World, fields: dict[str, str], reason: Reason) -> None:
    request = msgspec.structs.replace(CreateConversationCommand("tester", "/tmp"), **fields)
    with refused(reason):
        world.supervisor.create(request).result(60)


def test_a_model_that_a_principal_may_not_use_any_more_is_not_asked(make_world: Any) -> None:
    """The settings may have changed since the conversation was given its model; others are not named to it."""
    allowed = [ALL_PERMISSIONS]
    world = make_world(permissions=lambda _principal: allowed[0])
    talk = world.create()
    allowed[0] = msgspec.structs.replace(ALL_PERMISSIONS, models=("gpt-*",))
    talk.send("hello")
    assert "is not allowed to use model" in talk.rest(Error).message
    with pytest.raises(Rejected) as refusal:
        talk.ask(UpdateConversationCommand(model="gpt-0"))
    assert refusal.value.reason is Reason.MODEL_UNAVAILABLE
    assert talk.record.model not in str(refusal.value)


def test_single_labels_and_amounts_change_and_the_others_stay(world: World) -> None:
    talk = world.create()
    talk.ask(UpdateConversationCommand(labels={"a": "1", "b": "2"}, budget=Budget(1, 2, 3)))
    changed = talk.ask(UpdateConversationCommand(some_labels={"b": None, "c": "3"}, some_amounts={"run_tokens": 9}))
    assert (changed.labels, changed.budget) == ({"a": "1", "c": "3"}, Budget(9, 2, 3))
    with pytest.raises(InvalidFieldError) as refusal:
        talk.ask(UpdateConversationCommand(some_labels={f"k{number}": "" for number in range(63)}))
    assert refusal.value.field == "labels"
    assert talk.record.labels == {"a": "1", "c": "3"}


def test_settings_change_under_their_etag_and_slugs_are_unique(world: World) -> None:
    talk, other = world.create(slug="mine"), world.create(slug="yours")
    etag = etag_of(talk.record)
    assert talk.ask(UpdateConversationCommand(etag=etag, title="A title", labels={"a": "b"})).title == "A title"
    with pytest.raises(EtagMismatchError):
        talk.ask(UpdateConversationCommand(etag=etag, title="Another"))
    with refused(Reason.SLUG_TAKEN, "slug yours is already taken"):
        talk.ask(UpdateConversationCommand(slug="yours"))
    with refused(Reason.SLUG_TAKEN, "slug mine is already taken"):
        world.create(slug="mine")
    assert talk.record.slug == "mine"
    assert other.record.slug == "yours"
    with refused(Reason.MODEL_UNAVAILABLE):
        talk.ask(UpdateConversationCommand(model="nope"))


def test_an_archived_conversation_starts_nothing(world: World) -> None:
    talk = world.create()
    talk.ask(ArchiveConversationCommand(True))
    with refused(Reason.ARCHIVED):
        talk.send("hello")
    with refused(Reason.ARCHIVED):
        talk.ask(TriggerContinuationCommand())
    talk.ask(ArchiveConversationCommand(False))
    talk.send("hello")
    with refused(Reason.AGENT_BUSY) as refusal:
        talk.ask(ArchiveConversationCommand(True))
    assert str(refusal.value) == "agent is busy: cancel it first, then archive the conversation"
    talk.answer("hi")


def test_delete_refuses_a_busy_conversation_unless_forced(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    with refused(Reason.AGENT_BUSY):
        talk.ask(DeleteConversationCommand())
    with pytest.raises(EtagMismatchError):
        talk.ask(DeleteConversationCommand(force=True, etag="outdated"))
    assert not isinstance(talk.record.state, Idle)
    assert talk.ask(DeleteConversationCommand(force=True, etag=etag_of(talk.record))) == ()
    assert exchange.cancel.cancelled
    with pytest.raises(UnknownConversationError):
        talk.send("anybody?")
    assert world.store.load(talk.id) is None


def test_an_expired_request_is_dropped_unapplied(world: World) -> None:
    talk = world.create()
    late = world.supervisor.ask(talk.id, SendMessageCommand("too late"), deadline=world.clock.monotonic() - 1)
    assert isinstance(late.exception(10), DeadlineExceededError)
    assert talk.record.state.ledger.seq == 0


def test_the_context_is_summarised_by_hand_and_continued_once(world: World) -> None:
    talk = world.create()
    with refused(Reason.NOT_EXHAUSTED):
        talk.ask(ContinueConversationCommand())
    talk.turn("remember the milk", "I will")
    talk.ask(TriggerContinuationCommand())
    summary = talk.exchange()
    assert summary.request.tools == ()
    with refused(Reason.CONTINUATION_IN_PROGRESS):
        talk.ask(ContinueConversationCommand())
    summary.say("The person wants milk.")
    talk.until(lambda: talk.record.state.__class__.__name__ == "ContextExhausted")
    with refused(Reason.CONTEXT_EXHAUSTED):
        talk.send("more")
    first = talk.ask(ContinueConversationCommand(include_summary=True))
    assert talk.ask(ContinueConversationCommand(include_summary=True)).id == first.id
    assert first.continued_from == talk.id
    assert talk.record.continued_by == first.id
    messages = world.store.history(first.id, 10)
    assert "The person wants milk." in messages[0].content[0].text


def test_idle_conversations_keep_no_thread(world: World) -> None:
    object.__setattr__(world.services, "idle_seconds", 0.0)
    talk = world.create()
    talk.turn("hello", "hi")
    gone = threading.Event()
    while world.supervisor.live_count():
        gone.wait(0.005)
    mine = ("Conversation", "LlmRunner", "ToolRunner")
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith(mine)], "its runners have ended")
    talk.turn("awake?", "yes")


def test_the_model_is_told_of_a_new_day_and_the_prompt_stays(make_world: Callable[..., World]) -> None:
    clock = Calendar()
    world = make_world(clock=clock)
    talk = world.create()
    for clock.days in (0, 0, 2, 2):
        talk.turn("go on", "Done.")
    told = [message for message in world.truth.history(talk.id, 100) if message.type is MessageType.SYSTEM]
    assert [text_of(message.content) for message in told] == [f"The date is now {ports.date_of(clock.now_ms())} (UTC)."]
    assert told[0].sequence == 5
    assert differences(world.truth, talk.record) == []
