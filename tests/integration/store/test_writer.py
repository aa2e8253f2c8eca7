"""Group commit: who is written with whom, in what order, and that it makes no difference to what is written."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from actors.adapters.store import store as writer
from actors.adapters.store.query import Session
from actors.adapters.store.sqlite import store as write_ahead_log
from actors.adapters.store.sqlite.engine import sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, SqliteWriter, open_store
from actors.core.content import Usage
from actors.core.states import Idle, Ledger
from actors.ports import CommandRecord, Commit, FencedError
from actors.ports.store import Selection
from tests.integration.store.conftest import SECONDS, Gate
from tests.integration.store.test_store_contract import at_once
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually


class Note:
    """A change that writes its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, session: Session) -> None:
        session.run("INSERT INTO notes (name) VALUES (?)", (self.name,))


@pytest.fixture
def database(tmp_path: Path, gate: Gate) -> Iterator[PeeweeStore]:
    opened = open_store(tmp_path / "notes", gate)
    opened._writer._database.execute_sql("CREATE TABLE notes (id INTEGER PRIMARY KEY, name TEXT)")  # type: ignore[no-untyped-call]
    yield opened
    opened.close()


@pytest.fixture
def notes(database: PeeweeStore) -> SqliteWriter:
    return database._writer


def names(database: PeeweeStore) -> list[str]:
    rows = database._writer._database.execute_sql("SELECT name FROM notes ORDER BY id").fetchall()  # type: ignore[no-untyped-call]
    return [name for (name,) in rows]


def queued(notes: SqliteWriter, threads: ThreadPoolExecutor, name: str, *, urgent: bool = False) -> Future[None]:
    """Hand a note in, and return once it waits."""
    waiting = notes.waiting
    future = threads.submit(notes.write, Note(name), urgent=urgent)
    eventually(lambda: notes.waiting > waiting, "it waits")
    return future


@pytest.mark.parametrize(("most", "transactions"), [(writer.MAX_BATCH, 2), (2, 5)])
def test_what_waits_is_written_in_few_transactions_urgent_ones_first(
    notes: SqliteWriter,
    gate: Gate,
    database: PeeweeStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    most: int,
    transactions: int,
) -> None:
    monkeypatch.setattr(writer, "MAX_BATCH", most)
    gate.close()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(notes.write, Note("first"))
        gate.wait_until_held()
        waiting = [queued(notes, threads, f"n{number}") for number in range(4)]
        waiting += [queued(notes, threads, f"u{number}", urgent=True) for number in range(3)]
        gate.open()
        for future in (first, *waiting):
            future.result(SECONDS)
    assert names(database) == ["first", "u0", "u1", "u2", "n0", "n1", "n2", "n3"]
    assert gate.hits.count("store.before_commit") == gate.hits.count("store.after_commit") == transactions


def test_many_threads_never_miss_their_wake_up(notes: SqliteWriter, database: PeeweeStore) -> None:
    def work(number: int) -> None:
        for step in range(60):
            notes.write(Note(f"{number}-{step}"), urgent=step % 5 == 0)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, range(32), timeout=SECONDS))
    written = names(database)
    assert len(written) == len(set(written)) == 32 * 60
    assert [name for name in written if name.startswith("7-")] == [f"7-{step}" for step in range(60)]


def test_a_change_that_finds_nobody_writing_needs_no_other_thread(notes: SqliteWriter) -> None:
    eventually(lambda: notes.write(lambda _: threading.current_thread()) is threading.current_thread(), "it leads")


def test_what_waits_is_written_by_the_writers_thread(notes: SqliteWriter, gate: Gate) -> None:
    gate.close()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(notes.write, Note("first"))
        gate.wait_until_held()
        waiting = [threads.submit(notes.write, lambda _: threading.current_thread().name) for _ in range(3)]
        eventually(lambda: notes.waiting == len(waiting), "they wait")
        gate.open()
        first.result(SECONDS)
        assert [future.result(SECONDS) for future in waiting] == ["store-writer"] * 3
    assert gate.hits.count("store.after_commit") == 2


def test_background_work_gets_its_turn_among_changes_and_is_done_by_a_thread_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    moved: list[str] = []

    def tidy(_session: Session) -> bool:
        done.append(threading.current_thread().name)
        return len(done) < 3

    def move(log: write_ahead_log.WriteAheadLog) -> None:
        log._since = 0
        moved.append(threading.current_thread().name)

    monkeypatch.setattr(writer, "WORK_EVERY", 5)
    monkeypatch.setattr(writer, "TIDY_SECONDS", 0.0)
    monkeypatch.setattr(write_ahead_log.WriteAheadLog, "move", move)
    monkeypatch.setattr(writer, "remove_slice", tidy)
    with closing(open_store(tmp_path)) as store:
        eventually(lambda: len(done) == 3, "the slices are done")
        for number in range(11):  # behind the three slices, which count as changes
            store.commit(CommitBuilder(f"c{number}").create())
        assert len(store.list(Selection("local"), limit=20).records) == 11
        eventually(lambda: bool(moved), "the log is moved")
    assert done == ["store-writer"] * 3
    assert set(moved) == {"store-writer"}


