"""The pool of connections that both databases read over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.adapters.store.reads import ReaderPool
from actors.ports import StoreUnavailableError
from tests.support.patience import eventually


class Pool(ReaderPool[str]):
    """Connections that are names."""

    def _take(self) -> str:
        return self._take_idle() or "opened"

    def _explained(self, error: BaseException) -> None:
        return None


def test_a_connection_that_is_lent_while_the_pool_closes_is_closed_when_it_is_given_back() -> None:
    closed: list[str] = []
    pool = Pool(closed.append)
    with ThreadPoolExecutor(1) as threads:
        with pool._places:
            pool._give_back("idle")
            closing = threads.submit(pool.close)
            eventually(lambda: closed == ["idle"], "what nobody uses is closed at once")
            assert not closing.done(), "it waits for the read"
            pool._give_back("lent")
        closing.result()
    assert closed == ["idle", "lent"]
    with pytest.raises(StoreUnavailableError, match="closed"):
        pool._take_idle()
