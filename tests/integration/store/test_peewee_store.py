"""The SQLite store on real files: crashes, full disks, damage, locks, and what it leaves behind."""

import errno
import gc
import hashlib
import logging
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from operator import le
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from actors import ports
from actors.adapters.store import listing
from actors.adapters.store import store as writer
from actors.adapters.store.reads import READERS
from actors.adapters.store.sqlite import store as write_ahead_log
from actors.adapters.store.sqlite.engine import CACHE_BYTES, WAL_PAGES, Readers, SqliteSession, sqlite3, wal_reset_race
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core.content import Usage
from actors.core.states import Idle, Ledger, LlmPhase, LlmRequesting
from actors.ports import Store, StoreUnavailableError
from actors.ports.records import AuditEntry, AuditFilter, CommandOrigin, Outcome
from actors.ports.store import (
    UNARCHIVED,
    Every,
    ListPosition,
    Order,
    OrderKey,
    Selection,
    StateIs,
    TextContains,
    TextEquals,
    TextField,
)
from tests.integration.store.conftest import SECONDS, Gate, reading
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(path: Path, gate: Gate) -> Iterator[PeeweeStore]:
    opened = open_store(path, gate)
    yield opened
    opened.close()


def grow(store: PeeweeStore, conversation_id: str, commits: int = 5) -> CommitBuilder:
    draft = CommitBuilder.stored(store, conversation_id)
    for _ in range(commits):
        store.commit(draft.next())
    return draft


def tamper(path: Path, statement: str, *values: object) -> None:
    """Change the file as nothing of ours would, while no store is open."""
    connection = sqlite3.connect(path / "bedrock.db")
    connection.execute(statement, values)
    connection.commit()
    connection.close()


# --- crashes --------------------------------------------------------------------------------------------------


FORKS = """
import os, sys
from tests.integration.store.committer import commit_for_ever
for directory in sys.stdin:
    process = os.fork()
    if process == 0:
        os.write(1, b"%d\\n" % os.getpid())
        commit_for_ever(directory.rstrip())
    os.waitpid(process, 0)
    os.write(1, b"dead\\n")
"""


def kill_at_random(forks: subprocess.Popen[bytes], path: Path, patience: random.Random) -> dict[bytes, int]:
    """Let a process commit, kill it at some moment; the last step that it has acknowledged, by conversation."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{path}\n".encode())
    forks.stdin.flush()
    process = int(forks.stdout.readline())
    wanted = patience.randrange(2, 60)
    acknowledged = list(islice(iter(forks.stdout.readline, b"dead\n"), wanted))
    assert len(acknowledged) == wanted, "it ended by itself"
    os.kill(process, signal.SIGKILL)
    acknowledged += iter(forks.stdout.readline, b"dead\n")
    return {name: int(step) for name, step in (line.split() for line in acknowledged)}


@pytest.fixture
def forks() -> Iterator[subprocess.Popen[bytes]]:
    """A process that forks one that commits for each directory that it reads, as it has imported all that they need."""
    command = [sys.executable, "-c", FORKS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(path: Path, forks: subprocess.Popen[bytes]) -> None:
    patience = random.Random(7)
    for _ in range(20):
        acknowledged = kill_at_random(forks, path, patience)
        assert acknowledged.pop(b"ready") == 0
        store = open_store(path)
        try:
            for name, step in acknowledged.items():
                record = store.load(name.decode())
                assert record is not None
                assert record.step in (step, step + 1), "acknowledged, or just not yet"
                assert len(store.history(record.id, 10_000)) == record.state.ledger.seq
                assert len(store.events(record.id, after=0, limit=100_000)) == record.revision
                assert store.verify(record.id) == ()
        finally:
            store.close()


# --- disks that fail ------------------------------------------------------------------------------------------


class FullDisk(Gate):
    """Limits the database to the pages it has, as a full disk would, from `fill` to `empty`."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: int | None = None
        self.store: PeeweeStore | None = None

    def hit(self, point: str) -> None:
        super().hit(point)
        if point == "store.before_begin" and self.limit is not None and self.store is not None:
            self.store._writer._database.execute_sql(f"PRAGMA max_page_count = {self.limit}")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("size", [1, 40_000])
