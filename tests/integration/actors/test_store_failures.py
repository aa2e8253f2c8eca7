"""A store that fails: commands are refused at once, outcomes and cancels are not lost, nobody is stuck (C36)."""

import itertools
from typing import Any

import pytest

from actors.core.content import ToolUse
from actors.core.context import Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import Fate, QueueChanged, RunStop, ToolTreeReaped
from actors.core.states import Idle, LlmRequesting, ToolExecuting
from actors.messages import (
    ArchiveConversationCommand,
    CancelConversationCommand,
    DeleteConversationCommand,
    SendMessageCommand,
    SetModeCommand,
    SpawnSubAgentsCommand,
    SpawnSubAgentsTask,
    TriggerContinuationCommand,
    UpdateConversationCommand,
)
from actors.ports import StoreDamagedError, ToolOutput
from tests.integration.actors.test_lifetimes import all_gone
from tests.support.patience import PATIENCE

World = Any

BASH = ToolUse("t1", "bash", '{"cmd": "ls"}')


def refused(reason: Reason) -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason)


def refusal(world: World) -> None:
    """Wait until the store has refused a commit."""
    assert world.store.refusals.acquire(timeout=PATIENCE)


def test_a_command_that_cannot_be_stored_is_refused_and_changes_nothing(shaky: World) -> None:
    talk = shaky.create()
    before = talk.record
    shaky.store.down = True
    for request in (
        SendMessageCommand("hello"),
        UpdateConversationCommand(title="x"),
        ArchiveConversationCommand(True),
    ):
        with refused(Reason.STORE_UNAVAILABLE):
            talk.ask(request)
    shaky.store.down = False
    assert talk.record == before
    assert shaky.model.asked == 0
    talk.turn("hello", "hi")
    assert talk.texts() == ["hello", "hi"]


def test_a_conversation_that_cannot_be_stored_is_not_created_and_leaves_no_thread(shaky: World) -> None:
    shaky.store.down = True
    with refused(Reason.STORE_UNAVAILABLE):
        shaky.create()
    all_gone(shaky)
    shaky.store.down = False
    shaky.create()


