"""Quotas where they bind: exact under load, fair, kept over a restart, and free again when work ends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bedrock.testing.waiting import eventually

from actors import messages
from actors.core.content import SystemKind, ToolUse, Usage
from actors.core.errors import QuotaExceededError, Reason, Rejected
from actors.core.notifications import RunStop, StopReason
from actors.core.states import Idle, LlmRequesting, ToolExecuting
from actors.ports import Attachment, Spending, ToolOutput, day_of
from actors.runtime.quotas import Quota, QuotaBook, QuotaSettings
from actors.runtime.services import SystemClock
from tests.integration.actors.conftest import ShakyStore, Talk, World
from tests.integration.actors.family import FamilyBox, FamilyModel, tasks
from tests.support.patience import PATIENCE
from tests.support.stores import new_store

CALL = ToolUse("t1", "bash", "{}")


@pytest.fixture
def limited(make_world: Callable[..., World]) -> Callable[..., World]:
    """Makes worlds whose principals have these quotas each."""

    def make(
        store: Any = None, together: dict[Quota, int] | None = None, world: dict[str, Any] | None = None, **quotas: int
    ) -> World:
        settings = QuotaSettings(together or {}, {Quota(name): limit for name, limit in quotas.items()})
        store = store or new_store()
        book = QuotaBook(settings, SystemClock(), store.spendings(0), put_spending=store.put_spending)
        return make_world(store, quotas=book, **(world or {}))

    return make


def refused(talk: Talk) -> QuotaExceededError:
    step = talk.record.step
    with pytest.raises(QuotaExceededError) as caught:
        talk.send("no")
    assert talk.record.step == step
    return caught.value


def test_of_a_hundred_messages_at_once_exactly_as_many_begin_runs_as_may(limited: Callable[..., World]) -> None:
    world = limited(concurrent_runs=7)
    talks = [world.create() for _ in range(100)]
    with ThreadPoolExecutor(32) as pool:
        asked = pool.map(lambda talk: world.supervisor.ask(talk.id, messages.SendMessageCommand("go")), talks)
        failures = [future.exception(PATIENCE) for future in asked]
    assert sum(failure is None for failure in failures) == 7
    assert {type(failure) for failure in failures} == {type(None), QuotaExceededError}
    started = [talk for talk, failure in zip(talks, failures, strict=True) if failure is None]
    for _ in started:
        world.model.exchanges.get(timeout=PATIENCE).say("done")
    for talk in started:
        talk.rest(Idle)
    for talk in talks[:7]:
        talk.send("again")


def test_a_run_is_free_again_when_it_is_cancelled_deleted_or_refused_by_the_store(
    limited: Callable[..., World],
) -> None:
    world = limited(concurrent_runs=1)
    first, second = world.create(), world.create()
    first.send("go")
    assert refused(second).quota == "concurrent_runs"
    first.asks("and then", delivery="follow_up").say("done")
    first.exchange()
    assert refused(second), "the follow-up has taken the place of the run before it"
    first.cancel(discard_queued=True)
    second.send("go")
    second.ask(messages.DeleteConversationCommand(force=True))
    first.send("go")
    first.cancel()


@pytest.mark.parametrize("written", [False, True])
def test_a_run_whose_commit_is_reported_as_failed_keeps_no_place(
    make_world: Callable[..., World], written: bool
) -> None:
    store = ShakyStore(new_store())
    book = QuotaBook(QuotaSettings(each={Quota.CONCURRENT_RUNS: 1}), SystemClock())
    world = make_world(store, quotas=book)
    first, second = world.create(), world.create()
    store.lies, store.down = int(written), not written
    with pytest.raises(Rejected) as caught:
        first.send("go")
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    store.down = False
    first.rest(Idle)
    second.send("go")
    assert refused(first).used == 1


def test_a_request_waits_for_its_turn_and_a_cancel_takes_it_out_of_the_queue(limited: Callable[..., World]) -> None:
    world = limited(concurrent_model_requests=1)
    slots = world.services.quotas.model_slots
    first, second, third = (world.create() for _ in range(3))
    for talk in (first, second, third):
        talk.send("go")
    exchange = first.exchange()
    assert slots.waiting == 2
    assert isinstance(second.state, LlmRequesting)
    second.cancel()
    second.rest(Idle)
    assert slots.waiting == 1
    exchange.say("done")
    third.answer("done, too")
    first.rest(Idle)
    assert world.model.asked == 2


def test_a_run_that_spends_the_rest_ends_at_the_next_request_and_none_begins(limited: Callable[..., World]) -> None:
    store = new_store()
    world = limited(store, tokens_per_day=100)
    talk, idle = world.create(), world.create()
    talk.asks("go").say(CALL, end_turn=False, usage=Usage(60, 40, cost_micros=5))
    talk.rest(ToolExecuting)
    talk.tool().finish.put(ToolOutput("ok"))
    talk.rest(Idle)
    (stop,) = talk.found(RunStop)
    assert (stop.reason, stop.detail) == (StopReason.INTERRUPTED, "budget")
    said = world.truth.messages(talk.id, limit=1, descending=True)[0]
    assert said.kind is SystemKind.BUDGET
    assert "the quota tokens_per_day of tester, 100, is used up" in talk.texts()[-1]
    assert refused(idle).quota == "tokens_per_day"
    assert refused(talk).used == 100

    again = limited(store, tokens_per_day=100)
    assert refused(Talk(again, idle.id)).used == 100
    more = limited(store, tokens_per_day=101)
    Talk(more, idle.id).send("go")
    (spending,) = store.spendings(0)
    assert spending == Spending("tester", day_of(talk.record.updated_at), 100, 5)


def test_nothing_is_made_forked_or_begun_when_no_more_may_be_stored(make_world: Callable[..., World]) -> None:
    store = new_store()
    settings = QuotaSettings(each={Quota.STORED_BYTES: 100})
    book = QuotaBook(settings, SystemClock(), stored_bytes=store.stored_bytes)
    world = make_world(store, quotas=book)
    talk, fed = world.create(), world.create()
    fed.asks("go")
    talk.send("x" * 100)
    talk.asks("y", delivery="follow_up").say("done")
    talk.answer("done, too")
    book.deleted("another", "tester")
    assert refused(talk).quota == "stored_bytes"
    with pytest.raises(QuotaExceededError):
        fed.send("z", delivery="follow_up")
    fed.cancel()
    for command in (
        messages.CreateConversationCommand("tester", "/tmp"),
        messages.ForkConversationCommand("tester", talk.id),
    ):
        with pytest.raises(QuotaExceededError):
            world.supervisor.create(command).result(PATIENCE)
    talk.ask(messages.DeleteConversationCommand())
    world.create()


def test_forks_count_at_once_and_one_without_room_is_refused(make_world: Callable[..., World]) -> None:
    store = new_store()
    settings = QuotaSettings(each={Quota.STORED_BYTES: 10_000})
    book = QuotaBook(settings, SystemClock(), stored_bytes=store.stored_bytes)
    world = make_world(store, quotas=book)
    talk = world.create()
    talk.turn("x" * 3_000, "done")
    store.put_attachment(talk.id, Attachment("not shown", "image/png", b"x", 1, 1))
    book.deleted("another", "tester")
    fork = messages.ForkConversationCommand("tester", talk.id)
    for _ in range(2):
        world.supervisor.create(fork).result(PATIENCE)
    with pytest.raises(QuotaExceededError, match="needs 3,"):
        world.supervisor.create(fork).result(PATIENCE)
    counted = book.uses("tester")[0].used
    book.deleted("another", "tester")
    assert counted == book.uses("tester")[0].used, "what was counted is what the store has"


def test_what_sub_agents_spend_is_counted_once_and_they_are_no_runs(limited: Callable[..., World]) -> None:
    """Their usage is added to their parent's sums, too, but not to those of the principal."""
    world = limited(tokens_per_day=1_000_000, concurrent_runs=1, world={"model": FamilyModel(), "box": FamilyBox()})
    talk: Any = world.create()
    talk.send(tasks("submit a", "submit b"))
    talk.rest(Idle)
    model: Any = world.model
    requests = len(model.requests)
    assert requests >= 4
    assert [(each.tokens, each.cost_micros) for each in world.store.spendings(0)] == [(100 * requests,) * 2]


def test_what_was_spent_counts_although_its_conversation_or_sub_agent_is_gone(limited: Callable[..., World]) -> None:
    """Else whoever deletes a conversation just before the end of each answer would spend without a bound."""
    world = limited(tokens_per_day=200)
    deleted, parent, other = world.create(), world.create(), world.create()
    deleted.asks("go").counted = Usage(60, 40)
    deleted.ask(messages.DeleteConversationCommand(force=True))
    parent.ask(messages.SpawnSubAgentsCommand((messages.SpawnSubAgentsTask("look"),)))
    parent.exchange().counted = Usage(60, 40)
    parent.cancel()
    eventually(lambda: world.services.quotas.spent("tester"), "both requests have ended")
    assert refused(other).used == 200
    assert sum(each.tokens for each in world.store.spendings(0)) == 200, "also after a restart"
