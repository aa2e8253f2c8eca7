"""Each condition of the statements that write a commit refuses by itself, with all others fulfilled.

Whoever writes late breaks several at once: another server has the conversation, at another step, with another hash.
So a row is changed by hand here, in one respect each.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import psycopg
import pytest

from actors.adapters.store import changes, query
from actors.adapters.store.postgres.store import PostgresStore, open_postgres
from actors.adapters.store.query import Head, Session
from actors.ports import FencedError, NotOwnerError
from tests.integration.store.conftest import Gate
from tests.support.commit_builder import CommitBuilder
from tests.support.stores import ME

FORGED = "f" * 64
ROW = "SELECT step, last_seq, log_hash, epoch, owner, updated_at FROM conversations"
REFUSED = {
    "the step": ("UPDATE conversations SET step = step + 1", FencedError),
    "the revision": ("UPDATE conversations SET last_seq = last_seq + 1", FencedError),
    "the epoch": ("UPDATE conversations SET epoch = epoch + 1", FencedError),
    "the owner": ("UPDATE conversations SET owner = 2", NotOwnerError),
    "a server that is declared dead": (f"UPDATE nodes SET dead = true WHERE incarnation = {ME}", NotOwnerError),
}
HASH = f"UPDATE conversations SET log_hash = '{FORGED}'"


@pytest.fixture
def store(database: str, gate: Gate) -> Iterator[PostgresStore]:
    with closing(open_postgres(database, ME, gate)) as store:
        yield store


@pytest.fixture
def known(store: PostgresStore) -> CommitBuilder:
    """A conversation that the store has written to before."""
    draft = CommitBuilder.stored(store, "c1")
    store.commit(draft.next())
    return draft


def changed(url: str, sql: str) -> list[tuple[object, ...]]:
    """Change something behind the store's back; the conversation's row after that."""
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(sql.encode()).rowcount == 1
        return connection.execute(ROW.encode()).fetchall()


def row(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(ROW.encode()).fetchall()


@pytest.mark.parametrize(("change", "refusal"), REFUSED.values(), ids=REFUSED)
def test_what_is_written_together_is_refused_for_each_reason(
    store: PostgresStore, database: str, known: CommitBuilder, change: str, refusal: type[Exception]
) -> None:
    before = changed(database, change)
    with pytest.raises(refusal):
        store.commit(known.next())
    assert row(database) == before


def test_the_log_follows_the_hash_that_is_stored(store: PostgresStore, database: str, known: CommitBuilder) -> None:
    changed(database, HASH)
    store.commit(known.next())
    (latest,) = store.transitions("c1", after_step=2, limit=1)
    assert latest.prev_hash == FORGED


@pytest.mark.parametrize("reason", [*REFUSED, "the hash of the log"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
def test_what_is_written_is_refused_for_each_reason_that_arises_after_the_look(
    store: PostgresStore,
    database: str,
    known: CommitBuilder,
    monkeypatch: pytest.MonkeyPatch,
    *,
    reason: str,
    together: bool,
) -> None:
    change, refusal = REFUSED.get(reason, (HASH, FencedError))
    read, then = query.heads, list[list[tuple[object, ...]]]()

    def looked(session: Session, ids: Sequence[str]) -> dict[str, Head]:
        found = read(session, ids)
        if found and not then:
            then.append(changed(database, change))
        return found

    monkeypatch.setattr(query, "heads", looked)
    monkeypatch.setattr(changes, "heads", looked)
    if together and reason == "the hash of the log":
        store.commit(known.next())  # not as it was looked at, so it is looked at once more
        (latest,) = store.transitions("c1", after_step=2, limit=1)
        assert latest.prev_hash == FORGED
        return
    with pytest.raises(refusal):
        # several commits of one call are not among those that are written together with others
        store.commit(*(() if together else (CommitBuilder("c2").create(),)), known.next())
    assert then == [row(database)]
