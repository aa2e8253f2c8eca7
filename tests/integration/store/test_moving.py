"""Conversations move from SQLite to PostgreSQL with every row, and go on there."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from actors.adapters.store.postgres.engine import PostgresConnection
from actors.adapters.store.postgres.moving import MoveError, move_to
from actors.adapters.store.postgres.store import PostgresStore, open_postgres
from actors.adapters.store.sqlite.backup import back_up, restore
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core.context import Profile
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput
from actors.ports import Attachment, CommandRecord, DataDirectoryBusyError, Spending, StoreError, StoreUnusableError
from actors.ports.records import AuditEntry, AuditFilter, CommandOrigin, LogAudit, Outcome
from actors.ports.store import Selection, TextEquals, TextField
from tests.support.commit_builder import CommitBuilder
from tests.support.postgres import PostgresServer
from tests.support.stores import ME

ANN = CommandOrigin("ann", "user")
ODD = "a\x00b\x01"


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database without anything."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)


def fill(store: PeeweeStore) -> dict[str, CommitBuilder]:
    """Store something in every table."""
    drafts = {
        "c1": CommitBuilder("c1", system_prompt="You are.", title=ODD, labels={"a": ODD}, profile=Profile("Sell.")),
        "c1-a1": CommitBuilder("c1-a1", parent_conversation_id="c1", user_initiated=False, slug=""),
        "c1-a1-a1": CommitBuilder("c1-a1-a1", parent_conversation_id="c1-a1", user_initiated=False, slug=""),
        "c2": CommitBuilder("c2", principal="bob", archived_at=5, profile=Profile(forked_from="c1")),
    }
    for id_, draft in drafts.items():
        store.commit(draft.create(command=CommandRecord(f"create {id_}", "h", b"{}", 1)))
        for number in range(4):
            stop = RunStop(f"{id_}:{number}", StopReason.ERROR, ODD, "no")
            fate = QueueChanged(QueuedInput(f"q{number}", "then", (), 7), "follow_up", Fate.DELIVERED)
            commit = draft.next(events=(stop, fate), command=CommandRecord(f"r{number}", "h", b"{}", 1), context=b"{}")
            audited = (replace(commit.log[0], audit=LogAudit(ANN)), *commit.log[1:])
            store.commit(replace(commit, log=audited, spending=Spending("ann", number, 10, 20)))
    store.put_attachment("c1", Attachment("sha", "image/png", bytes(range(256)) * 9, 3, 4))
    store.put_audit([AuditEntry(at, Outcome.REFUSED, ANN, "ARCHIVED") for at in range(1, 4)])
    store.prune_log("c2", 5)
    return drafts


def everything(store: PeeweeStore | PostgresStore, ids: list[str]) -> list[object]:
    """What every read says."""
    return [
        *(store.snapshot(each, 99) for each in ids),
        *(store.transitions(each, after_step=0, limit=99) for each in ids),
        *(store.stopped_runs(each, limit=99) for each in ids),
        *(store.settled_inputs(each, limit=99) for each in ids),
        *(store.command(each, "r2") for each in ids),
        *(store.verify(each) for each in ids),
        store.attachment("c1", "sha"),
        store.create_command("local", "create c1"),
        sorted(store.spendings(0), key=lambda each: each.day),
        store.audit(AuditFilter(), limit=99),
        store.audit(AuditFilter(principal="ann"), limit=99),
        store.list(Selection("bob", TextEquals(TextField.FORKED_FROM, "c1")), limit=9).records,
    ]


def test_what_was_moved_is_all_there_and_goes_on(tmp_path: Path, empty: str) -> None:
    with closing(open_store(tmp_path)) as store:
        drafts = fill(store)
        before = everything(store, list(drafts))
    moved = move_to(empty, tmp_path, {"tokens.json": b"[]"})
    assert (moved.conversations, moved.rows > 60) == (4, True)
    assert moved.to.startswith("postgresql://postgres@/")
    with closing(open_postgres(empty, ME)) as store:
        assert everything(store, list(drafts)) == before
        with psycopg.connect(empty) as connection:
            families = connection.execute("SELECT id, family, owner FROM conversations ORDER BY id").fetchall()
            connection.execute(
                "INSERT INTO nodes (incarnation, name, address, version, labels, session, lease_seconds, expires)"
                " VALUES (1, '', '', '', '{}', true, 10, 'infinity')"
            )
            assert connection.execute("SELECT * FROM documents").fetchall() == [("tokens.json", 1, b"[]")]
        assert families == [("c1", "c1", None), ("c1-a1", "c1", None), ("c1-a1-a1", "c1", None), ("c2", "c2", None)]
        for id_, draft in drafts.items():
            store.claim(id_)
            store.commit(draft.next())
            assert store.verify(id_) == ()
        store.put_audit([AuditEntry(9_999, Outcome.REFUSED, ANN)])
        assert store.audit(AuditFilter(), limit=99)[-1].number == 4
    (tmp_path / "moved").unlink()
    with closing(open_store(tmp_path)) as store:
        assert everything(store, list(drafts)) == before, "the data directory stays as it is"


def test_what_was_moved_is_opened_no_more_unless_the_mark_is_removed(tmp_path: Path, empty: str) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    with closing(open_store(data)) as store:
        store.commit(CommitBuilder("c1").create())
    back_up(data, copy)
    to = move_to(empty, data, {}).to
    for opens in (
        lambda: open_store(data),
        lambda: back_up(data, tmp_path / "again.db"),
        lambda: restore(copy, data, replace=True),
        lambda: move_to(empty, data, {}),
    ):
        with pytest.raises(StoreUnusableError) as told:
            opens()
        assert f"were moved to {to}; set `database` to that URL" in str(told.value)
        assert f"remove {data / 'moved'}" in str(told.value)
    assert not (tmp_path / "again.db").exists()
    (data / "moved").unlink()
    assert back_up(data, tmp_path / "again.db").conversations == 1


def test_a_database_that_is_used_is_refused(tmp_path: Path, empty: str) -> None:
    with pytest.raises(MoveError, match="no database in"):
        move_to(empty, tmp_path, {})
    with closing(open_store(tmp_path)) as store:
        store.commit(CommitBuilder("c1").create())
        with pytest.raises(DataDirectoryBusyError):
            move_to(empty, tmp_path, {})
    move_to(empty, tmp_path, {})
    (tmp_path / "moved").unlink()
    with pytest.raises(MoveError, match="is not empty; choose an empty one"):
        move_to(empty, tmp_path, {})
    with psycopg.connect(empty) as connection:
        connection.execute("DELETE FROM conversations")
        connection.execute(
            "INSERT INTO nodes (incarnation, name, address, version, labels, session, lease_seconds, expires)"
            " VALUES (1, '', '', '', '{}', true, 10, 'infinity')"
        )
    with pytest.raises(MoveError, match="is in use by a server; stop that server first"):
        move_to(empty, tmp_path, {})
    with pytest.raises(StoreError, match="cannot be opened"):
        move_to("postgresql://127.0.0.1:1/none", tmp_path, {})


@pytest.mark.parametrize("table", ["conversations", "log", "attachments"])
def test_a_row_that_is_not_what_was_copied_stops_the_move_and_leaves_nothing(
    tmp_path: Path, empty: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(tmp_path)) as store:
        fill(store)
    copied = PostgresConnection.copy_in

    def copy_wrong(
        self: PostgresConnection, name: str, columns: tuple[str, ...], many: Iterator[tuple[object, ...]]
    ) -> int:
        rows = list(many)
        if name == table:
            last = rows[-1]
            place = next(at for at in range(len(last) - 1, -1, -1) if columns[at] in CHANGED)
            rows[-1] = (*last[:place], CHANGED[columns[place]], *last[place + 1 :])
        return copied(self, name, columns, iter(rows))

    monkeypatch.setattr(PostgresConnection, "copy_in", copy_wrong)
    with pytest.raises(MoveError, match=f"row \\d+ of {table} differs from its copy"):
        move_to(empty, tmp_path, {})
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM conversations").fetchone() == (0,)


CHANGED = {
    "workspace_label": "x", "hash": "x", "digest": "x",
}  # fmt: skip
