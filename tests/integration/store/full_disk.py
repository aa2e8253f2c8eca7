"""Run in mount and user namespaces of its own: fills a small disk until nothing can be written, then deletes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import StoreUnavailableError
from tests.integration.store.drafts import Draft

SIZE = "48m"
SECONDS = 30.0


def main() -> None:
    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "disk", disk], check=True)
    with closing(open_store(disk / "data")) as store:
        _grow(store)
    store = open_store(disk / "data")
    _fill_disk(store, disk)
    assert free(disk) < 100_000
    store.delete("c0")
    assert store.load("c0") is None
    store.delete("c1")
    _until(lambda: not store._removal.pending and (disk / "data" / "reserve").exists())
    left = free(disk)
    assert left > 2_000_000, left
    draft = Draft("after")
    store.commit(draft.create())
    store.commit(draft.next())
    assert store.verify("after") == () == store.verify("c2")
    store.close()
    print(left)


def _grow(store: PeeweeStore) -> None:
    for number in range(4):
        draft = Draft(f"c{number}")
        store.commit(draft.create())
        for _ in range(20):
            store.commit(draft.next(context=os.urandom(60_000).hex().encode()))


def _fill_disk(store: PeeweeStore, disk: Path) -> None:
    """With somebody else's file, and then with changes until one is refused."""
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(filler, b"x" * 4_096):
            pass
    except OSError:
        os.close(filler)
    other = Draft("other")
    try:
        for _ in range(10_000):
            store.commit(other.create() if other.record.step == 0 else other.next(context=b"x" * 50_000))
    except StoreUnavailableError:
        return
    raise AssertionError("the disk was never full")


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _until(condition: object) -> None:
    until = time.monotonic() + SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)


if __name__ == "__main__":
    main()
