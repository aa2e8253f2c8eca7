"""A fork with many images holds nobody up, and is whole or not there."""

import os
import signal
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from actors.adapters.store import changes, removal
from actors.adapters.store.postgres.engine import address_of, connect
from actors.adapters.store.postgres.store import PostgresStore, open_postgres
from actors.adapters.store.query import Session
from actors.adapters.store.rows import Row, attachment_values
from actors.adapters.store.sqlite.backup import back_up, restore
from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import FencedError, SlugTakenError, Store, StoreUnavailableError
from actors.ports.store import Selection
from tests.integration.store.conftest import SECONDS, Gate, wait_until_removed
from tests.integration.store.large_fork import IMAGES, SIZE, TRANSACTIONS, assert_whole, grown_origin
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually
from tests.support.stores import ME

ROOT = Path(__file__).parents[3]


def assert_absent(store: Store) -> None:
    """Nobody sees anything of the fork."""
    assert store.load("f") is None
    assert store.claim("f") is None
    assert store.attachment("f", IMAGES[0]) is None
    assert [record.id for record in store.list(Selection("local"), limit=9).records] == ["c1"]
    assert store.unsettled() == ()


def rows_of_fork(data: Path) -> int:
    with closing(sqlite3.connect(data / FILE)) as connection:
        count = "SELECT (SELECT count(*) FROM attachments WHERE conversation_id = 'f')"
        return int(connection.execute(f"{count} + (SELECT count(*) FROM conversations WHERE id = 'f')").fetchone()[0])


def test_others_write_between_the_images_of_a_fork(store: Store, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = grown_origin(store)
    points: list[str] = []
    before = store.stored_bytes("local")

    def hit(point: str) -> None:
        points.append(point)

    monkeypatch.setattr(gate, "hit", hit)
    store.commit(fork)
    assert points.count("store.before_commit") == TRANSACTIONS
    assert_whole(store)
    assert store.stored_bytes("local") > before + SIZE * len(IMAGES)


def test_a_fork_of_many_images_holds_one_of_them_in_memory(store: Store) -> None:
    fork = grown_origin(store)
    tracemalloc.start()
    try:
        store.commit(fork)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * SIZE, "an image and its digest"


@pytest.mark.parametrize("failing", range(1, TRANSACTIONS + 1))
def test_a_fork_that_fails_is_not_there_and_can_be_tried_again(
    store: Store, gate: Gate, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    fork = grown_origin(store)
    count = 0

    def hit(point: str) -> None:
        nonlocal count
        if point == "store.before_commit":
            count += 1
            if count == failing:
                raise OSError("disk on fire")

    with monkeypatch.context() as patched:
        patched.setattr(gate, "hit", hit)
        with pytest.raises(StoreUnavailableError):
            store.commit(fork)
        assert_absent(store)
    store.commit(fork)
    assert_whole(store)
    if isinstance(store, PeeweeStore):
        wait_until_removed(store)
        assert_whole(store)


@pytest.mark.parametrize("transaction", [2, TRANSACTIONS - 1, TRANSACTIONS])
def test_a_fork_is_not_there_after_sigkill_and_what_was_copied_is_removed(tmp_path: Path, transaction: int) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tests.integration.store.large_fork", str(data), str(transaction)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clients")])}
    died = subprocess.run(command, cwd=ROOT, env=os.environ | paths, timeout=SECONDS, check=False)
    assert died.returncode == -signal.SIGKILL
    copied = rows_of_fork(data)
    assert copied == transaction - 1
    restored = restore(back_up(data, tmp_path / "copy.db").path, tmp_path / "restored")
    assert restored.damaged == ()
    for each in (data, tmp_path / "restored"):
        with closing(open_store(each)) as store:
            assert_absent(store)
            wait_until_removed(store)
            assert store.verify("c1") == ()
        assert rows_of_fork(each) == 0


