"""What is kept for how long: old events and what was archived long ago go, what is in use never does."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from actors.adapters.store import removal
from actors.core.errors import Reason, Rejected
from actors.core.states import Idle
from actors.maintenance import retention as housekeeping
from actors.maintenance.retention import DAY_MS, Housekeeper, Retention
from actors.messages import ArchiveConversationCommand, DeleteConversationCommand, EtagMismatchError
from actors.ports import Attachment, StoreDamagedError, StoreUnavailableError
from actors.ports.records import AuditEntry, AuditFilter, CommandOrigin, Outcome
from actors.runtime.services import SystemClock
from tests.support.patience import PATIENCE

World = Any


class Later(SystemClock):
    """The clock of somebody who lives some days ahead."""

    def __init__(self, days: float = 0.0) -> None:
        self.days = days

    def now_ms(self) -> int:
        return super().now_ms() + round(self.days * DAY_MS)


def keeper(world: World, days: float, **retention: Any) -> Housekeeper:
    """A housekeeper who comes in so many days."""
    return Housekeeper(world.store, world.supervisor, Later(days), Retention(**retention))


def turn(world: World, talk: Any) -> None:
    """A message and its answer."""
    exchange = talk.asks("go on")
    exchange.sink.started()
    exchange.sink.flush()
    exchange.say("gone on")
    talk.rest(Idle)


def begins_at(world: World, talk: Any) -> int:
    return int(world.truth.transitions(talk.id, after_step=0, limit=1)[0].first_revision)


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_go_when_they_are_old_enough_and_messages_stay(world: World) -> None:
    talk = world.create()
    for _ in range(3):
        turn(world, talk)
    history = world.truth.history(talk.id, 99)
    keeper(world, 29, events_days=30, events_min=5).sweep()
    assert begins_at(world, talk) == 1
    keeper(world, 31, events_days=30, events_min=5).sweep()
    assert 1 < begins_at(world, talk) <= talk.record.revision - 4
    assert world.truth.history(talk.id, 99) == history
    assert world.truth.verify(talk.id) == ()


def test_the_latest_events_are_kept_however_old_they_are(world: World) -> None:
    talk = world.create()
    turn(world, talk)
    keeper(world, 999, events_days=1, events_min=1_000).sweep()
    assert begins_at(world, talk) == 1
    keeper(world, 999, events_days=1, events_min=1).sweep()
    kept = world.truth.events(talk.id, after=talk.record.revision - 1, limit=9)
    assert [event.revision for event in kept] == [talk.record.revision]


def test_a_conversation_goes_on_while_its_events_are_pruned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PRUNED_ROWS", 1)
    talk = world.create()
    turn(world, talk)
    exchange = talk.asks("and now?")
    exchange.sink.started()
    exchange.sink.flush()
    keeper(world, 2, events_days=1, events_min=1).sweep()
    exchange.say("now this")
    talk.until(lambda: isinstance(talk.state, Idle))
    assert "now this" in talk.texts()
    assert world.truth.verify(talk.id) == ()


def test_one_damaged_log_does_not_keep_others_from_being_pruned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    talks = sorted((world.create() for _ in range(3)), key=lambda talk: str(talk.id))
    for talk in talks:
        turn(world, talk)
    prune = world.store.prune_log

    def damaged(conversation_id: str, *arguments: Any, **options: Any) -> int:
        if conversation_id == talks[0].id:
            raise StoreDamagedError("step 3 was changed")
        return int(prune(conversation_id, *arguments, **options))

    monkeypatch.setattr(world.store, "prune_log", damaged)
    keeper(world, 2, events_days=1, events_min=1).sweep()
    assert [begins_at(world, talk) > 1 for talk in talks] == [False, True, True]


# --- archived conversations -------------------------------------------------------------------------------------------


def test_what_was_archived_long_ago_goes_with_all_that_belongs_to_it(world: World) -> None:
    old, active = world.create(), world.create()
    turn(world, old)
    picture = Attachment("a1", "image/png", b"data", 1, 1)
    world.store.put_attachment(old.id, picture)
    old.ask(ArchiveConversationCommand(archived=True))
    keeper(world, 29, archived_days=30).sweep()
    assert world.truth.load(old.id) is not None
    keeper(world, 31, archived_days=30).sweep()
    assert world.truth.load(old.id) is None
    assert world.truth.attachment(old.id, "a1") is None
    assert world.truth.events(old.id, after=0, limit=9) == ()
    assert world.truth.load(active.id) is not None


def test_by_default_everything_is_kept(world: World) -> None:
    talk = world.create()
    turn(world, talk)
    talk.ask(ArchiveConversationCommand(archived=True))
    keeper(world, 9_999).sweep()
    assert (begins_at(world, talk), world.truth.load(talk.id) is None) == (1, False)


def test_refused_calls_are_kept_for_their_time_and_up_to_their_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SystemClock().now_ms()
    world.store.put_audit([AuditEntry(now + at, Outcome.REFUSED, CommandOrigin("ann"), "ARCHIVED") for at in range(4)])
    keeper(world, 89).sweep()
    keeper(world, 9_999, audit_days=0).sweep()
    assert len(world.store.audit(AuditFilter(), limit=9)) == 4
    monkeypatch.setattr(housekeeping, "AUDIT_ENTRIES", 3)
    keeper(world, 0).sweep()
    assert len(world.store.audit(AuditFilter(), limit=9)) == 3
    keeper(world, 91).sweep()
    assert world.store.audit(AuditFilter(), limit=9) == ()


def test_what_was_taken_out_of_the_archive_meanwhile_stays(world: World) -> None:
    talk = world.create()
    talk.ask(ArchiveConversationCommand(archived=True))
    found = talk.record.archived_at
    assert found is not None
    talk.ask(ArchiveConversationCommand(archived=False))
    for archived in (False, True):
        talk.ask(ArchiveConversationCommand(archived=archived))
        with pytest.raises(EtagMismatchError):
            talk.ask(DeleteConversationCommand(archived_before=found))
    assert world.truth.load(talk.id) is not None


def test_one_that_cannot_be_deleted_does_not_block_others(make_world: Callable[..., World]) -> None:
    world = make_world()
    talks = sorted((world.create() for _ in range(3)), key=lambda talk: str(talk.id))
    for talk in talks:
        talk.ask(ArchiveConversationCommand(archived=True))

    class Refusing:
        def ask(self, conversation_id: str, request: Any, *, deadline: float | None = None) -> Future[Any]:
            if conversation_id != talks[0].id:
                return world.supervisor.ask(conversation_id, request)  # type: ignore[no-any-return]
            refused: Future[Any] = Future()
            refused.set_exception(Rejected(Reason.AGENT_BUSY))
            return refused

    Housekeeper(world.store, Refusing(), Later(2), Retention(archived_days=1)).sweep()
    assert [world.truth.load(talk.id) is None for talk in talks] == [False, True, True]


# --- its life ---------------------------------------------------------------------------------------------------------


def test_it_runs_periodically_and_ends_on_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ROUND_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(housekeeping, "FIRST_SECONDS", 0.0)
    rounds = threading.Semaphore(0)
    failures: list[Exception] = [StoreUnavailableError("the disk is full"), ValueError("a bug")]

    def compact(max_bytes: int, *, spare_bytes: int) -> bool:
        rounds.release()
        if failures:
            raise failures.pop()
        return False

    monkeypatch.setattr(world.store, "compact", compact)
    keeping = keeper(world, 0)
    keeping.start()
    for _ in range(5):
        assert rounds.acquire(timeout=PATIENCE)
    keeping.close()
    keeping.close()
    assert not keeping._thread.is_alive()


def test_one_that_was_never_started_can_be_closed(world: World) -> None:
    keeper(world, 0).close()


def test_it_stops_between_two_steps_when_it_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping = keeper(world, 0)
    steps = 0

    def compact(max_bytes: int, *, spare_bytes: int) -> bool:
        nonlocal steps
        steps += 1
        if steps == 3:
            keeping.close()
        return True

    monkeypatch.setattr(world.store, "compact", compact)
    keeping.sweep()
    assert steps == 3


@pytest.mark.parametrize(
    ("retention", "seconds"),
    [
        (Retention(), 3_600.0),
        (Retention(events_days=30), 3_600.0),
        (Retention(events_days=30, archived_days=0.5), 1_800.0),
        (Retention(archived_days=1e-6), 1.0),
    ],
)
def test_it_looks_as_often_as_the_shortest_time_asks_for(retention: Retention, seconds: float) -> None:
    assert retention.round_seconds == seconds
