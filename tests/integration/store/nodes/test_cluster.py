"""A node with its threads, among others and alone; real processes that stop and die."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from actors.adapters.store.postgres.nodes import heartbeat, membership
from actors.adapters.store.postgres.nodes.heartbeat import Timing
from actors.adapters.store.postgres.nodes.membership import PostgresCluster
from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.adapters.store.postgres.nodes.node_watch import release
from actors.ports import StoreUnavailableError, StoreUnusableError
from actors.ports.cluster import Node
from tests.integration.store.nodes import node_process
from tests.integration.store.nodes.stepped import TIMING, Database, Stepped
from tests.support.patience import PATIENCE, eventually

SHORT = Timing(ttl=1.5)
"""For what has to be waited for; a machine that is busy for longer makes it take longer, and changes nothing else."""


@pytest.fixture
def cluster(database: Database) -> Iterator[PostgresCluster]:
    cluster = PostgresCluster(database.url, Node(0, "me", "me:1", "1.0", frozenset({"here"})), TIMING, active=lambda: 7)
    yield cluster
    cluster.close()


def test_owners_are_found_and_remembered(database: Database, ending: ExitStack, cluster: PostgresCluster) -> None:
    other = Stepped(ending, database.url, "other:1")
    database.add(other.me.incarnation, "theirs")
    database.add(cluster.me.incarnation, "mine")
    database.add(None, "nobody's", state="idle")
    assert cluster._watch.look()
    assert cluster.remembered_owner("theirs") is None
    assert cluster.owner_of("theirs") == next(node for node in cluster.nodes() if node != cluster.me)
    assert cluster.remembered_owner("theirs") == cluster.owner_of("theirs")
    for conversation in ("mine", "nobody's", "unheard of"):
        assert cluster.owner_of(conversation) is None
    assert cluster.remembered_owner("mine") == cluster.me
    assert cluster.remembered_owner("nobody's") is None
    database.ask("UPDATE conversations SET owner = NULL")
    assert cluster.owner_of("theirs") is not None, "remembered"
    cluster.forget("theirs")
    assert cluster.owner_of("theirs") is None
    database.ask("UPDATE conversations SET owner = %s", other.me.incarnation)
    assert cluster.owner_of("theirs") is not None
    assert cluster.owner_of("mine") is None, "remembered: it was, and the actor here would notice"
    assert cluster.owner_of("nobody's") is not None, "that it was nobody's is not remembered"
    database.ask("UPDATE nodes SET dead = true WHERE incarnation = %s", other.me.incarnation)
    assert cluster._watch.look()
    assert cluster.remembered_owner("theirs") is None
    assert cluster.owner_of("theirs") is None


def test_the_address_of_another_node_is_refused(
    database: Database, cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "TWIN_TRIES", 2)
    cluster.start()
    threads = threading.active_count()
    with pytest.raises(StoreUnusableError, match="node 'me' already uses the address me:1; give each server"):
        PostgresCluster(database.url, Node(0, "twin", "me:1"), TIMING)
    assert threading.active_count() <= threads


def test_few_owners_are_remembered(
    database: Database, ending: ExitStack, cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "MAX_OWNERS", 2)
    other = Stepped(ending, database.url, "other:1")
    for number in range(5):
        database.add(other.me.incarnation, f"c{number}")
        assert cluster.owner_of(f"c{number}") is not None
    assert list(cluster._owners) == ["c3", "c4"]


def test_who_drains_gives_everything_up_and_leaves(
    database: Database, ending: ExitStack, cluster: PostgresCluster
) -> None:
    other = Stepped(ending, database.url)
    lost = threading.Event()
    cluster.on_lost = lost.set
    mine = cluster.me.incarnation
    database.ask(
        "INSERT INTO conversations (id, family, owner, state, user_initiated)"
        " SELECT 'c' || n, 'c' || n, %s, 'idle', 1 FROM generate_series(1, 2500) n",
        mine,
    )
    database.add(mine, "busy", "agent")
    database.add(other.me.incarnation, "theirs")
    other.look_for(1)
    cluster.retire()
    other.look_for(1)
    assert [node.draining for node in other.watch.nodes() if node.incarnation == mine] == [True]
    cluster.drain()
    assert database.ask("SELECT count(*) FROM conversations WHERE owner = %s", mine) == [(0,)]
    assert other.watch.look()
    assert [node.incarnation for node in other.dead] == [mine]
    assert sorted(other.taken) == ["agent", "busy"], "what it could not settle is taken at once"
    assert database.ask("SELECT incarnation FROM nodes") == [(other.me.incarnation,)]
    cluster.close()
    assert not lost.is_set()
    assert not cluster.lease.valid()


def test_a_row_that_is_being_written_keeps_its_node_from_leaving(
    database: Database, cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RELEASE_SECONDS", 0.0)
    database.add(cluster.me.incarnation, "busy")
    database.ask("BEGIN")
    database.ask("SELECT id FROM conversations FOR UPDATE")
    with pytest.raises(StoreUnavailableError, match="cannot be released"):
        cluster.drain()
    database.ask("ROLLBACK")
    cluster.drain()
    assert database.owner("busy") is None


def test_a_node_that_leaves_waits_for_a_row_that_another_looks_at(
    database: Database, cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []

    def tried(session: NodeSession, owner: int) -> bool:
        tries.append(release(session, owner))
        if not tries[-1] and len(tries) == 2:
            database.ask("ROLLBACK")
        return tries[-1]

    monkeypatch.setattr(membership, "release", tried)
    monkeypatch.setattr(membership, "RELEASE_SECONDS", 60.0)
    database.add(cluster.me.incarnation, "called for")
    database.ask("BEGIN")
    database.ask("SELECT id FROM conversations FOR UPDATE")
    cluster.drain()
    assert tries == [False, False, True]
    assert database.ask("SELECT incarnation FROM nodes") == [], "nobody waits for the end of its lease"


def test_what_is_said_of_a_node(database: Database, cluster: PostgresCluster) -> None:
    assert cluster.me == cluster.nodes()[0]
    assert (cluster.me.name, cluster.me.address, cluster.me.version) == ("me", "me:1", "1.0")
    assert cluster.lease.valid()
    assert cluster._heartbeat.beat()
    assert database.ask("SELECT name, labels, active, session FROM nodes") == [("me", ["here"], 7, False)]


def test_nothing_is_left_of_a_node(database: Database) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    cluster = PostgresCluster(database.url, Node(0), TIMING)
    cluster.start()
    cluster.close()
    cluster.close()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'bedrock %'"
    eventually(lambda: database.ask(sessions) == [(0,)], "its sessions have ended")


def test_a_start_ends_after_the_conversations_of_its_predecessor_were_passed_on(
    database: Database, ending: ExitStack
) -> None:
    predecessor = Stepped(ending, database.url, "mine:1")
    database.add(predecessor.me.incarnation, "busy")
    predecessor.beats.close()  # as its process does that dies
    with closing(PostgresCluster(database.url, Node(0, "me", "mine:1"), SHORT)) as cluster:
        started, seen = threading.Event(), []
        cluster.on_taken = lambda ids: seen.append((ids, started.wait(0.5)))
        cluster.start()
        started.set()
        eventually(lambda: len(seen) == 1, "the predecessor's conversation is taken over")
        assert seen == [(("busy",), False)]


def test_whoever_fails_when_told_keeps_nothing_from_being_taken(
    database: Database, ending: ExitStack, cluster: PostgresCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("it can't")

    cluster.on_node_dead = cluster.on_taken = fail
    other = Stepped(ending, database.url)
    database.add(other.me.incarnation, "busy")
    assert cluster._watch.look()
    database.ask("UPDATE nodes SET dead = true WHERE incarnation = %s", other.me.incarnation)
    assert cluster._watch.look()
    assert database.owner("busy") == cluster.me.incarnation
    assert caplog.text.count("failed to handle a change in the cluster") == 2


def test_a_node_that_was_declared_dead_says_so_once(database: Database) -> None:
    told: queue.Queue[str] = queue.Queue()
    cluster = PostgresCluster(database.url, Node(0), SHORT)
    database.ask("UPDATE nodes SET dead = true")
    eventually(lambda: not cluster.lease.valid(), "the next heartbeat is refused")
    cluster.on_lost = lambda: told.put("lost")
    cluster.start()
    assert told.get(timeout=PATIENCE) == "lost"
    cluster.close()
    assert told.empty()


@contextmanager
def process(url: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a node in a process; yields it with its incarnation."""
    program = [sys.executable, "-m", node_process.__name__, url, str(SHORT.ttl)]
    with subprocess.Popen(
        program, cwd=Path(__file__).parents[4], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            yield running, int(running.stdout.readline())
        finally:
            running.kill()


def test_processes_that_are_killed_or_stopped(database: Database) -> None:
    """The killed one's conversations are taken at once, the stopped one's after its lease; it ends when it goes on."""
    taken: queue.Queue[tuple[str, ...]] = queue.Queue()
    dead: queue.Queue[Node] = queue.Queue()
    lost = threading.Event()
    cluster = PostgresCluster(database.url, Node(0, "judge", "127.0.0.1:9"), SHORT)
    cluster.on_taken, cluster.on_node_dead, cluster.on_lost = taken.put, dead.put, lost.set
    cluster.start()
    try:
        with process(database.url) as (killed, incarnation):
            database.add(incarnation, "of the killed")
            says = "SELECT session FROM nodes WHERE incarnation = %s"
            eventually(lambda: database.ask(says, incarnation) == [(True,)], "it has said that it listens")
            killed.kill()
            assert taken.get(timeout=PATIENCE) == ("of the killed",)
            assert dead.get(timeout=PATIENCE).incarnation == incarnation
        # One after the other: on a machine that is busy for longer than a lease the second might be dead before.
        with process(database.url) as (stopped, incarnation):
            database.add(incarnation, "of the stopped")
            stopped.send_signal(signal.SIGSTOP)
            assert taken.get(timeout=PATIENCE) == ("of the stopped",)
            assert dead.get(timeout=PATIENCE).incarnation == incarnation
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(PATIENCE) == node_process.LOST
        assert set(database.owners().values()) == {cluster.me.incarnation}
        assert not lost.is_set()
    finally:
        cluster.close()


def test_a_lost_session_says_nothing_before_a_node_listens(database: Database, cluster: PostgresCluster) -> None:
    says = "SELECT session FROM nodes"
    assert cluster._heartbeat.beat()
    assert database.ask(says) == [(False,)]
    cluster.start()
    assert database.ask(says) == [(True,)], "at once: it may be killed before its next heartbeat"
    assert cluster._heartbeat.beat()
    assert database.ask(says) == [(True,)]