def test_a_fork_whose_slug_is_taken_leaves_nothing(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "data")) as store:
        fork = grown_origin(store)
        with pytest.raises(SlugTakenError):
            store.commit(replace(fork, record=replace(fork.record, slug=CommitBuilder("c1").record.slug)))
        assert_absent(store)
        wait_until_removed(store)
    assert rows_of_fork(tmp_path / "data") == 0


def test_a_fork_is_not_taken_for_what_is_deleted_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = grown_origin(store)
    store.commit(CommitBuilder("c2").create())
    real = type(store).attachment
    found: list[str] = []

    def attachment(self: Store, conversation_id: str, attachment_id: str) -> object:
        if len(found) == 3:
            store.delete("c2")
            if isinstance(store, PeeweeStore):
                wait_until_removed(store)
            elif isinstance(store, PostgresStore):
                eventually(lambda: not store._writer._tidying, "it is removed")
        found.append(attachment_id)
        return real(self, conversation_id, attachment_id)

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "attachment", attachment)
        store.commit(fork)
    assert_whole(store)


def test_forks_at_the_same_time_copy_one_after_the_other(
    store: Store, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of them would have an image in the same transaction, and a hundred hold everybody up again."""
    fork = grown_origin(store)
    names = [f"f{number}" for number in range(4)]
    forks = [replace(fork, record=replace(fork.record, id=name, slug=name), messages=()) for name in names]
    copied: list[int] = []

    real = changes.copy_attachment

    def counted(session: Session, row: Row) -> None:
        copied.append(gate.hits.count("store.before_begin"))
        real(session, row)

    monkeypatch.setattr(changes, "copy_attachment", counted)
    gate.close()
    with ThreadPoolExecutor(len(forks)) as threads:
        running = [threads.submit(store.commit, each) for each in forks]
        gate.wait_until_held()
        gate.open()
        for each in running:
            each.result(SECONDS)
    assert len(copied) == len(forks) * len(IMAGES)
    assert len(copied) == len(set(copied)), "never two in one transaction"
    assert all(store.attachment(name, IMAGES[0]) is not None for name in names)


def test_a_fork_whose_origin_is_deleted_meanwhile_is_not_there(
    store: Store, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images go while they are copied."""
    fork = grown_origin(store)
    real = type(store).attachment
    count = 0

    def attachment(self: Store, conversation_id: str, attachment_id: str) -> object:
        nonlocal count
        count += 1
        if count == 3:
            store.delete("c1")
        return real(self, conversation_id, attachment_id)

    monkeypatch.setattr(type(store), "attachment", attachment)
    with pytest.raises(FencedError):
        store.commit(fork)
    monkeypatch.undo()
    assert store.load("f") is None
    assert store.list(Selection("local"), limit=9).records == ()


def test_only_the_fork_of_a_dead_server_is_removed_by_others(database: str) -> None:
    with closing(open_postgres(database, ME)) as mine, closing(open_postgres(database, 2)) as theirs:
        fork = grown_origin(mine)
        images = [mine.attachment("c1", image) for image in IMAGES]
        copies = [attachment_values("f", image, 1) for image in images if image]
        mine._writer.write(partial(changes.begin_fork, fork=changes.EncodedCommit(fork)))
        mine._writer.write(partial(changes.copy_attachment, row=copies[0]))
        with closing(connect(address_of(database))) as session:
            assert not removal.remove_slice(session), "its server is alive"
        assert_absent(theirs)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE nodes SET dead = true WHERE incarnation = %s", (ME,))
        theirs._writer.tidy()

        def left() -> int:
            with psycopg.connect(database) as connection:
                found = connection.execute(
                    "SELECT (SELECT count(*) FROM attachments WHERE conversation_id = 'f')"
                    " + (SELECT count(*) FROM deletions)"
                ).fetchone()
                return int(found[0]) if found else 0

        eventually(lambda: left() == 0, "it is removed")
        with pytest.raises(FencedError):
            mine._writer.write(partial(changes.copy_attachment, row=copies[1]))
        assert left() == 0, "a server that is taken for dead adds nothing"
