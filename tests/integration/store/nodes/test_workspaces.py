"""Conversations whose workspace only some nodes have."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from actors.adapters.store.postgres.engine import PostgresConnection, address_of, connect
from actors.adapters.store.postgres.nodes.membership import PostgresCluster
from actors.adapters.store.postgres.store import claimed
from actors.core.errors import Reason, Rejected
from actors.ports import NotOwnerError
from actors.ports.cluster import EVERYTHING, Node
from tests.integration.store.nodes.stepped import TIMING, Database, Stepped
from tests.integration.store.nodes.test_take_over import died

A = "/mnt/a"


@pytest.fixture
def claim(url: str) -> Iterator[PostgresConnection]:
    with closing(connect(address_of(url))) as session:
        yield session


def claims(session: PostgresConnection, conversation: str, node: Stepped) -> bool:
    """Whether a node can claim a conversation."""
    try:
        session.me = node.me.incarnation
        return claimed(session, conversation) is not None
    except NotOwnerError:
        return False


def test_only_a_node_that_has_the_workspace_claims_a_family(
    database: Database, ending: ExitStack, claim: PostgresConnection
) -> None:
    without, other, having = (Stepped(ending, database.url, labels=labels) for labels in ((), ("/mnt",), (A, "/b")))
    database.add(None, "top", "agent", state="idle", workspace=A)
    database.add(None, "anywhere", state="idle")
    for node in (without, other):
        assert not claims(claim, "top", node)
        assert not claims(claim, "agent", node)
    assert set(database.owners().values()) == {None}, "nothing has changed"
    assert claims(claim, "agent", having)
    assert claims(claim, "anywhere", without)
    mine = having.me.incarnation
    assert database.owners() == {"top": mine, "agent": mine, "anywhere": without.me.incarnation}
    alone = Stepped(ending, database.url, labels=(EVERYTHING,))
    database.ask("UPDATE conversations SET owner = NULL")
    assert claims(claim, "top", alone), "one that has the database to itself"


def test_what_was_interrupted_is_taken_over_by_nodes_that_have_its_workspace(
    database: Database, ending: ExitStack
) -> None:
    """Even if another one finds the death first, and lets everything go."""
    dead, without, having = (Stepped(ending, database.url, labels=labels) for labels in ((A,), (), (A,)))
    for node in (without, having):
        assert node.watch.look()
    database.add(dead.me.incarnation, "busy", "agent", workspace=A)
    database.add(dead.me.incarnation, "idle", state="idle", workspace=A)
    database.add(dead.me.incarnation, "anywhere")
    died(database, dead)
    assert without.watch.look()
    assert database.owners() == {"busy": None, "agent": None, "idle": None, "anywhere": without.me.incarnation}
    assert without.taken == ["anywhere"]
    assert having.watch.look()
    mine = having.me.incarnation
    assert database.owners() == {"busy": mine, "agent": mine, "idle": None, "anywhere": without.me.incarnation}
    assert sorted(having.taken) == ["agent", "busy"]


def test_a_node_that_joins_takes_what_waits_for_its_workspace(database: Database, ending: ExitStack) -> None:
    dead, without = (Stepped(ending, database.url, labels=labels) for labels in ((A,), ()))
    database.add(dead.me.incarnation, "busy", workspace=A)
    died(database, dead)
    without.look_for(TIMING.ttl)
    assert database.owner("busy") is None
    assert without.taken == []
    late = Stepped(ending, database.url, labels=(A,))
    assert late.watch.look()
    assert database.owner("busy") == late.me.incarnation
    assert late.taken == ["busy"]


def test_calls_go_to_a_node_that_has_the_workspace(database: Database, ending: ExitStack) -> None:
    cluster = PostgresCluster(database.url, Node(0, "me", "me:1", labels=frozenset({"/b"})), TIMING)
    ending.callback(cluster.close)
    having, owner = (Stepped(ending, database.url, address, labels=(A,)) for address in ("one:1", "two:1"))
    database.add(None, "free", state="idle", workspace=A)
    database.add(owner.me.incarnation, "owned", workspace=A)
    database.add(owner.me.incarnation, "theirs")
    database.add(None, "mine", state="idle", workspace="/b")
    assert cluster._watch.look()
    first, second = having.me.incarnation, owner.me.incarnation
    found = {each: cluster.owner_of(each) for each in ("free", "owned", "theirs", "mine", "unheard of")}
    assert {each: node and node.incarnation for each, node in found.items()} == {
        "free": first, "owned": second, "theirs": second, "mine": None, "unheard of": None,
    }  # fmt: skip
    forks = {each: cluster.place_of_fork(each) for each in ("free", "owned", "theirs", "mine", "unheard of")}
    assert {each: node and node.incarnation for each, node in forks.items()} == {
        "free": first, "owned": first, "theirs": None, "mine": None, "unheard of": None,
    }  # fmt: skip
    placed = {each: cluster.place_of(each) for each in (f"{A}/x/..", f"{A}/x", "/mnt", "/b/x", "", "x")}
    assert [node and node.incarnation for node in placed.values()] == [first, first, None, None, None, None]
    assert (cluster.label_of("/b/x"), cluster.label_of("/mnt")) == ("/b", "")
    database.ask("UPDATE nodes SET draining = true WHERE incarnation = %s", first)
    assert cluster._watch.look()
    again = cluster.owner_of("free")
    assert again is not None
    assert again.incarnation == second, "what nobody owns is not remembered"


def test_without_a_node_that_has_it_a_workspace_is_offline_as_long_as_conversations_are_in_it(
    database: Database, ending: ExitStack
) -> None:
    cluster = PostgresCluster(database.url, Node(0, "me", "me:1", labels=frozenset({"/mnt"})), TIMING)
    ending.callback(cluster.close)
    database.add(None, "free", workspace=A)
    before = database.ask("SELECT * FROM conversations")
    for ask, about in ((cluster.owner_of, "free"), (cluster.place_of_fork, "free"), (cluster.place_of, f"{A}/x")):
        with pytest.raises(Rejected, match=f"workspace {A}:") as refused:
            ask(about)
        assert refused.value.reason is Reason.WORKSPACE_OFFLINE
    assert database.ask("SELECT * FROM conversations") == before
    database.ask("DELETE FROM conversations")
    assert cluster.place_of(f"{A}/x") is None, "it is in /mnt, which this node has"
