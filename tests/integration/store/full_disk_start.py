"""Run in mount and user namespaces of its own: fills a small disk, ends the store, and opens it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.adapters.store.sqlite.engine import raw
from actors.adapters.store.sqlite.files.backup import BackupFailed, back_up
from actors.adapters.store.sqlite.files.disk_reserve import RESERVE, SIZE
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import StoreUnusableError
from tests.integration.store.drafts import Draft
from tests.integration.store.full_disk import free

DISK = "48m"


def main() -> None:
    case, disk = sys.argv[1], Path(sys.argv[2])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "disk", disk], check=True)
    CASES[case](disk, disk / "data")


def killed(disk: Path, data: Path) -> None:
    """With the reserve beside the database, and not a byte free."""
    _in_a_process_that_dies(disk)
    assert free(disk) == 0
    _opens_and_deletes(data)


def stopped(disk: Path, data: Path) -> None:
    """The reserve stays, so that nobody else takes it, and the next start has it."""
    store = _grown(data)
    _fill(disk)
    store.close()
    assert (data / RESERVE).stat().st_size == SIZE
    _fill(disk)
    assert free(disk) == 0
    _opens_and_deletes(data)


def long_log(disk: Path, data: Path) -> None:
    """A log that does not fit into the database is left where it is: the stop takes no room away."""
    store = _grown(data)
    (_, pages, _) = raw(store._database).execute("PRAGMA wal_checkpoint(NOOP)").fetchone()
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
    store = open_store(data)
    store.close()
    assert not (data / "bedrock.db-wal").exists()
    store = open_store(data)
    assert store.verify("c1") == ()
    assert (data / RESERVE).stat().st_size == SIZE
    store.close()


def no_room(disk: Path, data: Path) -> None:
    """Without any reserve: told with what to do, and well again with room."""
    _grown(data).close()
    (data / RESERVE).unlink()
    _fill(disk)
    for _ in range(2):
        with pytest.raises(StoreUnusableError, match=f"^{_explain(data)}$"):
            open_store(data)
    with pytest.raises(BackupFailed, match=f"^{data}/bedrock.db cannot be opened: {_explain(data)}$"):
        back_up(data, Path(sys.argv[3]))
    os.unlink(disk / "filler")
    _opens_and_deletes(data)


def _explain(data: Path) -> str:
    return f"the disk is full: free at least 8 MiB on the file system of {data}, and try again"


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
        draft = Draft(f"c{number}")
        store.commit(draft.create())
        for _ in range(20):
            store.commit(draft.next(context=os.urandom(60_000).hex().encode()))
    return store


def _opens_and_deletes(data: Path) -> None:
    store = open_store(data)
    assert store.verify("c0") == () == store.verify("c1")
    store.delete("c0")
    assert store.load("c0") is None
    store.close()


def _fill(disk: Path) -> None:
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(filler, b"x" * 4_096):
            pass
    except OSError:
        os.close(filler)


CASES = {"killed": killed, "stopped": stopped, "long-log": long_log, "no-room": no_room}

if __name__ == "__main__":
    main()