def test_a_full_disk_refuses_whole_commits_and_works_again_with_room(path: Path, size: int) -> None:
    disk = FullDisk()
    store = disk.store = open_store(path, disk)
    draft = grow(store, "c1")
    disk.limit = 1
    refused = None
    for _ in range(100):
        before = draft.record
        try:
            store.commit(draft.next(title="x" * size))
        except ports.StoreUnavailableError as error:
            refused = str(error)
            draft.record = before
            break
    assert refused is not None
    assert "full" in refused
    at_the_limit = store.load("c1")
    assert at_the_limit is not None
    assert replace(at_the_limit, log_hash="") == draft.record
    assert store.verify("c1") == ()
    with pytest.raises(ports.StoreUnavailableError, match="full"):
        store.put_attachment("c1", ports.Attachment("sha", "image/png", b"x" * 100_000, 1, 1))
    disk.limit = 1 << 30
    store.commit(draft.next(title="room"))
    assert store.verify("c1") == ()
    store.close()
    reopened = open_store(path)
    again = reopened.load("c1")
    assert again is not None
    assert replace(again, log_hash="") == draft.record
    reopened.close()


def test_every_writer_in_a_failed_transaction_gets_an_error_and_nothing_of_it_is_stored(
    store: PeeweeStore, gate: Gate
) -> None:
    drafts = [grow(store, f"c{number}", 1) for number in range(12)]
    before = [draft.record for draft in drafts]
    with ThreadPoolExecutor(12) as threads:
        running = held(store, gate, threads, drafts)
        gate.failing["store.before_begin"] = OSError("I/O error")
        gate.open()
        errors = [future.exception(SECONDS) for future in running]
    assert errors[0] is None
    assert all(isinstance(error, ports.StoreUnavailableError) for error in errors[1:])
    assert len({id(error) for error in errors}) == 12, "everybody gets an exception of their own"
    for draft, record in zip(drafts[1:], before[1:], strict=True):
        found = store.load(draft.id)
        assert found is not None
        assert replace(found, log_hash="") == record
        draft.record = record
        store.commit(draft.next())
        assert store.verify(draft.id) == ()


