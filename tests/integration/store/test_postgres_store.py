"""What is PostgreSQL's own: a database that goes away, odd texts, other servers, and what people are told."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from actors import ports
from actors.adapters.store import changes, models
from actors.adapters.store.postgres import engine
from actors.adapters.store.postgres.store import PostgresStore, open_postgres
from actors.adapters.store.sqlite.engine import raw
from actors.adapters.store.sqlite.store import open_store
from actors.core.context import Profile
from actors.core.notifications import RunStop, StopReason
from actors.ports.store import AnyOf, HasLabel, IsWithin, Order, OrderKey, Selection, TextContains, TextField
from tests.integration.store.conftest import SECONDS, Gate
from tests.support.commit_builder import CommitBuilder, message_of
from tests.support.patience import eventually, together
from tests.support.postgres import PASSWORD_USER, PostgresServer
from tests.support.stores import ME, with_nodes

COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = 'conversations'"
ENDED = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
SECOND = ports.Owner(2, "second", "127.0.0.1:2")


@pytest.fixture
def store(database: str, gate: Gate) -> Iterator[PostgresStore]:
    with closing(open_postgres(database, ME, gate)) as store:
        yield store


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(sql.encode())
        return found.fetchall() if found.description else []


@contextmanager
def waiting(store: PostgresStore, gate: Gate, first: ports.Commit, *calls: Callable[[], object]) -> Iterator[None]:
    """Hold a first commit until the context ends; these calls wait behind it. Then all of them end."""
    gate.close()
    held = threading.Thread(target=store.commit, args=(first,))
    held.start()
    gate.wait_until_held()
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    eventually(lambda: store.waiting == len(calls), "they wait")
    yield
    gate.open()
    for thread in (held, *threads):
        thread.join(SECONDS)


# --- texts ----------------------------------------------------------------------------------------------------

ODD = "a\x00b\x01\x02c\x01"


@pytest.mark.parametrize("alone", [False, True])
def test_a_text_may_have_any_character(store: PostgresStore, database: str, alone: bool) -> None:
    draft = CommitBuilder(
        "c1", cwd=f"/{ODD}", title=ODD, labels={ODD: ODD}, model=ODD, principal=ODD, system_prompt=ODD, slug=ODD
    )
    command = ports.CommandRecord(ODD, ODD, b'"\\u0000"', 1)
    stop = RunStop(ODD, StopReason.ERROR, ODD, ODD)
    store.commit(draft.create(command=command))
    message = message_of(1, ODD, request_id=ODD)
    commit = replace(draft.next(events=(stop,), messages=0), messages=(message,), command=command)
    # several commits of one call are not among those that are written together with others
    store.commit(commit, *([CommitBuilder("c2").create()] if alone else []))
    assert store.load("c1") == replace(draft.record, log_hash=store.transitions("c1", after_step=1, limit=1)[0].hash)
    assert store.find_slug(ODD, ODD) == "c1"
    assert store.command("c1", ODD) == store.create_command(ODD, ODD) == command
    assert [run.stop for run in store.stopped_runs("c1", limit=9)] == [stop]
    assert store.messages("c1", limit=9) == (message,)
    assert store.verify("c1") == ()
    for where in (
        HasLabel(ODD, ODD),
        HasLabel(ODD),
        TextContains(TextField.TITLE, "B\x01".casefold()),
        IsWithin(f"/{ODD}"),
    ):
        assert [each.id for each in store.list(Selection(ODD, where), limit=9).records] == ["c1"]


def test_titles_are_ordered_as_elsewhere(store: PostgresStore) -> None:
    titles = ["\x00", "\x01", "\x02", " ", "Z", "a", "\u00e9", "\u65e5", "\U0001f600"]
    for number, title in enumerate(titles):
        store.commit(CommitBuilder(f"c{number}", title=title).create())
    found = store.list(Selection("local", order=Order(OrderKey.TITLE, descending=False)), limit=99)
    assert [each.title for each in found.records] == titles == sorted(titles)


def test_case_is_folded_as_python_does(store: PostgresStore, database: str) -> None:
    everywhere = map(chr, (*range(0x20, 0x600), *range(0x1000, 0xD800), *range(0xE000, 0x20000)))
    every = "".join(char for char in everywhere if char < "\u0600" or char.casefold() != char)
    with psycopg.connect(database) as connection:
        ((folded,),) = connection.execute("SELECT bedrock_fold(%s)", (every,)).fetchall()
    assert folded == every.casefold()
    where = AnyOf((TextContains(TextField.TITLE, "strasse"),))
    store.commit(
        CommitBuilder("c1", title="Lange STRAßE").create(), CommitBuilder("c2", title="Stra\u00dfburg").create()
    )
    assert [each.id for each in store.list(Selection("local", where), limit=9).records] == ["c1"]


# --- the same rows as in SQLite -------------------------------------------------------------------------------


def test_rows_and_digests_are_those_of_sqlite(store: PostgresStore, database: str, tmp_path: Any) -> None:
    with closing(open_store(tmp_path / "data")) as other:
        for each in (store, other):
            draft = CommitBuilder("c1", title="T\u00eftle", labels={"a": "b"}, profile=Profile("Sell."), archived_at=7)
            each.commit(draft.create(command=ports.CommandRecord("r1", "h", b"{}", 1)))
            for number in range(3):
                stop = RunStop(f"c1:{number}", StopReason.COMPLETED, "", "", "said")
                each.commit(draft.next(events=(stop,), command=ports.CommandRecord(f"r{number}", "h", b"{}", 1)))
        for model, order in (
            (models.Records, "id"),
            (models.Messages, "sequence_id"),
            (models.Commands, "digest"),
            (models.Log, "step"),
            (models.Runs, "revision"),
            (models.Profiles, "conversation_id"),
        ):
            table, columns = model._meta.table_name, [each.column_name for each in models.fields(model)]
            select = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"
            assert query(database, select) == raw(other._writer._database).execute(select).fetchall(), table


# --- commits of several conversations -------------------------------------------------------------------------


def test_of_two_servers_that_claim_at_once_one_wins_each_family(store: PostgresStore, database: str) -> None:
    for number in range(8):
        store.commit(CommitBuilder(f"c{number}").create())
        store.commit(CommitBuilder(f"c{number}-a1", parent_conversation_id=f"c{number}", user_initiated=False).create())
    query(database, "UPDATE conversations SET owner = NULL")
    with closing(open_postgres(database, SECOND.incarnation)) as other:
        for number in range(8):
            claims = together(lambda: store.claim(f"c{number}"), lambda: other.claim(f"c{number}-a1"))  # noqa: B023
            assert sorted(isinstance(each, ports.NotOwnerError) for each in claims) == [False, True], claims
    found = query(database, "SELECT family, count(DISTINCT owner) FROM conversations GROUP BY family")
    assert [count for _, count in found] == [1] * 8


def test_a_commit_reads_no_whole_table_while_the_database_has_no_statistics(
    store: PostgresStore, database: str
) -> None:
    store.commit(CommitBuilder("c1", slug="").create())
    columns = [name for (name,) in query(database, COLUMNS)]
    copied = ", ".join("'c' || number" if name in ("id", "family") else name for name in columns)
    more = f"SELECT {copied} FROM conversations, generate_series(2, 4000) AS number"
    query(database, f"INSERT INTO conversations ({', '.join(columns)}) {more}")
    sql, slots = changes._UPDATE.on(engine.PostgresConnection.dialect)
    with closing(engine.connect(engine.address_of(database))) as session:
        plan = "\n".join(line for (line,) in session.run(f"EXPLAIN {sql}", ["1"] * len(slots)))
    assert "using conversations_pkey on conversations" in plan
    assert "Scan on conversations" not in plan


# --- deletion -------------------------------------------------------------------------------------------------


def test_what_a_server_left_half_removed_is_removed_by_another(store: PostgresStore, database: str) -> None:
    draft = CommitBuilder.stored(store, "c1", system_prompt="x", profile=Profile("x"))
    for _ in range(3):
        store.commit(draft.next(messages=200))
    store.put_attachment("c1", ports.Attachment("sha", "image/png", b"x", 1, 1))
    store.close()
    query(database, "INSERT INTO deletions (conversation_id, depth) VALUES ('c1', 0)")
    with closing(open_postgres(database, SECOND.incarnation)) as other:
        assert other.load("c1") is None
        eventually(lambda: not query(database, "SELECT FROM deletions"), "it is removed")
    for table in ("conversations", "messages", "log", "attachments", "prompts", "profiles"):
        assert query(database, f"SELECT FROM {table}") == [], table


# --- a database that goes away --------------------------------------------------------------------------------


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test may crash."""
    server = PostgresServer()
    yield server
    server.close()


