"""The tables are the seed's, with what was added; migrations make them, and only migrations."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import psycopg
import pytest

from actors.adapters.store import models
from actors.adapters.store.migrations import Migrations
from actors.adapters.store.models import UNSETTLED
from actors.adapters.store.sqlite.engine import FILE, MIGRATIONS, migrate, open_writer, sqlite3
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import MessageType
from actors.core.states import TERMINAL, Idle, State
from actors.ports import ConversationRecord, StoreUnusableError
from tests.support.commit_builder import CommitBuilder

if TYPE_CHECKING:
    import peewee

SEED = """
CREATE TABLE conversations (
    id TEXT PRIMARY KEY,
    slug TEXT UNIQUE,
    cwd TEXT NOT NULL,                    -- REQ-BED-010: fixed at creation
    parent_conversation_id TEXT,          -- REQ-BED-009: NULL for user conversations
    user_initiated BOOLEAN NOT NULL,      -- REQ-BED-009: FALSE for sub-agents
    state TEXT NOT NULL DEFAULT 'idle',
    state_data TEXT,                       -- JSON: retry attempt, pending tools, etc.
    state_updated_at TIMESTAMP NOT NULL,
    created_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    archived BOOLEAN NOT NULL DEFAULT FALSE,

    FOREIGN KEY (parent_conversation_id)
        REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    message_type TEXT NOT NULL,           -- user, agent, tool, system, error
    actor_kind TEXT NOT NULL,             -- human, llm_agent, system
    content TEXT NOT NULL,                -- JSON
    display_data TEXT,                    -- JSON for UI rendering
    usage_data TEXT,                      -- JSON: token counts (REQ-BED-012)
    created_at TIMESTAMP NOT NULL,

    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);
"""
"""The second seed's "Database Schema", verbatim."""
PER_PRINCIPAL: dict[tuple[str, ...], tuple[str, ...]] = {("slug",): ("principal", "slug")}
"""What is unique for each principal of a server; the seed has one."""


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[peewee.SqliteDatabase]:
    """What the migrations make of an empty file."""
    opened = open_writer(tmp_path / FILE)
    migrate(opened)
    yield opened
    opened.close()