def test_a_disk_that_becomes_read_only_takes_no_change_for_written_and_may_come_back(
    store: PeeweeStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with a deletion, for which the reserve is removed."""
    drafts = [grow(store, f"c{number}", 1) for number in range(3)]
    before = drafts[1].record

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with ThreadPoolExecutor(3) as threads, monkeypatch.context() as disk:
        running = held(store, gate, threads, drafts[:2])
        running.append(threads.submit(store.delete, "c2"))
        eventually(lambda: store.waiting == 2, "they wait")
        disk.setattr(Path, "unlink", read_only)
        disk.setattr(os, "posix_fallocate", read_only)
        gate.failing["store.before_begin"] = sqlite3.OperationalError("attempt to write a readonly database")
        gate.open()
        errors = [type(future.exception(SECONDS)) for future in running]
        store._writer._space.make()
    assert errors == [type(None), StoreUnavailableError, type(None)]
    drafts[1].record = before
    store.commit(drafts[1].next())
    assert store.verify("c1") == ()


def held(
    store: PeeweeStore, gate: Gate, threads: ThreadPoolExecutor, drafts: list[CommitBuilder]
) -> list[Future[None]]:
    """Let the drafts commit: the first in a transaction that `gate` holds, all others in the one after it."""
    gate.close()
    running = [threads.submit(store.commit, drafts[0].next())]
    gate.wait_until_held()
    running += [threads.submit(store.commit, draft.next()) for draft in drafts[1:]]
    eventually(lambda: store.waiting == len(drafts) - 1, "they wait")
    return running


def test_a_broken_connection_is_replaced(store: PeeweeStore, gate: Gate) -> None:
    draft = grow(store, "c1")
    before = draft.record
    connection = store._writer._database.connection()  # type: ignore[no-untyped-call]
    connection.close()
    with pytest.raises(ports.StoreUnavailableError):
        store.commit(draft.next())
    draft.record = before
    store.commit(draft.next())
    assert store.verify("c1") == ()


class Crash(BaseException):
    """What a simulated crash raises."""


@pytest.mark.parametrize("error", [Crash(), sqlite3.OperationalError("and the recovery fails, too")])
@pytest.mark.parametrize("point", ["store.before_begin", "store.before_commit"])
def test_a_writer_that_ends_leaves_no_caller_waiting(
    path: Path, gate: Gate, point: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(path, gate)
    drafts = [grow(store, f"c{number}", 0) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        running = held(store, gate, threads, drafts)
        gate.failing[point] = error
        if isinstance(error, Exception):
            store._writer._rollback = Mock(side_effect=OSError)  # type: ignore[method-assign]
        gate.open()
        errors = [future.exception(SECONDS) for future in running]
    assert all(isinstance(error, ports.StoreUnavailableError) for error in errors[1:])
    with pytest.raises(ports.StoreUnavailableError):
        store.delete("c1")
    assert "writer failed" in caplog.text
    store.close()
    reopened = open_store(path)
    assert all(reopened.verify(draft.id) == () for draft in drafts)
    reopened.close()


# --- reading --------------------------------------------------------------------------------------------------


FIRST_READS = """
import sys, threading, time
from pathlib import Path
from actors.adapters.store.sqlite.store import open_store
store = open_store(Path(sys.argv[1]))
def slow(frame, *_):
    if frame.f_code.co_filename.endswith("enum.py"):
        time.sleep(0.05)
threading.setprofile(slow)  # which lets the others go on while msgspec looks at an enumeration
threads = [threading.Thread(target=store.load, args=("c1",)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
store.close()
"""


def test_the_first_reads_of_a_process_may_be_at_the_same_time(path: Path) -> None:
    """msgspec examines a type when it is first used, and crashes the process if two threads are the first at once."""
    with closing(open_store(path)) as store:
        grow(store, "c1", 1)
    subprocess.run([sys.executable, "-c", FIRST_READS, path], cwd=ROOT, check=True)


# --- opening --------------------------------------------------------------------------------------------------


def test_a_data_directory_has_one_holder(store: PeeweeStore, path: Path) -> None:
    with pytest.raises(ports.DataDirectoryBusyError) as caught:
        open_store(path)
    assert (caught.value.path, caught.value.pid) == (path, os.getpid())
    assert str(os.getpid()) in str(caught.value)
    command = [sys.executable, "-m", "tests.integration.store.committer", str(path)]
    other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert other.returncode != 0
    assert f"is in use by process {os.getpid()}" in other.stderr
    store.close()
    open_store(path).close()


def test_files_are_for_their_owner_only_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        store = open_store(path / "deeper")
        grow(store, "c1")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (path / "deeper").iterdir()}
        assert stat.S_IMODE((path / "deeper").stat().st_mode) == 0o700
        files = ("bedrock.db", "bedrock.db-wal", "bedrock.db-shm", "lock", "initialized", "reserve")
        assert modes == dict.fromkeys(files, 0o600)
        store.close()
    finally:
        os.umask(before)


def test_an_open_database_file_is_closed_to_others(path: Path) -> None:
    path.mkdir()
    (path / "bedrock.db").touch(mode=0o644)
    open_store(path).close()
    assert stat.S_IMODE((path / "bedrock.db").stat().st_mode) == 0o600


def test_what_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "bedrock.db").write_bytes(b"this is not a database, it is a letter" * 100)
    with pytest.raises(ports.StoreUnusableError, match="not a database"):
        open_store(path)
    assert (path / "bedrock.db").read_bytes().startswith(b"this is not")
    shutil.rmtree(path)
    open_store(path).close()


def test_a_place_that_cannot_hold_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ports.StoreUnusableError, match="cannot be used: Not a directory"):
        open_store(tmp_path / "file" / "data")
    (tmp_path / "data" / "bedrock.db").mkdir(parents=True)
    with pytest.raises(ports.StoreUnusableError, match="cannot be opened"):
        open_store(tmp_path / "data")


def test_a_read_only_file_system_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(path).close()
    real = os.open

    def read_only(name: str, flags: int, *rest: int, **more: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, "Read-only file system", str(name))
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ports.StoreUnusableError, match="Read-only file system"):
        open_store(path)


def test_a_failed_opening_holds_nothing(path: Path) -> None:
    path.mkdir()
    (path / "bedrock.db").write_bytes(b"nonsense" * 1000)
    before = resources()
    for _ in range(3):
        with pytest.raises(ports.StoreUnusableError):
            open_store(path)
    assert all(map(le, resources(), before))  # what an earlier test has left may go meanwhile


def test_the_race_of_sqlites_write_ahead_log_is_known_by_version() -> None:
    affected = [(3, 40, 1), (3, 44, 5), (3, 50, 6), (3, 51, 2), (3, 45, 0)]
    sound = [(3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 52, 0), (4, 0, 0)]
    assert all(wal_reset_race(version) for version in affected)
    assert not any(wal_reset_race(version) for version in sound)
    assert not wal_reset_race(sqlite3.sqlite_version_info)


# --- what it leaves behind ------------------------------------------------------------------------------------


def resources() -> tuple[int, int]:
    """Open file descriptors and threads."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_closing_gives_back_every_descriptor_and_thread_also_those_of_dead_threads(path: Path) -> None:
    open_store(path).close()
    before = resources()
    for _ in range(3):
        store = open_store(path)
        draft = CommitBuilder("c1")
        if store.load("c1") is None:
            store.commit(draft.create())
        with ThreadPoolExecutor(24) as threads:
            list(threads.map(store.snapshot, ["c1"] * 200, [5] * 200))
        assert resources()[0] > before[0]
        store.close()
        assert all(map(le, resources(), before))
    assert sorted(file.name for file in path.iterdir()) == ["bedrock.db", "initialized", "lock", "reserve"]


def test_what_was_accepted_is_written_before_closing(path: Path, gate: Gate) -> None:
    store = open_store(path, gate)
    drafts = [grow(store, f"c{number}", 0) for number in range(5)]
    with ThreadPoolExecutor(6) as threads:
        running = held(store, gate, threads, drafts)
        closing = threads.submit(store.close)
        eventually(lambda: store._writer._closing, "it is closing")
        gate.open()
        assert [future.exception(SECONDS) for future in (*running, closing)] == [None] * 6
    reopened = open_store(path)
    for draft in drafts:
        record = reopened.load(draft.id)
        assert record is not None
        assert record.step == 2
    reopened.close()


def test_the_log_is_moved_into_the_database_as_it_grows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WORK_EVERY", 10)
    monkeypatch.setattr(write_ahead_log, "PAGES", 20)
    store = open_store(path)
    draft = grow(store, "c1", 200)
    assert (path / "bedrock.db-wal").stat().st_size < 1 << 20
    (tmp_path / "copy").mkdir()
    shutil.copy(path / "bedrock.db", tmp_path / "copy")
    copy = sqlite3.connect(tmp_path / "copy" / "bedrock.db")
    assert copy.execute("SELECT count(*) FROM log").fetchone()[0] > 100
    copy.close()
    store.commit(draft.next())
    store.close()


# --- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state_data",
    [
        None,
        "",
        "{",
        '{"version":1}',
        '{"version":2,"state":{"type":"idle","ledger":{}}}',
        '{"version":1,"state":{"type":"no_such_state"}}',
        '{"version":1,"state":{"type":"llm_requesting","ledger":{}}}',
        b'{"version":1,"state":{"type":"idle","ledger":{"last_text":"\xff\xfe"}}}',
    ],
)
def test_a_conversation_whose_state_cannot_be_read_is_idle_and_goes_on(
    path: Path, state_data: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(path)
    draft = grow(store, "c1", 4)
    busy = LlmRequesting(Ledger(run=2, live=True, req=4, seq=5), "c1:r4", 1, LlmPhase.STREAMING, 5)
    store.commit(draft.next(state=busy))
    store.commit(
        CommitBuilder("c1-a3", parent_conversation_id="c1", user_initiated=False).create(), CommitBuilder("c2").create()
    )
    store.close()
    tamper(path, "UPDATE conversations SET state_data = CAST(? AS TEXT) WHERE id = 'c1'", state_data)
    store = open_store(path)
    with caplog.at_level(logging.ERROR):
        record = store.load("c1")
    assert record is not None
    assert [vars(line)["conversation"] for line in caplog.records] == ["c1"]
    usage = sum((message.usage or Usage() for message in store.history("c1", 99)), Usage())
    assert isinstance(record.state, Idle)
    ledger = record.state.ledger
    assert (ledger.seq, ledger.agents, ledger.total_usage, ledger.used_tokens) == (5, 3, usage, 15)
    assert ledger.run >= 2
    assert ledger.req >= 4
    assert store.unsettled() == ("c1", "c1-a3"), "it was busy: the restart looks at it"
    snapshot = store.snapshot("c1", 2)
    assert snapshot is not None
    assert snapshot.record == record
    listed = store.list(Selection("local", UNARCHIVED), limit=9).records
    assert record in listed
    assert len(listed) == 2
    draft.record = record
    store.commit(draft.next())
    assert store.load("c1") != record
    assert store.verify("c1") == ()
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE messages SET content = '[{\"type\":' WHERE id = 'c1/m2'",
        "UPDATE messages SET content = CAST(x'5b22ff5d' AS TEXT) WHERE id = 'c1/m2'",
        "UPDATE messages SET display_data = '7' WHERE id = 'c1/m2'",
        "UPDATE conversations SET labels = '[' WHERE id = 'c1'",
        "UPDATE conversations SET mode = 'godlike' WHERE id = 'c1'",
        "UPDATE conversations SET last_seq = 'many' WHERE id = 'c1'",
        "UPDATE conversations SET epoch = x'00' WHERE id = 'c1'",
        "UPDATE conversations SET created_at = 9000000000000000 WHERE id = 'c1'",
        "UPDATE messages SET created_at = 'then' WHERE id = 'c1/m2'",
        "UPDATE messages SET attempt = 0.5 WHERE id = 'c1/m2'",
        "UPDATE messages SET request_id = x'00' WHERE id = 'c1/m2'",
    ],
)
def test_a_row_that_cannot_be_read_is_damage_and_affects_no_other_row(path: Path, statement: str) -> None:
    store = open_store(path)
    grow(store, "c1")
    grow(store, "c2")
    store.close()
    tamper(
        path,
        statement + " AND (SELECT 1)" if "messages" not in statement else statement + " AND conversation_id = 'c1'",
    )
    store = open_store(path)
    with pytest.raises(ports.StoreDamagedError):
        store.snapshot("c1", 99)
    assert store.verify("c1") != ()
    assert store.verify("c2") == ()
    assert len(store.history("c2", 99)) == 5
    store.close()


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("log SET hash = x'00'", lambda store: store.transitions("c1", after_step=0, limit=9)),
        ("attachments SET width = 'wide'", lambda store: store.attachment("c1", "a")),
        ("attachments SET media_type = x'00'", lambda store: store.attachment("c1", "a")),
        ("audit SET reason = x'00'", lambda store: store.audit(AuditFilter(), limit=9)),
    ],
)
def test_a_value_of_another_type_is_damage(path: Path, change: str, read: Callable[[PeeweeStore], object]) -> None:
    with closing(open_store(path)) as store:
        grow(store, "c1")
        store.put_attachment("c1", ports.Attachment("a", "image/png", b"png", 1, 1))
        store.put_audit([AuditEntry(1, Outcome.REFUSED, CommandOrigin("ann"), "X")])
        read(store)
    tamper(path, f"UPDATE {change}")
    with closing(open_store(path)) as store, pytest.raises(ports.StoreDamagedError):
        read(store)