def test_a_database_that_crashes_loses_nothing_acknowledged_and_all_is_back_with_it(own: PostgresServer) -> None:
    url = own.url(own.create(with_nodes))
    with closing(open_postgres(url, ME)) as store:
        draft = CommitBuilder.stored(store, "c1")
        store.commit(draft.next())
        own.crash()
        commit = draft.next()
        for use in (partial(store.commit, commit), partial(store.load, "c1"), partial(store.claim, "c1")):
            with pytest.raises(ports.StoreUnavailableError, match="database"):
                use()
        own.start()
        assert (store.load("c1") or draft.record).step == 2
        store.commit(commit)
        with closing(open_postgres(url, ME)) as again:
            assert (again.load("c1") or draft.record).step == 3
        assert store.verify("c1") == ()


def test_a_commit_whose_connection_is_cut_off_is_reported_and_the_next_one_is_written(
    store: PostgresStore, database: str
) -> None:
    draft = CommitBuilder.stored(store, "c1")
    writer = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(database) as locking:
        locking.execute("SELECT FROM conversations FOR UPDATE")
        outcome: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: outcome.append(raised(lambda: store.commit(draft.next()))))
        thread.start()
        eventually(lambda: query(database, writer) != [], "the commit waits for the row")
        query(database, f"SELECT pg_terminate_backend(({writer}))")
        thread.join(SECONDS)
    assert isinstance(outcome[0], ports.StoreUnavailableError)
    assert "may not have applied" in str(outcome[0])
    draft.record = store.load("c1") or draft.record
    store.commit(draft.next())
    assert store.verify("c1") == ()