def pragma(connection: Any, name: str, table: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = connection.execute(f"PRAGMA {name}({table})").fetchall()
    return found


def columns(connection: Any, table: str) -> dict[str, tuple[str, bool, str | None, int]]:
    """Type, NOT NULL, default and place in the primary key of every column. A primary key is never NULL: the
    standard says so, SQLite has to be told."""
    found = pragma(connection, "table_info", table)
    return {name: (kind, bool(notnull or key), default, key) for _, name, kind, notnull, default, key in found}


def uniques(connection: Any, table: str) -> set[tuple[str, ...]]:
    """The columns of every UNIQUE constraint and index without a condition."""
    indexes = [row[1] for row in pragma(connection, "index_list", table) if row[2] and not row[4]]
    return {tuple(row[2] for row in pragma(connection, "index_info", index)) for index in indexes}


@pytest.mark.parametrize("table", ["conversations", "messages"])
def test_the_seeds_tables_are_there_as_it_declares_them(migrated: peewee.SqliteDatabase, table: str) -> None:
    seed = sqlite3.connect(":memory:")
    seed.executescript(SEED)
    ours = migrated.connection()  # type: ignore[no-untyped-call]
    wanted, found = columns(seed, table), columns(ours, table)
    assert list(found)[: len(wanted)] == list(wanted)
    assert {name: found[name] for name in wanted} == wanted
    assert set(pragma(seed, "foreign_key_list", table)) <= set(pragma(ours, "foreign_key_list", table))
    assert {PER_PRINCIPAL.get(each, each) for each in uniques(seed, table)} <= uniques(ours, table)
    assert all(row[6] == "CASCADE" for row in pragma(ours, "foreign_key_list", table))
    seed.close()


def test_the_seeds_rows_fit(migrated: peewee.SqliteDatabase) -> None:
    """What the seed's own INSERTs would say works: everything that was added has a default or may be NULL."""
    ours = migrated.connection()  # type: ignore[no-untyped-call]
    ours.execute(
        "INSERT INTO conversations (id, slug, cwd, user_initiated, state_updated_at, created_at, updated_at) "
        "VALUES ('c', 's', '/', 1, 1, 1, 1)"
    )
    ours.execute(
        "INSERT INTO messages (id, conversation_id, sequence_id, message_type, actor_kind, content, created_at) "
        "VALUES ('m', 'c', 1, 'user', 'human', '[]', 1)"
    )


def test_every_type_of_message_fits_and_no_other(migrated: peewee.SqliteDatabase) -> None:
    ours = migrated.connection()  # type: ignore[no-untyped-call]
    ours.execute(
        "INSERT INTO conversations (id, cwd, user_initiated, state_updated_at, created_at, updated_at) "
        "VALUES ('c', '/', 1, 1, 1, 1)"
    )
    insert = (
        "INSERT INTO messages (id, conversation_id, sequence_id, message_type, actor_kind, content, created_at) "
        "VALUES (?, 'c', ?, ?, ?, '[]', 1)"
    )
    for number, kind in enumerate((*MessageType, "human")):
        fits = kind in set(MessageType)
        for actor in ("human", "llm_agent", "system", "dog"):
            key = f"{kind}{actor}"
            if fits and actor != "dog":
                ours.execute(insert, (key, number * 10 + len(actor), str(kind), actor))
            else:
                with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                    ours.execute(insert, (key, 1_000, str(kind), actor))


@pytest.mark.parametrize("model", models.TABLES, ids=lambda model: model._meta.table_name)
def test_the_models_are_what_the_migrations_make(migrated: peewee.SqliteDatabase, model: Any) -> None:
    """Names, types, and what may be NULL; constraints and indexes are those of the migrations."""
    found = columns(migrated.connection(), model._meta.table_name)  # type: ignore[no-untyped-call]
    context = migrated.get_sql_context()
    modelled = {each.column_name: (each.ddl_datatype(context).sql, not each.null) for each in models.fields(model)}
    assert {name: (kind, full) for name, (kind, full, _, _) in found.items()} == modelled


@pytest.mark.parametrize("model", models.TABLES, ids=lambda model: model._meta.table_name)
def test_the_models_are_what_the_migrations_make_in_postgresql(database: str, model: Any) -> None:
    query = "SELECT column_name, is_nullable = 'YES' FROM information_schema.columns WHERE table_name = %s"
    with psycopg.connect(database) as connection:
        found: dict[str, bool] = dict(connection.execute(query, (model._meta.table_name,)).fetchall())
    shared = {column.name for column in models.POSTGRES_COLUMNS.get(model, ())}
    assert shared <= set(found)
    modelled = {each.column_name: each.null for each in models.fields(model) if each.column_name != "state_data"}
    assert {name: null for name, null in found.items() if name not in {*shared, "state_data"}} == modelled


def test_a_record_has_a_column_for_everything() -> None:
    elsewhere = {"system_prompt", "profile"}
    assert set(ConversationRecord.__struct_fields__) - elsewhere <= set(models.columns(models.Records))


def test_the_index_of_what_is_unsettled_knows_every_state() -> None:
    tags = {state.__struct_config__.tag for state in get_args(State)}
    settled = set(re.findall(r"'(\w+)'", UNSETTLED.partition(" OR ")[0]))
    assert settled == {state.__struct_config__.tag for state in (Idle, *TERMINAL)}
    assert settled < tags


# --- migrations -----------------------------------------------------------------------------------------------


def test_migrations_are_applied_once(tmp_path: Path) -> None:
    names: list[str] = []
    for _ in range(2):
        store = open_store(tmp_path)
        applied = Migrations(store._writer._database, MIGRATIONS).status()
        assert all(migration.applied for migration in applied)
        names = [migration.name for migration in applied]
        store.close()
    assert names == sorted(path.stem for path in MIGRATIONS.glob("[0-9]*"))


def test_a_later_migration_keeps_what_is_stored(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    draft = CommitBuilder.stored(store, "c1")
    store.commit(draft.next())
    before = (store.load("c1"), store.history("c1", 9), store.events("c1", after=0, limit=9))
    store.close()
    later = later_migrations(tmp_path, "ALTER TABLE conversations ADD COLUMN mood TEXT")
    database = open_writer(tmp_path / "data" / FILE)
    migrate(database, later)
    assert "mood" in columns(database.connection(), "conversations")  # type: ignore[no-untyped-call]
    database.close()
    database = open_writer(tmp_path / "data" / FILE)
    database.execute_sql("ALTER TABLE conversations DROP COLUMN mood")  # type: ignore[no-untyped-call]
    database.execute_sql("DELETE FROM schema_migration WHERE name LIKE '%later'")  # type: ignore[no-untyped-call]
    database.close()
    store = open_store(tmp_path / "data")
    assert (store.load("c1"), store.history("c1", 9), store.events("c1", after=0, limit=9)) == before
    store.close()


def later_migrations(tmp_path: Path, *statements: str) -> Path:
    """Our migrations and one more."""
    directory = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, directory)
    body = "\n".join(f"    db.execute_sql({statement!r})" for statement in statements)
    (directory / "0999_later.py").write_text(f"def up(migrator, db):\n{body}\n")
    return directory


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    store.commit(CommitBuilder("c1").create())
    store.close()
    broken = later_migrations(tmp_path, "DELETE FROM conversations", "CREATE TABLE log (x)")
    database = open_writer(tmp_path / "data" / FILE)
    with pytest.raises(StoreUnusableError, match="already exists"):
        migrate(database, broken)
    database.close()
    store = open_store(tmp_path / "data")
    assert store.load("c1") is not None
    store.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "data").close()
    database = open_writer(tmp_path / "data" / FILE)
    migrate(database, later_migrations(tmp_path, "ALTER TABLE conversations ADD COLUMN mood TEXT"))
    database.close()
    with pytest.raises(StoreUnusableError, match="newer version: it has 0999_later"):
        open_store(tmp_path / "data")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    connection = sqlite3.connect(tmp_path / "data" / FILE)
    connection.execute("CREATE TABLE messages (whatever TEXT)")
    connection.close()
    with pytest.raises(StoreUnusableError, match="cannot be upgraded"):
        open_store(tmp_path / "data")


