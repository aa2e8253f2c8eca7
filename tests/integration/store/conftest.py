"""Both stores, and a way to make the writer wait."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.adapters.store.postgres.store import open_postgres
from actors.adapters.store.sqlite.engine import sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import FaultPoints, Store
from tests.support.patience import eventually
from tests.support.stores import ME

SECONDS = 20.0  # longer than anything here takes


class Gate:
    """Fault points that block the writer at `store.before_begin`, or fail as configured."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.failing: dict[str, BaseException] = {}
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Event()

    def hit(self, point: str) -> None:
        self.hits.append(point)
        if point in self.failing:
            raise self.failing.pop(point)
        if point == "store.before_begin" and not self._open.is_set():
            self._held.set()
            assert self._open.wait(SECONDS)

    def close(self) -> None:
        self._held.clear()
        self._open.clear()

    def wait_until_held(self) -> None:
        assert self._held.wait(SECONDS)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["peewee", "postgres"])
def open_any(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[FaultPoints | None], Store]]:
    """Opens a store of each kind, closed at the end."""
    opened: list[Store] = []

    def open_one(faults: FaultPoints | None) -> Store:
        store: Store
        if request.param == "postgres":
            store = open_postgres(request.getfixturevalue("database"), ME, faults)
        else:
            store = open_store(tmp_path / "data", faults)
        opened.append(store)
        return store

    if request.param == "postgres":
        request.getfixturevalue("database")  # so that it is dropped only after the stores are closed
    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_any: Callable[[FaultPoints | None], Store], gate: Gate) -> Store:
    """A store of either kind, whose writer obeys `gate`."""
    return open_any(gate)


def wait_until_removed(store: PeeweeStore) -> None:
    """Wait until nothing that was deleted is left."""
    with reading(store) as connection:
        eventually(lambda: not connection.execute("SELECT 1 FROM deletions WHERE depth >= 0").fetchall(), "it is gone")


@contextmanager
def reading(store: PeeweeStore) -> Generator[sqlite3.Connection]:
    with store._readers.lend() as session:
        yield session.connection