def raised(attempt: Callable[[], object], kind: type[Exception] = ports.StoreError) -> BaseException | None:
    try:
        attempt()
    except kind as error:
        return error
    return None


def test_connections_that_the_database_ended_while_idle_are_not_used(store: PostgresStore, database: str) -> None:
    draft = CommitBuilder.stored(store, "c1")
    assert store.load("c1") is not None
    query(database, ENDED)
    assert store.load("c1") is not None
    store.commit(draft.next())


def test_a_closed_store_has_no_connection_and_no_thread(database: str) -> None:
    threads = threading.active_count()
    with closing(open_postgres(database, ME)) as store:
        together(*(lambda: store.load("c1") for _ in range(4)))
    assert threading.active_count() <= threads
    mine = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bedrock'"
    eventually(lambda: query(database, f"SELECT {mine}") == [], "the connections are closed")


def test_commits_are_on_disk_whatever_the_database_is_set_to(database: str, store: PostgresStore) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    query(database, f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    try:
        with closing(engine.connect(engine.address_of(database))) as session:
            assert session.run("SELECT current_setting('synchronous_commit')").fetchone() == ("on",)
    finally:
        query(database, f'ALTER DATABASE "{name}" RESET synchronous_commit')


def test_what_is_verified_may_take_longer_than_a_server_may_keep_rows_locked(store: PostgresStore) -> None:
    with store._readers.lend() as session:
        assert session.run("SHOW idle_in_transaction_session_timeout").fetchone() == ("1min",)


def test_a_number_that_is_too_large_fails_its_own_commit_only(store: PostgresStore, gate: Gate) -> None:
    good, bad = CommitBuilder("c1"), CommitBuilder("c2")
    store.commit(good.create(), bad.create())
    store.commit(good.next(), bad.next())
    outcome: list[BaseException | None] = []
    first, wrong = good.next(), partial(store.commit, bad.next(state_updated_at=1 << 63))
    calls = (lambda: outcome.append(raised(wrong, psycopg.DataError)), partial(store.commit, good.next()))
    with waiting(store, gate, first, *calls):
        pass
    assert isinstance(outcome[0], psycopg.DataError)
    assert ((store.load("c1") or good.record).step, (store.load("c2") or bad.record).step) == (4, 2)


def test_a_row_that_somebody_else_has_locked_holds_up_its_own_commit_only(
    database: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_SETTINGS", engine._SETTINGS.replace(f"{engine.LOCK_SECONDS}s", "300ms"))
    with closing(open_postgres(database, ME, gate)) as store:
        free, locked = CommitBuilder("c1"), CommitBuilder("c2")
        store.commit(free.create(), locked.create())
        outcome: list[BaseException | None] = []
        first, late = free.next(), partial(store.commit, locked.next())
        calls = (lambda: outcome.append(raised(late)), partial(store.commit, free.next()))
        with psycopg.connect(database) as locking, waiting(store, gate, first, *calls):
            locking.execute("SELECT FROM conversations WHERE id = 'c2' FOR UPDATE")
        assert isinstance(outcome[0], ports.StoreUnavailableError)
        assert "nothing was written" in str(outcome[0])
        late()
        assert ((store.load("c1") or free.record).step, (store.load("c2") or free.record).step) == (3, 2)


def test_a_server_that_is_stopped_within_a_transaction_delays_others_for_less_than_they_wait(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers write in common are the sums of a principal's day."""
    assert engine.IDLE_SECONDS < engine.LOCK_SECONDS
    monkeypatch.setattr(engine, "_SETTINGS", engine._SETTINGS.replace(f"'{engine.IDLE_SECONDS}s'", "'300ms'"))
    spent = ports.Spending("ann", 1, 2, 3)
    with closing(open_postgres(database, ME)) as store:
        store.put_spending(spent)
        with closing(engine.connect(engine.address_of(database), SECOND.incarnation)) as stopped:
            stopped.run("BEGIN")
            changes.add_spendings(stopped, [spent])
            store.put_spending(spent)
        assert store.spendings(0) == (ports.Spending("ann", 1, 4, 6),), "what the stopped server had begun is undone"


def test_a_database_that_only_reads_takes_nothing_until_it_writes_again(store: PostgresStore, database: str) -> None:
    draft = CommitBuilder.stored(store, "c1")
    store.commit(draft.next())
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    query(database, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    try:
        query(database, ENDED)
        for commit in (draft.next(), CommitBuilder("c2").create()):
            with pytest.raises(ports.StoreUnavailableError, match="read-only"):
                store.commit(commit)
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
    draft.record = store.load("c1") or draft.record
    store.commit(draft.next())
    assert draft.record.step == 3


# --- damage ---------------------------------------------------------------------------------------------------


def test_what_was_changed_by_hand_is_found(store: PostgresStore, database: str) -> None:
    draft = CommitBuilder.stored(store, "c1")
    store.commit(draft.next(messages=2))
    assert store.verify("c1") == ()
    query(database, "UPDATE conversations SET title = 'forged'")
    assert "the conversation's row has been modified" in store.verify("c1")
    query(database, "UPDATE conversations SET state_data = 'no json'")
    record = store.load("c1")
    assert record is not None
    assert record.state.ledger.seq == 2, "rebuilt from what is there"
    query(database, "UPDATE conversations SET labels = 'no json'")
    skipped: list[str] = []
    assert store.list(Selection("local"), limit=9, skipped=skipped.append).records == ()
    assert skipped == ["c1"]


# --- what people are told -------------------------------------------------------------------------------------

SECRET = "s3cret-p%40ss"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://h/d", "must begin with postgresql://"),
        (f"postgresql://user:{SECRET}@h:port/d", "port"),
        (f"postgresql://user:{SECRET}%zz@h/d", "cannot be parsed; use postgresql://"),
        (f"postgresql://user:{SECRET}@127.0.0.1:1/d", "postgresql://user@127.0.0.1:1/d cannot be opened: .*refused"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(
    url: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ports.StoreUnusableError, match=told) as error:
        open_postgres(url, ME)
    for secret in (SECRET, "s3cret"):
        assert secret not in str(error.value) + caplog.text
    assert error.value.__cause__ is None, "what libpq says may repeat the address"


def test_a_database_that_cannot_serve_is_told(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ports.StoreUnusableError, match='database "nowhere" does not exist'):
        open_postgres(postgres.url("nowhere"), ME)
    query(database, f"CREATE USER {PASSWORD_USER} PASSWORD 'right'")
    name = postgres.create()
    query(postgres.url(name), "REVOKE ALL ON SCHEMA public FROM PUBLIC")
    with pytest.raises(ports.StoreUnusableError, match="password authentication failed"):
        open_postgres(postgres.url(name, PASSWORD_USER, "wrong"), ME)
    with pytest.raises(ports.StoreUnusableError, match=f"{PASSWORD_USER}@.*cannot be upgraded: .*"):
        engine.migrate(engine.address_of(postgres.url(name, PASSWORD_USER, "right")))
    postgres.drop(name)
    query(database, f"DROP USER {PASSWORD_USER}")
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ports.StoreUnusableError, match="encoding is LATIN1; create one with CREATE DATABASE"):
        open_postgres(postgres.url("latin"), ME)
    with pytest.raises(ports.StoreUnusableError, match="encoding is LATIN1; create one with CREATE DATABASE"):
        engine.migrate(engine.address_of(postgres.url("latin")))
    assert query(postgres.url("latin"), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    postgres.drop("latin")
    with pytest.raises(ports.StoreUnusableError, match="read-only"):
        open_postgres(f"{database}&options=-c%20default_transaction_read_only%3Don", ME)
    monkeypatch.setattr(engine, "OLDEST", 99)
    with pytest.raises(ports.StoreUnusableError, match=r"runs PostgreSQL \d+; Bedrock requires 99 or newer"):
        open_postgres(database, ME)


# --- migrations -----------------------------------------------------------------------------------------------


def test_servers_that_start_at_once_bring_an_empty_database_up_to_date_once(postgres: PostgresServer) -> None:
    name = postgres.create()
    address = engine.address_of(postgres.url(name))
    assert together(*(lambda: engine.migrate(address) for _ in range(3))) == [None] * 3
    applied = [found for (found,) in query(postgres.url(name), "SELECT name FROM schema_migration ORDER BY name")]
    assert applied == sorted({path.stem for path in engine.MIGRATIONS.glob("0*")})
    query(postgres.url(name), "INSERT INTO schema_migration (name, applied) VALUES ('9999_later', now())")
    with pytest.raises(ports.StoreUnusableError, match="written by a newer version: it has 9999_later"):
        engine.migrate(address)
    postgres.drop(name)