def test_an_answer_waits_for_the_store_and_is_stored_once(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    exchange.say("hi")
    for _ in range(3):
        refusal(shaky)
    assert isinstance(talk.state, LlmRequesting)
    shaky.store.down = False
    talk.rest(Idle)
    assert talk.texts() == ["hello", "hi"]
    assert shaky.model.asked == 1


def test_while_an_answer_waits_commands_are_refused_at_once(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    exchange.sink.started()
    exchange.sink.text("h")
    exchange.sink.flush()
    exchange.say("hi")
    refusal(shaky)
    for delivery in ("reject", "steer", "follow_up"):
        with refused(Reason.STORE_UNAVAILABLE):
            talk.send("and?", delivery=delivery)
    shaky.store.down = False
    talk.rest(Idle)
    assert talk.texts() == ["hello", "hi"]


def test_what_waits_is_stored_before_the_next_command(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    exchange.say("hi")
    refusal(shaky)
    shaky.store.down = False
    talk.turn("and?", "that is all")
    assert talk.texts() == ["hello", "hi", "and?", "that is all"]


def test_a_cancel_takes_effect_at_once_and_is_stored_before_all_waiting_commands(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    receipt = talk.cancel()
    assert (receipt.recorded, receipt.no_op, receipt.llm_request_id) == (False, False, f"{talk.id}:r1")
    assert (receipt.state.kind, receipt.revision) == ("llm_requesting", talk.record.revision), "what is stored still"
    assert exchange.cancel.cancelled
    refusal(shaky)
    shaky.store.down = False
    talk.rest(Idle)
    assert talk.texts() == ["hello"]
    assert shaky.model.asked == 1, "the aborted request was taken for one that failed"
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "")]


def test_what_a_cancel_has_queued_up_is_decided_when_it_is_stored(shaky: World) -> None:
    talk = shaky.create()
    talk.asks("hello")
    talk.send("by the way", delivery="steer")
    shaky.store.down = True
    assert talk.cancel().settled == ()
    shaky.store.down = False
    talk.rest(Idle)
    assert [told.fate for told in talk.found(QueueChanged)] == [Fate.QUEUED, Fate.RETURNED]


def test_a_cancel_overtakes_an_answer_that_waits_for_the_store(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    exchange.say("hi")
    refusal(shaky)
    for _ in range(5):
        assert not talk.cancel().recorded
    assert not talk.cancel(discard_queued=True).recorded
    shaky.store.down = False
    talk.rest(Idle)
    assert talk.texts() == ["hello"]
    assert len(talk.found(RunStop)) == 1


def test_a_cancelled_tool_is_dead_and_starts_no_more_though_its_cancel_was_late_to_be_stored(shaky: World) -> None:
    talk = shaky.create()
    talk.asks("go").call(BASH, ToolUse("t2", "look", "{}"))
    run = talk.tool()
    run.reap.set()
    shaky.store.down = True
    receipt = talk.cancel()
    assert (receipt.recorded, receipt.tool_use_ids) == (False, ("t1", "t2"))
    assert run.context.cancel.cancelled
    refusal(shaky)
    shaky.store.down = False
    talk.rest(Idle)
    talk.until(lambda: bool(talk.found(ToolTreeReaped)))
    assert talk.texts()[-2:] == ["Cancelled by user", "Skipped due to cancellation"]
    assert shaky.box.tools["bash"].started == 1
    assert shaky.box.tools["look"].started == 0
    assert shaky.model.asked == 1


def test_an_outcome_that_was_stored_after_all_goes_on_as_if_nothing_had_happened(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("go")
    shaky.store.lies = 1
    exchange.call(BASH)
    talk.tool().finish.put(ToolOutput("out"))
    shaky.store.lies = 1
    talk.answer("done")
    assert talk.texts() == ["go", "", "out", "done"]
    assert shaky.box.tools["bash"].started == 1
    assert [stop.reason.value for stop in talk.found(RunStop)] == ["completed"]


def test_a_message_that_was_stored_though_it_was_refused_leaves_no_caller_waiting(shaky: World) -> None:
    talk = shaky.create()
    request = SendMessageCommand("hello", request_id="11111111-1111-4111-8111-111111111111", body_hash="h")
    shaky.store.lies = 1
    with refused(Reason.STORE_UNAVAILABLE):
        talk.ask(request)
    talk.until(lambda: bool(talk.found(RunStop)))
    talk.rest(Idle)
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "restart")]
    assert talk.ask(request).duplicate
    assert talk.texts() == ["hello"]
    assert shaky.model.asked == 0


def test_a_cancel_that_was_stored_though_it_was_refused_is_known_again(
    shaky: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = shaky.create()
    talk.asks("go")
    owner = talk.record.epoch
    ticks = itertools.count(shaky.clock.now_ms())
    monkeypatch.setattr(shaky.clock, "now_ms", lambda: next(ticks))
    shaky.store.lies = 1
    assert not talk.cancel().recorded
    talk.rest(Idle)
    talk.ask(UpdateConversationCommand(title="afterwards"))
    assert talk.record.epoch == owner, "it was taken for somebody else's"
    assert len(talk.found(RunStop)) == 1


def test_a_receipt_waits_for_the_store_too(shaky: World) -> None:
    talk = shaky.create()
    run = talk.starts(BASH)
    talk.cancel()
    shaky.store.down = True
    run.reap.set()
    refusal(shaky)
    shaky.store.down = False
    talk.until(lambda: bool(talk.found(ToolTreeReaped)))
    talk.rest(Idle)


def test_a_stop_does_not_wait_for_the_store_and_the_next_start_brings_the_rest(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("hello")
    shaky.store.down = True
    exchange.say("lost with the server")
    refusal(shaky)
    shaky.supervisor.stop(0)
    assert shaky.supervisor.live_count() == 0
    assert isinstance(talk.state, LlmRequesting)
    successor = type(shaky)(shaky.truth)
    try:
        assert successor.supervisor.start() == (talk.id,)
        talk.rest(Idle)
    finally:
        successor.close()


def test_a_conversation_that_cannot_be_read_is_asked_again_later(shaky: World) -> None:
    object.__setattr__(shaky.services, "idle_seconds", 0.0)
    talk = shaky.create()
    all_gone(shaky)
    shaky.store.deaf = True
    with refused(Reason.STORE_UNAVAILABLE):
        talk.send("hello")
    shaky.store.deaf = False
    talk.turn("hello", "hi")


class Damaged:
    """A store in which some conversations cannot be read back."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.ids: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load(self, conversation_id: str) -> Any:
        if conversation_id in self.ids:
            raise StoreDamagedError("what is stored has been modified")
        return self._store.load(conversation_id)

    def claim(self, conversation_id: str, _taken: object) -> Any:
        return self.load(conversation_id)


def test_a_damaged_conversation_affects_no_other_one_and_keeps_no_thread(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = world.create(), world.create()
    for talk in (broken, sound):
        talk.asks("go")
    damaged = Damaged(world.store)
    damaged.ids.add(broken.id)
    successor = type(world)(damaged)
    try:
        successor.supervisor.start()
        after = type(sound)(successor, sound.id)
        after.rest(Idle)
        failed = successor.supervisor.ask(broken.id, SendMessageCommand("hello")).exception(PATIENCE)
        assert isinstance(failed, StoreDamagedError)
        assert broken.id in {getattr(line, "conversation", "") for line in caplog.records}
        assert successor.supervisor.ask(broken.id, CancelConversationCommand()).exception(PATIENCE) is not None
        all_gone(successor)
        after.turn("still there?", "yes")
    finally:
        successor.close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_forced_deletion_needs_no_room_for_a_cancel(shaky: World, cancelled: bool) -> None:
    """On a full disk it is what makes room: deletions are taken where nothing else can be written."""
    talk = shaky.create()
    talk.starts(BASH).reap.set()
    shaky.store.down = True
    if cancelled:
        assert not talk.cancel().recorded
    assert shaky.supervisor.ask(talk.id, DeleteConversationCommand(force=True)).result(PATIENCE) == ()
    assert shaky.truth.load(talk.id) is None
    all_gone(shaky)


def test_a_forced_deletion_that_is_not_stored_has_cancelled_the_run(shaky: World) -> None:
    talk = shaky.create()
    talk.asks("go")
    shaky.store.deaf = True
    deletion = shaky.supervisor.ask(talk.id, DeleteConversationCommand(force=True))
    assert isinstance(deletion.exception(PATIENCE), Rejected)
    shaky.store.deaf = False
    talk.rest(Idle)


class Unreadable:
    """A store of which nobody can read what was said."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def messages(self, *about: Any, **limits: Any) -> Any:
        raise StoreDamagedError("what is stored has been modified")


@pytest.mark.parametrize(
    "request_",
    [
        SendMessageCommand("hello"),
        TriggerContinuationCommand(),
        SpawnSubAgentsCommand((SpawnSubAgentsTask("look"),)),
        SetModeCommand(Mode.UNRESTRICTED),
        UpdateConversationCommand(title="Other"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_nothing_changes_over_a_history_that_cannot_be_read(world: World, request_: Any) -> None:
    talk = world.create()
    talk.turn("go", "gone")
    successor = type(world)(Unreadable(world.store))
    try:
        before = talk.record
        assert isinstance(successor.supervisor.ask(talk.id, request_).exception(PATIENCE), StoreDamagedError)
        assert talk.record == before
    finally:
        successor.close()


def test_one_conversation_that_another_has_written_to_does_not_keep_the_others_from_rest(world: World) -> None:
    talks = [world.create() for _ in range(3)]
    for talk in talks:
        talk.asks("go")
    inner = world.store

    class Contested:
        """The commit of several fails as a whole because of one of them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def commit(self, *parts: Any, urgent: bool = False) -> None:
            if talks[1].id in {part.record.id for part in parts}:
                raise ValueError("this part contradicts itself")
            inner.commit(*parts, urgent=urgent)

    successor = type(world)(Contested())
    try:
        successor.supervisor.start()
        assert [type(talk.state) for talk in talks] == [Idle, LlmRequesting, Idle]
    finally:
        successor.close()


def test_a_tool_result_waits_for_the_store_and_the_next_tool_with_it(shaky: World) -> None:
    talk = shaky.create()
    talk.asks("go").call(BASH, ToolUse("t2", "look", "{}"))
    run = talk.tool()
    shaky.store.down = True
    run.finish.put(ToolOutput("a.txt"))
    refusal(shaky)
    assert isinstance(talk.state, ToolExecuting)
    assert shaky.box.tools["look"].started == 0
    shaky.store.down = False
    talk.tool("look").finish.put(ToolOutput("seen"))
    talk.answer("done")
    assert shaky.box.tools["bash"].started == 1


def test_a_conversation_that_could_not_be_recovered_is_not_shown_as_busy(world: World, shaky: World) -> None:
    talk = world.create()
    talk.asks("go")
    shaky.store.inner = world.truth
    shaky.store.down = True
    for _ in range(2):
        failed = shaky.supervisor.ask(talk.id, SendMessageCommand("hello")).exception(PATIENCE)
        assert isinstance(failed, Rejected)
        assert failed.reason is Reason.STORE_UNAVAILABLE
    shaky.store.down = False
    after = type(talk)(shaky, talk.id)
    after.world.truth = world.truth
    after.turn("hello", "hi")
    assert after.texts() == ["go", "hello", "hi"]