@pytest.mark.parametrize(
    "change",
    [
        "mode = 'godlike'",
        "labels = '['",
        "budget = '7'",
        "title = CAST(x'ff' AS TEXT)",
        "cwd = CAST(x'2fff' AS TEXT)",
        "updated_at = 'now'",
        "archived_at = 'never'",
        "state_updated_at = -1",
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_of_lists_and_named(
    path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(path)) as store:
        for number in range(5):
            grow(store, f"c{number}", commits=number)
    tamper(path, f"UPDATE conversations SET {change} WHERE id IN ('c1', 'c2', 'c4')")
    with closing(open_store(path)) as store:
        skipped: list[str] = []
        listed: list[str] = []
        page = store.list(Selection("local"), limit=1, skipped=skipped.append)
        while page.more is not None:
            listed += [record.id for record in page.records]
            page = store.list(Selection("local"), after=page.more, limit=1, skipped=skipped.append)
        assert listed == ["c3", "c0"]
        assert skipped == ["c4", "c2", "c1"]
        assert len(store.list(Selection("local", UNARCHIVED), limit=9).records) == 2
    assert "c2" in {vars(line)["conversation"] for line in caplog.records}


TAMPERING = {
    "UPDATE log SET event = replace(event, 'test', 'tesT') WHERE step = 3": "step 3 has been modified",
    "UPDATE log SET count = 1 WHERE step = 3": "step 3 records 1 events, but the stored ones differ",
    "UPDATE log SET notifications = '[' WHERE step = 3": "cannot be read",
    "UPDATE log SET notifications = (SELECT notifications FROM log WHERE step = 3) WHERE step = 4": "twice in the log",
    "UPDATE log SET prev_hash = x'00' WHERE step = 3": "step 3 cannot be read",
    "UPDATE log SET step = 9e999 WHERE step = 3": "step inf cannot be read",
    "UPDATE messages SET sequence_id = 9e999 WHERE sequence_id = 5": "message inf cannot be read",
    "UPDATE log SET hash = prev_hash WHERE step = 6": "step 6 has been modified",
    "UPDATE log SET first_revision = first_revision + 1 WHERE step > 3": "revisions are missing before",
    "UPDATE log SET prev_hash = 'x' WHERE step = 3": "step 3 does not follow step 2",
    "UPDATE log SET prev_hash = 'x' WHERE step = 1": "the log begins elsewhere",
    "DELETE FROM log WHERE step = 1": "steps are missing between 0 and 2",
    "DELETE FROM log WHERE step = 3": "steps are missing between 2 and 4",
    "DELETE FROM log WHERE step = 6": "the log ends at step 5, but the conversation's row does not",
    "UPDATE messages SET content = replace(content, 'ls', 'rm') WHERE sequence_id = 3": "message 3 differs",
    "UPDATE messages SET usage_data = NULL WHERE sequence_id = 3": "message 3 differs",
    "DELETE FROM messages WHERE sequence_id = 3": "messages are missing between 2 and 4",
    "DELETE FROM messages WHERE sequence_id = 5": "message 5 is only in the log",
    "UPDATE conversations SET last_seq = last_seq + 1": "but the conversation's row does not",
    "UPDATE conversations SET log_hash = ''": "but the conversation's row does not",
}


@pytest.mark.parametrize(("statement", "finding"), TAMPERING.items())
def test_whatever_is_changed_behind_its_back_is_found(path: Path, statement: str, finding: str) -> None:
    store = open_store(path)
    grow(store, "c1")
    assert store.verify("c1") == ()
    store.close()
    tamper(path, statement)
    store = open_store(path)
    found = store.verify("c1")
    store.close()
    assert any(finding in violation for violation in found), found


def test_a_rows_hash_is_over_the_row_and_the_hash_before(path: Path) -> None:
    """The format that a verifier in another language needs: nine lines, then the hash of the row before."""
    store = open_store(path)
    draft = grow(store, "c1", 3)
    store.commit(draft.next(context=b'{"x": "\xc3\xbc"}'))
    store.close()
    connection = sqlite3.connect(path / "bedrock.db")
    query = (
        "SELECT conversation_id, step, epoch, at, first_revision, count, notifications, event, coalesce(context, ''), "
        "prev_hash, hash FROM log ORDER BY step"
    )
    found = connection.execute(query).fetchall()
    connection.close()
    assert len(found) == 5
    for *line, prev_hash, hash_ in found:
        assert hashlib.sha256(("\n".join(map(str, line)) + prev_hash).encode()).hexdigest() == hash_


@pytest.mark.parametrize("audit", ["'{'", "CAST(x'7b22ff' AS TEXT)"])
def test_a_row_of_the_log_that_cannot_be_read_hides_nobody_from_the_audit_trail(path: Path, audit: str) -> None:
    store = open_store(path)
    grow(store, "c1")
    ann = AuditEntry(1, Outcome.REFUSED, CommandOrigin("ann"), "X")
    store.put_audit([ann])
    store.close()
    tamper(path, f"UPDATE log SET audit = {audit}, event = x'00' WHERE step = 2")
    store = open_store(path)
    with pytest.raises(ports.StoreDamagedError):
        store.transitions("c1", after_step=0, limit=9)
    assert [entry.origin.principal for entry in store.audit(AuditFilter(principal="ann"), limit=9)] == ["ann"]
    assert [entry.reason for entry in store.audit(AuditFilter(), limit=9)] == ["X", "UNREADABLE"]
    store.close()


def test_a_damaged_schema_is_said_whatever_its_bytes(path: Path) -> None:
    open_store(path).close()
    file = path / "bedrock.db"
    damaged = file.read_bytes().replace(b"conversations_unsettled", b"conversations_uns\xf3t(led")
    file.write_bytes(damaged)
    with pytest.raises(ports.StoreUnusableError, match=r"bedrock\.db cannot be opened: its schema is damaged"):
        open_store(path)


def test_a_damaged_file_is_damage(path: Path) -> None:
    store = open_store(path)
    grow(store, "c1", 200)
    store.close()
    file = path / "bedrock.db"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"\xaa" * (len(whole) // 2))
    store = open_store(path)
    with pytest.raises(ports.StoreDamagedError):
        store.history("c1", 999)
    store.close()


# --- readers --------------------------------------------------------------------------------------------------


def test_readers_cannot_write(store: PeeweeStore) -> None:
    grow(store, "c1")
    with pytest.raises(ports.StoreUnavailableError, match="readonly"), reading(store) as connection:
        connection.execute("DELETE FROM messages")
    assert len(store.history("c1", 9)) == 5


def test_readers_are_limited_and_callers_wait_for_a_free_one(store: PeeweeStore) -> None:
    grow(store, "c1")
    with ThreadPoolExecutor(1) as threads, ExitStack() as lent:
        for _ in range(READERS - 1):
            lent.enter_context(reading(store))
        with reading(store):
            late = threads.submit(store.history, "c1", 9)
            with pytest.raises(TimeoutError):
                late.result(0.2)
        assert len(late.result(SECONDS)) == 5


def test_every_commit_is_synced_and_only_the_writer_checkpoints(store: PeeweeStore) -> None:
    wanted = {
        "synchronous": 2, "wal_autocheckpoint": WAL_PAGES, "foreign_keys": 1, "journal_mode": "wal",
        "cache_size": -CACHE_BYTES // 1024,
    }  # fmt: skip
    assert {name: store._writer._database.pragma(name) for name in wanted} == wanted
    with reading(store) as connection:
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


SORTED = {
    "everything": Selection("local"),
    "title": Selection("local", TextContains(TextField.TITLE, "x")),
    "busy": Selection("local", StateIs(frozenset({"tool_executing"})), Order(OrderKey.STATE_ENTERED, descending=False)),
    "children": Selection("local", parent="c1"),
}
"""Lists of which a part is sorted: one window, what is unsettled, or the sub-agents of one conversation."""
IN_ORDER = {
    "conversations_listed": Selection("local", UNARCHIVED),
    "conversations_of_directory": Selection("local", Every((UNARCHIVED, TextEquals(TextField.DIRECTORY, "/work")))),
    "conversations_created": Selection("local", UNARCHIVED, Order(OrderKey.CREATED, descending=False)),
}
"""Lists that are read from an index in its order."""


@pytest.mark.parametrize("name", [*SORTED, *IN_ORDER])
def test_lists_look_at_a_bounded_number_of_conversations(store: PeeweeStore, name: str) -> None:
    selection = (SORTED | IN_ORDER)[name]
    until = ListPosition(9, "c9") if name in IN_ORDER or name in ("everything", "title") else None
    end, page = listing.window_end(selection, until, 5), listing.page(selection, None, until, 5)
    for query in filter(None, (end, page)):
        with reading(store) as connection:
            sql, values = query.on(SqliteSession.dialect)
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        steps = [step for step in plan if step.startswith(("SEARCH", "SCAN")) and step != "SCAN half"]
        assert steps
        assert all("INDEX" in step for step in steps)
        assert ("USE TEMP B-TREE FOR ORDER BY" in plan) == (name in SORTED)
        assert name in SORTED or any(name in step for step in steps)
        assert name != "busy" or any("conversations_unsettled" in step for step in steps)


def test_a_call_looks_at_no_more_than_a_window_and_says_where_to_go_on(
    store: PeeweeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 4)
    for number in range(10):
        grow(store, f"c{number}")
    rare = Selection("local", TextEquals(TextField.SLUG, "c0"), Order(OrderKey.CREATED))
    found, calls = [], 1
    page = store.list(rare, limit=9)
    while page.more is not None:
        found += [record.id for record in page.records]
        page, calls = store.list(rare, after=page.more, limit=9), calls + 1
    found += [record.id for record in page.records]
    assert (found, calls) == (["c0"], 3)


def test_queries_use_their_indexes(store: PeeweeStore) -> None:
    grow(store, "c1")
    statements: list[str] = []
    with reading(store) as connection:
        connection.set_trace_callback(statements.append)
    store.load("c1")
    store.find_slug("local", "c1")
    store.children("c1")
    store.unsettled()
    store.history("c1", 5)
    store.messages("c1", limit=2, descending=True)
    store.events("c1", after=2, limit=5)
    store.transitions("c1", after_step=2, limit=5)
    store.command("c1", "r")
    store.create_command("local", "r")
    store.attachment("c1", "a")
    assert len(statements) == 11
    with reading(store) as connection:
        connection.set_trace_callback(None)
        plans = {s: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {s}")] for s in statements}
    scans = {s: plan for s, plan in plans.items() if any(step.startswith("SCAN") for step in plan)}
    assert [plan for plan in scans.values() if "conversations_unsettled" not in str(plan)] == []
    assert [s for s, plan in plans.items() if any("TEMP B-TREE" in step for step in plan)] == []


def test_deletion_uses_indexes_in_every_table(store: PeeweeStore) -> None:
    with reading(store) as connection:
        for table in ("messages", "log", "commands", "attachments", "prompts", "profiles"):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT 1 FROM {table} WHERE conversation_id = 'c1'"
            ).fetchall()
            assert plan[0][3].startswith("SEARCH"), table


# --- a disk that fails to deliver a page, once ----------------------------------------------------------------


class Failing:
    """A connection of which so many reads fail as SQLite says it of a page that could not be read."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def lend(self, lend: Callable[[Readers, str], Any]) -> Callable[[Readers, str], Any]:
        @contextmanager
        def lending(readers: Readers, texts: str) -> Generator[SqliteSession]:
            with lend(readers, texts) as database:
                if self.left:
                    self.left -= 1
                    raise sqlite3.DatabaseError("database disk image is malformed")
                yield database

        return lending


READS: list[Callable[[PeeweeStore], object]] = [
    lambda store: store.load("c1"),
    lambda store: store.owner("c1"),
    lambda store: store.find_slug("local", "c1"),
    lambda store: store.children("c1"),
    lambda store: store.unsettled(),
    lambda store: store.prunable(before=9_999, keep=0, limit=9),
    lambda store: store.archived(before=9_999, limit=9),
    lambda store: store.list(Selection("local", UNARCHIVED), limit=9).records,
    lambda store: store.messages("c1", limit=9),
    lambda store: store.history("c1", 9),
    lambda store: store.events("c1", after=0, limit=9),
    lambda store: store.stopped_runs("c1", limit=9),
    lambda store: store.settled_inputs("c1", limit=9),
    lambda store: store.snapshot("c1", 9),
    lambda store: store.transitions("c1", after_step=0, limit=9),
    lambda store: store.verify("c1"),
    lambda store: store.command("c1", "r"),
    lambda store: store.create_command("local", "r"),
    lambda store: store.attachment("c1", "a"),
]


def test_what_a_disk_fails_to_deliver_once_is_read_again_before_it_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = CommitBuilder("c1")
    with closing(open_store(tmp_path)) as store:
        store.commit(draft.create())
        store.commit(draft.next())
        wanted = [read(store) for read in READS]
        disk = Failing(0)
        monkeypatch.setattr(Readers, "lend", disk.lend(Readers.lend))
        for read, want in zip(READS, wanted, strict=True):
            disk.left = 1
            assert read(store) == want
            assert disk.left == 0
        disk.left = 2
        with pytest.raises(ports.StoreDamagedError):
            store.load("c1")


# The pool of connections that both databases read over.


def test_closing_waits_for_a_read_and_refuses_those_that_come_later(store: PeeweeStore) -> None:
    CommitBuilder.stored(store, "c1")
    reading, go = threading.Event(), threading.Event()

    def read() -> str | None:
        with store._readers.lend():
            reading.set()
            assert go.wait(20)
        return "read"

    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(read)
        assert reading.wait(20)
        closing = threads.submit(store.close)
        eventually(lambda: store._readers._closed, "it is closing")
        assert not closing.done(), "it waits for the read"
        go.set()
        assert slow.result(20) == "read"
        closing.result(20)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.load("c1")


def test_a_read_that_failed_half_way_holds_no_later_one_in_the_past(store: Store) -> None:
    draft = CommitBuilder("c1")
    store.commit(draft.create(), CommitBuilder("c2").create())
    kept = []

    def body(session: object) -> None:
        session.run("BEGIN")  # type: ignore[attr-defined]
        kept.append(session.run("SELECT id FROM conversations"))  # type: ignore[attr-defined]
        raise StoreUnavailableError("it ends here")

    for _ in range(20):
        with pytest.raises(StoreUnavailableError, match="ends here"):
            store._read(body)  # type: ignore[attr-defined]
    store.commit(draft.next())
    assert len(store.messages("c1", limit=10)) == 1