# --- what was released stays as it is -------------------------------------------------------------------------

FROZEN = {
    "0001_initial": "eca7200dd5e0ca2e50bba779a2018060ec049f9213abb9fe1ea48437bb525212",
    "0002_deletions": "d6c0db61b4919ec1dc642251a2950c1af993866c194cba1f3c9f279bd89399a1",
    "0003_conversations_of_directory": "44b0aadea96ff2eb0e4b9b01a1c3cdce7f0efe0bb0b9202f429121de4806c6ea",
    "0004_profiles": "02f1c16d32af0e3f86851722c8f753f5a595d1c1b6b90faee4bfe1055e8f9958",
    "0005_conversations_by_creation": "291a54b75d6752921a5ffd38789f3dee097685926b8bdbcd0df5930263ca81cd",
    "0006_approval_rules": "e80a62e5561651a7ded08a35466fb2f58f8c3ecb4618fb590db8a96eff18ee47",
    "0007_slugs_of_principals": "6a61c010bc60e9166b0039255679bb9d87ec34a179cd06968b23c77211d9353f",
    "0008_spendings": "128cced4807af533ea31cb122e427419be71949dbd132820b3c9fb871ce7f781",
    "0009_audit": "92c31128574953f4efd618ebe4f956455f67c43063cbf363c058b8fa19451035",
}
"""SHA-256 of every migration that has been released. A new file needs a new line; no line ever changes."""


def test_no_migration_that_was_released_is_edited() -> None:
    found = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in MIGRATIONS.glob("[0-9]*")}
    assert found == FROZEN


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE messages ADD COLUMN mood TEXT", "table messages"),
        ("DROP TABLE fates", "table fates"),
        ("DROP INDEX messages_sequence", "index messages_sequence"),
        ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END", "trigger t"),
    ],
)
def test_a_database_whose_tables_are_others_is_refused_and_untouched(tmp_path: Path, change: str, said: str) -> None:
    open_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute(change)
        before = dump(connection)
    with pytest.raises(
        StoreUnusableError, match=f"does not match this version: the {said} is missing, unexpected or different"
    ):
        open_store(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert dump(connection) == before


def dump(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    return [*found, *connection.execute("SELECT * FROM schema_migration")]


def test_statistics_and_another_layout_are_no_difference(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute("ANALYZE")
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, '    ', '  ')")
    open_store(tmp_path).close()
