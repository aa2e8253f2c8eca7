"""What pruning takes and what it leaves: old events go, a few at a time; everything else stays and is still proven."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.adapters.store import removal
from actors.adapters.store.sqlite import engine
from actors.adapters.store.sqlite.engine import raw, sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import Attachment, CommandRecord, FaultPoints, Store, StoreDamagedError
from tests.integration.store.conftest import SECONDS, Gate, wait_until_removed
from tests.support.commit_builder import CommitBuilder

PAGE_BYTES = 4_096
STEPS = 40


def grow(store: Store, conversation_id: str = "c1", steps: int = STEPS) -> CommitBuilder:
    """A conversation of so many transitions, the first of which has a command: 2 events each, 1 at its birth."""
    draft = CommitBuilder.stored(store, conversation_id)
    store.commit(draft.next(command=CommandRecord("r1", "hash", b'"answer"', 1)))
    for _ in range(steps - 2):
        store.commit(draft.next())
    return draft


def first_step(store: Store) -> int:
    return store.transitions("c1", after_step=0, limit=1)[0].step


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PRUNED_ROWS", 7)


# --- what goes --------------------------------------------------------------------------------------------------------


def test_old_rows_go_a_few_at_a_time_until_none_is_left(store: Store, few_at_a_time: None) -> None:
    draft = grow(store)
    taken = []
    while number := store.prune_log("c1", draft.record.revision - 9):
        taken.append(number)
        assert store.verify("c1") == ()
    assert taken == [7, 7, 7, 7, 7]
    assert first_step(store) == 36
    assert [row.step for row in store.transitions("c1", after_step=0, limit=99)] == [36, 37, 38, 39, 40]


def test_much_text_goes_in_smaller_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "CHARACTERS", 3_000)
    draft = grow(store)
    assert 0 < store.prune_log("c1", draft.record.revision) < 20


def test_only_what_is_old_enough_goes(store: Store) -> None:
    draft = grow(store)
    at = store.transitions("c1", after_step=11, limit=1)[0].at
    assert store.prune_log("c1", draft.record.revision, older_than=at) == 11
    assert store.prune_log("c1", draft.record.revision, older_than=at) == 0
    assert first_step(store) == 12


def test_transitions_without_events_go_with_those_before_them(store: Store) -> None:
    draft = CommitBuilder.stored(store, "c1")
    for _ in range(5):
        store.commit(draft.next(events=(), messages=0))
    store.commit(draft.next())
    store.commit(draft.next())
    assert store.prune_log("c1", 3) == 6
    assert first_step(store) == 7
    assert store.verify("c1") == ()


# --- what stays -------------------------------------------------------------------------------------------------------


def test_messages_and_commands_stay_and_the_conversation_goes_on(store: Store) -> None:
    draft = grow(store)
    before = (store.load("c1"), store.history("c1", 999), store.command("c1", "r1"), store.snapshot("c1", 5))
    assert store.prune_log("c1", draft.record.revision)
    assert (store.load("c1"), store.history("c1", 999), store.command("c1", "r1"), store.snapshot("c1", 5)) == before
    store.commit(draft.next())
    assert store.verify("c1") == ()
    assert store.prune_log("c1", draft.record.revision) > 0
    assert store.verify("c1") == ()


def test_two_who_prune_at_once_take_nothing_twice(store: Store, few_at_a_time: None) -> None:
    draft = grow(store, steps=200)
    with ThreadPoolExecutor(4) as threads:

        def prune(_: int) -> None:
            while store.prune_log("c1", draft.record.revision - 9):
                pass

        list(threads.map(prune, range(4), timeout=SECONDS))
    assert first_step(store) == 196
    assert store.verify("c1") == ()


def test_rows_that_were_changed_are_evidence_and_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    draft = grow(store)
    raw(store._writer._database).execute("UPDATE log SET event = '{}' WHERE step = 5")
    with pytest.raises(StoreDamagedError, match="step 5 of c1 has been modified"):
        store.prune_log("c1", draft.record.revision)
    assert first_step(store) == 1
    assert any("step 5" in found for found in store.verify("c1"))
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM log WHERE step = 21",
        "DELETE FROM log",
        "DELETE FROM prunings",
        "UPDATE prunings SET hash = 'x'",
        "UPDATE prunings SET step = step + 1",
        "UPDATE log SET prev_hash = 'x' WHERE step = 21",
        "UPDATE log SET event = '{}' WHERE step = 21",
        "UPDATE messages SET content = replace(content, 'ls', 'rm') WHERE sequence_id = 3",
        "DELETE FROM messages WHERE sequence_id = 3",
        "DELETE FROM messages WHERE sequence_id = 39",
    ],
)
def test_whatever_is_changed_about_a_pruned_conversation_is_found(tmp_path: Path, statement: str) -> None:
    store = open_store(tmp_path)
    grow(store)
    assert store.prune_log("c1", 41) == 20
    assert (first_step(store), store.verify("c1")) == (21, ())
    raw(store._writer._database).execute(statement)
    assert store.verify("c1") != ()
    store.close()


# --- who is due -------------------------------------------------------------------------------------------------------


def test_conversations_whose_log_begins_long_ago_are_found(store: Store) -> None:
    for number in range(5):
        grow(store, f"c{number}", steps=5 + number)
    at = store.transitions("c1", after_step=0, limit=1)[0].at
    assert store.prunable(before=at, keep=0, limit=9) == ()
    assert store.prunable(before=at + 1, keep=0, limit=9) == ("c0", "c1", "c2", "c3", "c4")
    assert store.prunable(before=at + 1, keep=0, after="c1", limit=2) == ("c2", "c3")
    assert store.prunable(before=at + 1, keep=13, limit=9) == ("c3", "c4")
    while store.prune_log("c4", 99):
        pass
    assert store.prunable(before=at + 1, keep=13, limit=9) == ("c3",)


def test_what_has_been_archived_for_long_is_found_sub_agents_apart(store: Store) -> None:
    for number, at in enumerate([None, 100, 200, 300]):
        store.commit(CommitBuilder(f"c{number}", archived_at=at).create())
    store.commit(
        CommitBuilder("c1-a1", slug="", archived_at=100, parent_conversation_id="c1", user_initiated=False).create()
    )
    assert store.archived(before=100, limit=9) == ()
    assert store.archived(before=300, limit=9) == ("c1", "c2")
    assert store.archived(before=301, after="c1", limit=1) == ("c2",)


# --- space ------------------------------------------------------------------------------------------------------------


def size_of(store: PeeweeStore, path: Path) -> int:
    raw(store._writer._database).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return (path / "bedrock.db").stat().st_size


def test_space_is_given_back_a_little_at_a_time_but_for_a_reserve(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(40):
        grow(store, f"c{number}", steps=10)
    full = size_of(store, tmp_path)
    for number in range(39):
        store.delete(f"c{number}")
    wait_until_removed(store)
    assert size_of(store, tmp_path) == full
    steps = 0
    while store.compact(16 * PAGE_BYTES, spare_bytes=20 * PAGE_BYTES):
        steps += 1
    pages = raw(store._writer._database).execute("PRAGMA freelist_count").fetchone()[0]
    assert (steps > 3, pages) == (True, 20)
    assert size_of(store, tmp_path) < full // 2
    assert store.verify("c39") == ()
    assert raw(store._writer._database).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


def test_a_database_that_cannot_give_space_back_keeps_it(
    tmp_path: Path, open_any: Callable[[FaultPoints], Store]
) -> None:
    made = sqlite3.connect(tmp_path / "bedrock.db")
    made.execute("PRAGMA journal_mode = wal")
    made.execute("CREATE TABLE filler (x)")
    made.close()
    store = open_store(tmp_path)
    for number in range(10):
        grow(store, f"c{number}", steps=10)
        store.delete(f"c{number}")
    assert not store.compact(16 * PAGE_BYTES, spare_bytes=0)
    store.close()
    assert not open_any(Gate()).compact(16 * PAGE_BYTES, spare_bytes=10_000 * PAGE_BYTES)


def test_the_write_ahead_log_stays_short_whatever_the_size_of_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WAL_PAGES", 256)
    store = open_store(tmp_path)
    store.commit(CommitBuilder("c1").create())
    for number in range(40):
        store.put_attachment("c1", Attachment(f"a{number}", "image/png", os.urandom(300_000), 1, 1))
    assert (tmp_path / "bedrock.db-wal").stat().st_size < 3 << 20
    store.close()
