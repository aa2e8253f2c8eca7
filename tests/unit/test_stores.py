"""The stores that tests open leave nothing behind."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from tests.support.commit_builder import CommitBuilder
from tests.support.stores import closing_stores, new_store


def files_beneath(directory: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if Path(path).is_relative_to(directory)]


def test_stores_are_closed_and_removed_with_their_threads(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with closing_stores(tmp_path):
        for _ in range(2):
            new_store().commit(CommitBuilder("c1").create())
        assert files_beneath(tmp_path)
    assert files_beneath(tmp_path) == []
    assert set(threading.enumerate()) <= threads
    assert list(tmp_path.iterdir()) == []
