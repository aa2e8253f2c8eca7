"""What becomes of the conversations of nodes that die or leave."""

import threading
from contextlib import ExitStack

from tests.integration.store.nodes.stepped import TIMING, Database, Stepped


def died(database: Database, node: Stepped) -> int:
    """Declare a node dead, as another one would."""
    database.ask("UPDATE nodes SET dead = true WHERE incarnation = %s", node.me.incarnation)
    return node.me.incarnation


def test_interrupted_families_are_taken_whole_and_those_at_rest_are_free(database: Database, ending: ExitStack) -> None:
    other, survivor = Stepped(ending, database.url), Stepped(ending, database.url)
    database.add(other.me.incarnation, "busy", "agent")
    database.add(other.me.incarnation, "parent", "agent of it", state="idle")
    database.add(other.me.incarnation, "idle", state="idle")
    database.add(survivor.me.incarnation, "own")
    assert survivor.watch.look()
    died(database, other)
    assert survivor.watch.look()
    mine = survivor.me.incarnation
    assert database.owners() == {
        "busy": mine, "agent": mine, "parent": mine, "agent of it": mine, "own": mine, "idle": None,
    }  # fmt: skip
    assert sorted(survivor.taken) == ["agent", "agent of it", "busy"]
    assert [node.incarnation for node in survivor.dead] == [other.me.incarnation]


def test_what_a_dead_node_had_sent_before_is_taken_as_well(database: Database, ending: ExitStack) -> None:
    """It may arrive after the take-over: a sub-agent of a family that somebody has, or nobody; a claim."""
    other, survivor = Stepped(ending, database.url), Stepped(ending, database.url)
    dead = died(database, other)
    assert survivor.watch.look()
    database.add(survivor.me.incarnation, "taken")
    database.add(None, "free", state="idle")
    database.add(dead, "claimed late")
    for family in ("taken", "free"):
        database.ask(
            "INSERT INTO conversations (id, family, owner, state) VALUES (%s, %s, %s, 'llm')",
            f"agent of {family}",
            family,
            dead,
        )
    assert survivor.watch.look()
    assert set(database.owners().values()) == {survivor.me.incarnation}
    assert sorted(survivor.taken) == ["agent of free", "agent of taken", "claimed late"]


def test_the_row_of_a_dead_node_goes_once_nothing_of_it_can_arrive(database: Database, ending: ExitStack) -> None:
    other, survivor = Stepped(ending, database.url), Stepped(ending, database.url)
    database.set_lease(other.me, -1)
    survivor.look_for(TIMING.ttl + 1)
    survivor.look_for(1)
    rows = "SELECT incarnation FROM nodes ORDER BY 1"
    assert len(database.ask(rows)) == 2
    database.set_lease(other.me, -1)
    assert survivor.watch.look()
    assert database.ask(rows) == [(survivor.me.incarnation,)]
    assert not other.heartbeat.beat()


def test_a_dead_node_takes_nothing_nor_does_one_that_leaves(database: Database, ending: ExitStack) -> None:
    other, dead, draining, late = (Stepped(ending, database.url) for _ in range(4))
    database.add(died(database, other), "busy")
    database.add(None, "abandoned")
    died(database, dead)
    database.ask("UPDATE nodes SET draining = true WHERE incarnation = %s", draining.me.incarnation)
    database.set_lease(late.me, -1)
    for node in (dead, draining, late):
        node.watch.take_from_dead(other.me.incarnation)
        assert node.taken == []
    assert database.owners() == {"busy": None, "abandoned": None}


def test_two_survivors_share_what_there_is(database: Database, ending: ExitStack) -> None:
    other = Stepped(ending, database.url)
    survivors = [Stepped(ending, database.url) for _ in range(2)]
    dead = died(database, other)
    database.ask(
        "INSERT INTO conversations (id, family, owner, state, user_initiated)"
        " SELECT 'c' || n || '.' || m, 'c' || n || '.0', %s, 'llm', (m = 0)::int"
        " FROM generate_series(1, 700) n, generate_series(0, 1) m",
        dead,
    )
    begin = threading.Barrier(2)

    def take(survivor: Stepped) -> None:
        begin.wait()
        survivor.watch.look()

    threads = [threading.Thread(target=take, args=(survivor,)) for survivor in survivors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for survivor in survivors:
        assert survivor.watch.look()
    first, second = (set(survivor.taken) for survivor in survivors)
    assert len(first) + len(second) == sum(len(survivor.taken) for survivor in survivors) == 1_400
    owners = database.owners()
    for taken, survivor in ((first, survivors[0]), (second, survivors[1])):
        assert {owners[conversation] for conversation in taken} <= {survivor.me.incarnation}
        assert {conversation.split(".")[0] for conversation in taken if conversation.endswith(".0")} == {
            conversation.split(".")[0] for conversation in taken if conversation.endswith(".1")
        }, "families stay whole"


def test_what_somebody_has_locked_is_his(database: Database, ending: ExitStack) -> None:
    """A claim that is under way; it is left to it, and taken later if the claim comes to nothing."""
    other, survivor = Stepped(ending, database.url), Stepped(ending, database.url)
    database.add(other.me.incarnation, "claimed")
    database.add(other.me.incarnation, "busy")
    died(database, other)
    database.ask("BEGIN")
    database.ask("SELECT id FROM conversations WHERE id = 'claimed' FOR UPDATE")
    assert survivor.watch.look()
    assert survivor.taken == ["busy"]
    database.ask("ROLLBACK")
    assert survivor.watch.look()
    assert survivor.taken == ["busy", "claimed"]


def test_abandoned_work_is_taken_when_a_node_has_left_and_now_and_then(database: Database, ending: ExitStack) -> None:
    other, survivor = Stepped(ending, database.url), Stepped(ending, database.url)
    assert survivor.watch.look()
    database.add(None, "left", "agent")
    database.add(None, "idle", state="idle")
    assert survivor.watch.look()
    assert survivor.taken == [], "not at each look"
    survivor.look_for(TIMING.ttl + 1)
    assert sorted(survivor.taken) == ["agent", "left"]
    database.add(None, "left at the end")
    database.ask("DELETE FROM nodes WHERE incarnation = %s", other.me.incarnation)
    assert survivor.watch.look()
    assert survivor.taken[2:] == ["left at the end"]
    assert [node.incarnation for node in survivor.dead] == [other.me.incarnation]
    assert database.owner("idle") is None
