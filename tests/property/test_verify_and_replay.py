"""Verify and replay, over random lives in a real store: of what was written they find nothing, of what was changed
behind its back they find everything."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from actors.adapters.store import models as schema
from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core.context import Profile
from actors.core.invariants import InvariantChecker
from actors.core.notifications import ApprovalRequested, ApprovalResolved, Durable, MessageAdded, QueueChanged, RunStop
from actors.maintenance.verify import findings
from actors.ports import Attachment, CommandRecord, Store, StoreDamagedError
from tests.property.drive import a_context, happen
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes
from tests.property.written import WrittenWorld
from tests.support.replaying import differences
from tests.support.stores import new_store


def live(world: WrittenWorld, tape: Tape) -> None:
    """A life in which owners change and receipts come in."""
    while not tape.over and not world.terminal:
        happen(world, tape)
        if tape.one_in(20):
            world.reap(tape)
        if tape.one_in(20):
            world.lose()


def found(store: Store, conversation_id: str) -> list[str]:
    """All that verify and replay have to say."""
    try:
        record = store.load(conversation_id)
    except StoreDamagedError:
        return ["unreadable", *store.verify(conversation_id)]
    if record is None:
        return ["gone"]
    try:
        return [*findings(store, record), *differences(store, record)]
    except StoreDamagedError:
        return ["unreadable", *store.verify(conversation_id)]


@pytest.mark.parametrize("sub_agent", [False, True])
def test_nothing_is_found_in_what_was_written_and_the_machine_says_the_same_again(sub_agent: bool) -> None:
    store = new_store()

    @profile(100)
    @given(tapes(100, 260))
    def any_life(tape: Tape) -> None:
        store.delete("c")
        world = WrittenWorld(store, a_context(tape, sub_agent=sub_agent))
        live(world, tape)
        assert found(store, "c") == []

    any_life()


@pytest.mark.parametrize("sub_agent", [False, True])
def test_of_a_pruned_conversation_what_is_left_is_checked(sub_agent: bool) -> None:
    store = new_store()

    @profile(40)
    @given(tapes(100, 260))
    def any_life(tape: Tape) -> None:
        store.delete("c")
        world = WrittenWorld(store, a_context(tape, sub_agent=sub_agent))
        live(world, tape)
        while store.prune_log("c", world.record.revision * 2 // 3):
            pass
        assert findings(store, world.record) == ()

    any_life()


# --- whatever is changed is found -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PeeweeStore, sqlite3.Connection]]:
    """A life that has everything in it, in a file; and a way into that file behind the store's back."""
    path = tmp_path_factory.mktemp("audit")
    store = open_store(path)
    world = WrittenWorld(store, a_context(tape := Tape(random.Random(1).randbytes(700))))
    live(world, tape)
    commit = replace(world.a_commit(), command=CommandRecord("r1", "hash", b'"answer"', 1))
    store.commit(replace(commit, record=replace(commit.record, profile=Profile("Sell.")), profile_changed=True))
    store.put_attachment("c", Attachment("sha256-1", "image/png", b"bytes", 1, 2))
    connection = sqlite3.connect(path / FILE, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    yield store, connection
    connection.close()
    store.close()


TABLES = ("conversations", "prompts", "profiles", "messages", "log", "runs", "fates", "commands", "attachments")
ELSEWHERE = {
    "commands.principal",
    *(f"{name}.conversation_id" for name in ("prompts", "profiles", "commands", "attachments")),
}
"""Not looked at: NULL, or what makes a row another conversation's, which then has one too many."""


def columns() -> list[str]:
    """Every column of every table that holds a part of a conversation."""
    return [
        f"{name}.{field.column_name}"
        for model in schema.TABLES
        if (name := model._meta.table_name) in TABLES
        for field in model._meta.sorted_fields
        if f"{name}.{field.column_name}" not in ELSEWHERE
    ]


def another(value: Any, chance: random.Random) -> Any:
    """Another number, or a text of which one character is another."""
    match value:
        case None | "":
            return "x"
        case int():
            return value + chance.choice((-9_999, 9_999))
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
        case _:
            place = chance.randrange(len(value))
            return value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]


@pytest.mark.parametrize("column", columns())
def test_a_change_in_any_column_is_found(stored: tuple[PeeweeStore, sqlite3.Connection], column: str) -> None:
    store, connection = stored
    table, _, name = column.partition(".")
    chance = random.Random(column)
    found_rows = connection.execute(f"SELECT rowid, {name} FROM {table}").fetchall()
    for rowid, value in chance.sample(found_rows, min(2, len(found_rows))):
        changed = another(value, chance)
        connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (changed, rowid))
        try:
            assert found(store, "c"), (column, value, changed)
        finally:
            connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (value, rowid))
    assert found(store, "c") == []


@pytest.mark.parametrize("table", ["messages", "log", "runs", "fates"])
def test_a_missing_row_is_reported(stored: tuple[PeeweeStore, sqlite3.Connection], table: str) -> None:
    store, connection = stored
    for (rowid,) in random.Random(table).sample(connection.execute(f"SELECT rowid FROM {table}").fetchall(), 3):
        connection.execute("BEGIN")
        row = connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        connection.execute("COMMIT")
        try:
            assert found(store, "c"), rowid
        finally:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    assert found(store, "c") == []


# --- a story that cannot be ------------------------------------------------------------------------------------------


def told_by(world: WrittenWorld) -> list[Durable]:
    return [event.notification for event in world.store.events("c", after=0, limit=100_000)]


def judged(world: WrittenWorld, told: Sequence[Durable]) -> list[str]:
    audit = InvariantChecker("c")
    found = [text for each in told for text in audit.check(each)]
    return [*found, *audit.check_end(world.state, world.context.mode)]


@pytest.mark.parametrize("kind", [MessageAdded, RunStop, QueueChanged, ApprovalRequested, ApprovalResolved])
@pytest.mark.parametrize("way", ["left out", "told twice"])
def test_a_story_in_which_something_is_missing_or_repeated_is_invalid(kind: type[Durable], way: str) -> None:
    """Hashes and digests may be right: what a faulty server writes is whole, and wrong all the same."""
    looked_at = 0
    for seed in (12, 35, 37):
        tape = Tape(random.Random(seed).randbytes(700))
        world = WrittenWorld(new_store(), a_context(tape))
        live(world, tape)
        told = told_by(world)
        assert judged(world, told) == []
        for index, one in enumerate(told):
            if isinstance(one, kind):
                looked_at += 1
                assert judged(world, [*told[:index], *(() if way == "left out" else (one, one)), *told[index + 1 :]])
    assert looked_at > 3
