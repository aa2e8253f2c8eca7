"""Fill a small disk and use the store on it: `CASE DISK BACKUP`, run in mount and user namespaces of its own."""

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from actors.adapters.store.changes import EncodedCommit
from actors.adapters.store.sqlite.backup import BackupError, back_up
from actors.adapters.store.sqlite.data_directory import RESERVE, SIZE
from actors.adapters.store.sqlite.engine import raw
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import StoreUnavailableError, StoreUnusableError
from tests.integration.store.conftest import wait_until_removed
from tests.integration.store.large_fork import SIZE as SIZE_OF_IMAGE
from tests.integration.store.large_fork import assert_whole, grown_origin
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually

DISK = "48m"


def main() -> None:
    case, disk = sys.argv[1], Path(sys.argv[2])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "disk", disk], check=True)
    CASES[case](disk, disk / "data")


def deletion(disk: Path, data: Path) -> None:
    """A deletion is accepted on a full disk, and frees space for new conversations and for the reserve."""
    _grown(data).close()
    store = open_store(data)
    builder = CommitBuilder.stored(store, "other")
    _fill(disk)
    with pytest.raises(StoreUnavailableError):
        _commit_many(store, builder)
    assert _free(disk) < 100_000
    store.delete("c0")
    assert store.load("c0") is None
    store.delete("c1")
    wait_until_removed(store)
    eventually((data / RESERVE).exists, "space is freed")
    left = _free(disk)
    assert left > 2_000_000, left
    builder = CommitBuilder.stored(store, "after")
    store.commit(builder.next())
    assert store.verify("after") == () == store.verify("c2")
    store.close()


def fork(disk: Path, data: Path) -> None:
    """A fork whose images do not fit is refused, and what was copied of it is removed."""
    store = open_store(data)
    commit = grown_origin(store)
    _fill(disk, leave=4 * SIZE_OF_IMAGE)
    abandon = store._abandon

    def without_room(forks: Iterable[EncodedCommit]) -> None:
        _fill(disk)
        abandon(forks)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "_abandon", without_room)
        with pytest.raises(StoreUnavailableError):
            store.commit(commit)
    assert store.load("f") is None
    wait_until_removed(store)
    os.unlink(disk / "filler")
    store.commit(commit)
    assert_whole(store)
    store.close()


def killed(disk: Path, data: Path) -> None:
    """With the reserve beside the database, and no byte free."""
    _in_a_process_that_dies(disk)
    assert _free(disk) == 0
    _opens_and_deletes(data)


def stopped(disk: Path, data: Path) -> None:
    """The reserve survives a stop, so that no other program uses its space before the next start."""
    store = _grown(data)
    _fill(disk)
    store.close()
    assert (data / RESERVE).stat().st_size == SIZE
    _fill(disk)
    assert _free(disk) == 0
    _opens_and_deletes(data)


def long_log(disk: Path, data: Path) -> None:
    """A log that does not fit into the database stays where it is: stopping uses no space."""
    store = _grown(data)
    (_, pages, _) = raw(store._writer._database).execute("PRAGMA wal_checkpoint(NOOP)").fetchone()
    assert pages > 2_000
    _fill(disk)
    store.delete("c3")
    before, log = (data / "bedrock.db").stat().st_size, (data / "bedrock.db-wal").stat().st_size
    store.close()
    assert (data / "bedrock.db").stat().st_size == before
    assert (data / "bedrock.db-wal").stat().st_size >= log > before
    for _ in range(3):
        _fill(disk)
        store = open_store(data)
        assert store.verify("c0") == () == store.verify("c1")
        assert store.load("c3") is None
        store.close()
    _opens_and_deletes(data)
    os.unlink(disk / "filler")
    open_store(data).close()
    assert not (data / "bedrock.db-wal").exists()
    store = open_store(data)
    assert store.verify("c1") == ()
    assert (data / RESERVE).stat().st_size == SIZE
    store.close()


def no_room(disk: Path, data: Path) -> None:
    """Without a reserve the error says what to do, and with space everything works again."""
    _grown(data).close()
    (data / RESERVE).unlink()
    _fill(disk)
    advice = f"the disk is full; free at least 8 MiB on the file system of {data}, and try again"
    for _ in range(2):
        with pytest.raises(StoreUnusableError, match=f"^{advice}$"):
            open_store(data)
    with pytest.raises(BackupError, match=f"^{data}/bedrock.db cannot be opened: {advice}$"):
        back_up(data, Path(sys.argv[3]))
    os.unlink(disk / "filler")
    _opens_and_deletes(data)


def _in_a_process_that_dies(disk: Path) -> None:
    child = os.fork()
    if child == 0:
        _grown(disk / "data")
        _fill(disk)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _grown(data: Path) -> PeeweeStore:
    store = open_store(data)
    for number in range(4):
        builder = CommitBuilder.stored(store, f"c{number}")
        for _ in range(20):
            store.commit(builder.next(context=os.urandom(60_000).hex().encode()))
    return store


def _opens_and_deletes(data: Path) -> None:
    store = open_store(data)
    assert store.verify("c0") == () == store.verify("c1")
    store.delete("c0")
    assert store.load("c0") is None
    store.close()


def _fill(disk: Path, leave: int = 0) -> None:
    """Fill the disk with another program's file, but for some bytes."""
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if leave:
        os.posix_fallocate(filler, 0, _free(disk) - leave)
    with suppress(OSError):
        while not leave:
            os.write(filler, b"x" * 4_096)
    os.close(filler)


def _commit_many(store: PeeweeStore, builder: CommitBuilder) -> None:
    for _ in range(10_000):
        store.commit(builder.next(context=b"x" * 50_000))


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


CASES = {
    function.__name__.replace("_", "-"): function for function in (deletion, fork, killed, stopped, long_log, no_room)
}

if __name__ == "__main__":
    main()
