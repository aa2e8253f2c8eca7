"""Taking the lock of a data directory while clients look whether it is held."""

import fcntl
import os
from pathlib import Path

import pytest

from actors.adapters.store.sqlite.data_directory import DataDirectory
from actors.ports import DataDirectoryBusyError

SLEEP = f"{DataDirectory.__module__}.time.sleep"


def test_the_shared_lock_of_a_client_that_looks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDirectory(tmp_path).close()
    looking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waits = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr(SLEEP, pause)
    try:
        DataDirectory(tmp_path).close()
    finally:
        os.close(looking)
    assert len(waits) == 1


def test_a_lock_that_stays_held_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(SLEEP, waits.append)
    held = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryBusyError):
        DataDirectory(tmp_path)
    held.close()
    assert 0 < sum(waits) <= 0.5
