"""Documents that servers share on PostgreSQL: whole, and no change of anybody is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import psycopg
import pytest

from actors.adapters.store.postgres.nodes.node_session import Document
from actors.ports import StoreUnavailableError, StoreUnusableError
from tests.support.patience import eventually


@pytest.fixture
def document(database: str) -> Iterator[Document]:
    with closing(Document(database, "names")) as made:
        yield made


def test_changes_at_the_same_time_are_all_kept(document: Document, database: str) -> None:
    assert document.read() is None

    def add(number: int) -> None:
        with closing(Document(database, "names")) as mine:
            mine.update(lambda before: (before or b"") + b"%d," % number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    kept = document.read()
    assert kept is not None
    assert sorted(map(int, kept.rstrip(b",").split(b","))) == list(range(20))


def test_what_is_not_changed_is_not_written(document: Document, database: str) -> None:
    document.update(lambda _: b"\x00\xff")
    document.update(lambda before: None if before == b"\x00\xff" else b"?")
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT version, content FROM documents").fetchall() == [(1, b"\x00\xff")]
    with closing(Document(database, "others")) as other:
        assert other.read() is None


def test_a_connection_that_is_lost_is_made_again(document: Document, database: str) -> None:
    document.update(lambda _: b"one")
    mine = "FROM pg_stat_activity WHERE application_name = 'bedrock documents'"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid) {mine}")
        eventually(lambda: not connection.execute(f"SELECT pid {mine}").fetchall(), "it is lost")
    with suppress(StoreUnavailableError):
        document.read()
    assert document.read() == b"one"


def test_an_address_that_is_none_is_told_without_its_password() -> None:
    with pytest.raises(StoreUnusableError) as refusal:
        Document("mysql://me:secret@there/db", "names")
    assert "secret" not in str(refusal.value)
    assert Document("postgresql://me:secret@there/db", "names").location == "names in postgresql://me@there/db"
