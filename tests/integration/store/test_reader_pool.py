"""The pool of connections that both databases read over."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.adapters.store.sqlite.store import PeeweeStore
from actors.ports import Store, StoreUnavailableError
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually


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