def _interrupt(_number: int, _frame: object) -> None:
    """Do what Python does at SIGINT, which a background process inherits as ignored."""
    raise KeyboardInterrupt


def test_a_caller_that_a_signal_interrupts_while_it_waits_withdraws_its_change(
    database: PeeweeStore, gate: Gate, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, _interrupt)))
    made = database._writer
    gate.close()
    first, later = (threading.Thread(target=made.write, args=(Note(name),), daemon=True) for name in ("first", "later"))
    first.start()
    gate.wait_until_held()

    def interrupt() -> None:
        eventually(lambda: made.waiting == 1, "it waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        made.write(Note("interrupted"))
    interrupting.join()
    waiting = made.waiting
    later.start()
    eventually(lambda: made.waiting > waiting, "it waits")
    gate.open()
    for caller in (first, later):
        caller.join(SECONDS)
        assert not caller.is_alive()
    assert names(database) == ["first", "later"]


# --- together or alone ----------------------------------------------------------------------------------------


def _commits(drafts: list[CommitBuilder]) -> list[Commit]:
    """One round: plain ones, chains, without messages, with a command, with nulls and without, and a new slug."""
    return [
        draft.next(
            messages=number % 4,
            steps=1 + number % 3,
            context=b"{}" if number % 2 else None,
            command=CommandRecord(f"r{draft.record.step}", "h", b"{}", 1) if number % 3 == 0 else None,
            archived_at=5 if number % 5 == 0 else None,
            slug=f"{draft.id}-{draft.record.step}" if number == 6 else draft.record.slug,
            title="ü" * number,
        )
        for number, draft in enumerate(drafts)
    ]


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path / "bedrock.db")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
        for name in tables
        if name != "schema_migration"
    }
    connection.close()
    return found


def only_begun(session: Session, _commits: object, begin: str) -> set[object]:
    session.run(begin)
    return set()


def test_the_same_rows_are_written_together_and_alone(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, grouped = open_store(tmp_path / "alone"), open_store(tmp_path / "grouped", gate)
    mine, theirs = ([CommitBuilder(f"c{number:02}") for number in range(21)] for _ in range(2))
    for draft, twin in zip(mine, theirs, strict=True):
        alone.commit(draft.create())
        grouped.commit(twin.create())
    gate.hits.clear()
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(writer, "write_together", only_begun)
            for commit in _commits(mine):
                alone.commit(commit)
        assert at_once(grouped, gate, [partial(grouped.commit, commit) for commit in _commits(theirs)]) == [None] * 21
    assert gate.hits.count("store.before_commit") == 6, "three rounds, each behind one that was held"
    alone.close()
    grouped.close()
    assert rows_of(tmp_path / "alone") == rows_of(tmp_path / "grouped")


@pytest.fixture
def store(tmp_path: Path, gate: Gate) -> Iterator[PeeweeStore]:
    opened = open_store(tmp_path / "data", gate)
    yield opened
    opened.close()


def test_two_changes_of_a_conversation_in_one_transaction_follow_each_other_or_fail(
    store: PeeweeStore, gate: Gate
) -> None:
    draft, other = CommitBuilder("c1"), CommitBuilder("c2")
    store.commit(draft.create(), other.create())
    rival = CommitBuilder("c1")
    rival.record = draft.record
    commits = [draft.next(), draft.next(), rival.next(title="rival"), other.next()]
    outcome = at_once(store, gate, [partial(store.commit, commit) for commit in commits])
    assert outcome[3] is None
    record = store.load("c1")
    assert record is not None
    assert record.step == 2 + (outcome[1] is None)
    assert (outcome[0] is None) != (outcome[2] is None)
    assert all(error is None or isinstance(error, FencedError) for error in outcome)
    assert store.verify("c1") == store.verify("c2") == ()


def test_a_state_too_big_for_a_page_is_written_together_too(store: PeeweeStore, gate: Gate) -> None:
    drafts = [CommitBuilder(f"c{number}") for number in range(5)]
    for draft in drafts:
        store.commit(draft.create())
    big = Idle(Ledger(last_text="x" * 50_000, total_usage=Usage(1)))
    commits = [partial(store.commit, draft.next(messages=0, state=big)) for draft in drafts]
    assert at_once(store, gate, commits) == [None] * 5
    for draft in drafts:
        record = store.load(draft.id)
        assert record is not None
        assert record.state == big
