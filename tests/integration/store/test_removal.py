"""What is deleted goes in slices, behind everybody who waits, and whatever happens in between."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.adapters.store import removal
from actors.adapters.store.changes import EncodedCommit
from actors.adapters.store.models import TABLES
from actors.adapters.store.query import Session
from actors.adapters.store.sqlite.backup import back_up, restore
from actors.adapters.store.sqlite.engine import FILE, raw, sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import StoreUnavailableError
from tests.integration.store.conftest import SECONDS, Gate, reading, wait_until_removed
from tests.support.commit_builder import CommitBuilder

ROOT = Path(__file__).parents[3]
CHILDREN = 5


class Slices:
    """Counts slices, or lets them fail."""

    def __init__(self, real: object) -> None:
        self.count = 0
        self.failing = False
        self._real = real

    def __call__(self, session: Session) -> bool:
        if self.failing:
            raise sqlite3.OperationalError("database or disk is full")
        self.count += 1
        return bool(self._real(session))  # type: ignore[operator]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    made = Slices(removal.remove_slice)
    monkeypatch.setattr("actors.adapters.store.store.remove_slice", made)
    monkeypatch.setattr(removal, "SLICE_SECONDS", 0.0)
    return made


@pytest.fixture
def store(tmp_path: Path, slices: Slices, gate: Gate) -> Iterator[PeeweeStore]:
    with closing(open_store(tmp_path / "data", gate)) as opened:
        family(opened, "c1")
        opened.commit(CommitBuilder("other").create())
        yield opened


def family(store: PeeweeStore, name: str) -> None:
    draft = CommitBuilder.stored(store, name)
    store.commit(draft.next(messages=50))
    for number in range(CHILDREN):
        child = CommitBuilder.stored(store, f"{name}-{number}", parent_conversation_id=name, user_initiated=False)
        store.commit(child.next(messages=50))


def rows(data: Path) -> int:
    """Of all tables, but for those of conversations that are not deleted."""
    with closing(sqlite3.connect(data / FILE)) as connection:
        tables = [table._meta.table_name for table in TABLES if table._meta.table_name != "conversations"]
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
        return sum(counts)


def test_a_family_is_removed_in_slices_and_nothing_of_it_is_left(
    store: PeeweeStore, slices: Slices, tmp_path: Path
) -> None:
    store.delete("c1")
    wait_until_removed(store)
    assert slices.count > CHILDREN
    assert rows(tmp_path / "data") == 1, "the log's row of the other one"
    with reading(store) as connection:
        assert connection.execute("SELECT id FROM conversations").fetchall() == [("other",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_concurrent_writer_waits_for_one_slice_at_most(
    store: PeeweeStore, gate: Gate, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that arrives in the middle is the next thing that is done."""
    seen: list[int] = []
    arrived = threading.Event()
    real, apply = slices._real, EncodedCommit.__call__

    def applied(change: EncodedCommit, session: Session) -> None:
        seen.append(slices.count)
        apply(change, session)

    def slice_(session: Session) -> bool:
        if slices.count == 3:
            arrived.set()
            while not store._writer._urgent:
                pass
        return bool(real(session))  # type: ignore[operator]

    slices._real = slice_
    monkeypatch.setattr(EncodedCommit, "__call__", applied)

    def write() -> None:
        assert arrived.wait(SECONDS)
        store.commit(CommitBuilder("urgent").create(), urgent=True)

    writer = threading.Thread(target=write)
    writer.start()
    store.delete("c1")
    writer.join(SECONDS)
    assert len(seen) == 1
    assert seen[0] <= 5
    wait_until_removed(store)
    assert slices.count > seen[0]


def test_what_a_stop_leaves_goes_on_with_the_next_start(store: PeeweeStore, slices: Slices, tmp_path: Path) -> None:
    slices.failing = True
    store.delete("c1")
    store.close()
    assert rows(tmp_path / "data") > 50
    slices.failing = False
    with closing(open_store(tmp_path / "data")) as again:
        assert again.load("c1") is None
        assert again.history("c1", 99) == ()
        assert again.unsettled() == ()
        wait_until_removed(again)
        assert rows(tmp_path / "data") == 1


def test_what_is_deleted_is_in_no_restored_backup(store: PeeweeStore, slices: Slices, tmp_path: Path) -> None:
    slices.failing = True
    store.delete("c1")
    copy = back_up(tmp_path / "data", tmp_path / "copy.db").path
    slices.failing = False
    restored = restore(copy, tmp_path / "restored")
    assert restored.damaged == ()
    with closing(open_store(tmp_path / "restored")) as again:
        assert again.load("c1") is None
        wait_until_removed(again)
    assert rows(tmp_path / "restored") == 1


def test_an_id_that_is_used_again_begins_with_nothing(store: PeeweeStore, slices: Slices) -> None:
    slices.failing = True
    store.delete("c1")
    store.commit(CommitBuilder("c1").create())
    assert store.history("c1", 99) == ()
    assert store.load("c1") is not None
    assert store.verify("c1") == ()


def test_a_slice_that_fails_is_done_again_later(
    store: PeeweeStore, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.adapters.store.sqlite.store.TIDY_AGAIN_SECONDS", 0.0)
    slices.failing = True
    store.delete("c1")
    store.commit(CommitBuilder("c9").create())
    assert store.load("c1") is None
    slices.failing = False
    wait_until_removed(store)


def test_a_deletion_that_fails_hides_nothing(store: PeeweeStore, gate: Gate) -> None:
    gate.failing["store.before_commit"] = OSError("disk")
    with pytest.raises(StoreUnavailableError):
        store.delete("c1")
    assert store.load("c1") is not None
    assert len(store.history("c1", 99)) == 50
    assert raw(store._writer._database).execute("SELECT count(*) FROM deletions").fetchone() == (0,)


@pytest.mark.parametrize("case", ["deletion", "fork", "killed", "stopped", "long-log", "no-room"])
def test_on_a_full_disk_a_deletion_makes_room_and_a_store_opens_or_says_what_to_do(tmp_path: Path, case: str) -> None:
    """Run a case of `full_disk` in namespaces of its own, where it mounts a disk of 48 MiB."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no mount namespace, so there is no small disk to fill")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [*alone, sys.executable, "-m", "tests.integration.store.full_disk", case, str(disk), str(tmp_path / "backup")],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clients")])},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
