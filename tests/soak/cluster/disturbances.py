"""What happens to three nodes and their database, one thing after the other."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psycopg

from tests.e2e.nodes import LEASE_SECONDS
from tests.soak.cluster.late_commit import claim_first, write_first
from tests.soak.cluster.three_nodes import DECLARED_DEAD, NAMES, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

BLINK_SECONDS = 1.0
"""Shorter than a lease."""
SLOW_SECONDS = (0.02, 0.2)
"""What a slow database takes for anything, in each direction."""
SLOW_FOR_SECONDS = LEASE_SECONDS + 2.0
LOCKED_SECONDS = (1.0, LEASE_SECONDS + 1.0)
"""For how long a table is locked: shorter and longer than a lease, and than a statement waits for its rows."""


def kill(cluster: Cluster) -> None:
    """One is killed, and others declare it dead; or it comes back first."""
    _kill_together(cluster, 1)


def kill_two(cluster: Cluster) -> None:
    """Two are killed, and come back, at the same moment."""
    _kill_together(cluster, 2)


def _kill_together(cluster: Cluster, count: int) -> None:
    names = cluster.at_work(count)
    killed = [cluster.servers[name] for name in names]
    incarnations = [cluster.incarnation(name) for name in names]
    for server in killed:
        server.process.kill()
    for server in killed:
        server.kill()
    if cluster.random.random() < 0.7:
        for server, incarnation in zip(killed, incarnations, strict=True):
            cluster.await_dead(server, incarnation)
    for server, name in zip(killed, names, strict=True):
        cluster.start(name)
        cluster.forget(server)


def freeze(cluster: Cluster) -> None:
    """One stands still for longer than its lease: it is dead for all others, and for itself when it goes on."""
    (name,) = cluster.at_work()
    server, incarnation = cluster.servers[name], cluster.incarnation(name)
    server.foreseen = DECLARED_DEAD
    server.process.send_signal(signal.SIGSTOP)
    try:
        cluster.await_dead(server, incarnation)
    finally:
        server.process.send_signal(signal.SIGCONT)
    cluster.replace(name)


def blink(cluster: Cluster) -> None:
    """One stands still for less than its lease: nothing comes of it."""
    (name,) = cluster.any()
    server = cluster.servers[name]
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(BLINK_SECONDS)
    server.process.send_signal(signal.SIGCONT)


def partition(cluster: Cluster) -> None:
    """Nothing gets from one to the database, or back, for longer than its lease; connections stay open."""
    (name,) = cluster.at_work()
    server, incarnation = cluster.servers[name], cluster.incarnation(name)
    server.foreseen = DECLARED_DEAD
    cluster.ways[name].freeze()
    try:
        cluster.await_dead(server, incarnation)
    finally:
        cluster.ways[name].thaw()
    cluster.replace(name)


def cut(cluster: Cluster) -> None:
    """One loses its connections to the database, and may connect again at once."""
    cluster.ways[cluster.any()[0]].cut()


def lose_answers(cluster: Cluster) -> None:
    """What one says reaches the database; the answers, also to its commits, do not come back."""
    (name,) = cluster.any()
    way = cluster.ways[name]
    way.hold_answers()
    time.sleep(BLINK_SECONDS)
    way.cut()
    way.thaw()


def restart(cluster: Cluster) -> None:
    """One is told to stop, and started again."""
    (name,) = cluster.any()
    cluster.stop(cluster.servers[name])
    cluster.start(name)


def slow_database(cluster: Cluster) -> None:
    """The database is far away for longer than a lease, for one node or all: nobody is taken for dead."""
    names = cluster.any(cluster.random.choice((1, len(NAMES))))
    incarnations = [cluster.incarnation(name) for name in NAMES]
    for name in names:
        cluster.ways[name].seconds = cluster.random.uniform(*SLOW_SECONDS)
    time.sleep(SLOW_FOR_SECONDS)
    for name in names:
        cluster.ways[name].seconds = 0.0
    cluster.note_deaths(incarnations)


def lock_conversations(cluster: Cluster) -> None:
    """Somebody locks the conversations, so that nothing is written: nobody is taken for dead."""
    _lock(cluster, "conversations")


def lock_nodes(cluster: Cluster) -> None:
    """Somebody locks the table of nodes, so that no lease is renewed: whoever is back after that is not dead."""
    _lock(cluster, "nodes")


def _lock(cluster: Cluster, table: str) -> None:
    incarnations = [cluster.incarnation(name) for name in NAMES]
    with psycopg.connect(cluster.url) as connection:
        connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        time.sleep(cluster.random.uniform(*LOCKED_SECONDS))
    cluster.note_deaths(incarnations)


def crash_database(cluster: Cluster) -> None:
    """The database crashes, and is back after a while."""
    cluster.nodes.database.crash()
    time.sleep(cluster.random.uniform(0, LEASE_SECONDS))
    cluster.nodes.database.start()


def crash_database_and_kill(cluster: Cluster) -> None:
    """A node is killed while the database is away, and comes back when it is there again."""
    (name,) = cluster.at_work()
    server = cluster.servers[name]
    cluster.nodes.database.crash()
    server.kill()
    cluster.nodes.database.start()
    cluster.start(name)
    cluster.forget(server)


KINDS: dict[str, Callable[[Cluster], None]] = {
    "kill": kill,
    "kill two": kill_two,
    "freeze": freeze,
    "blink": blink,
    "partition": partition,
    "late commit": claim_first,
    "late commit after a write": write_first,
    "cut": cut,
    "lost answers": lose_answers,
    "restart": restart,
    "slow database": slow_database,
    "locked conversations": lock_conversations,
    "locked nodes": lock_nodes,
    "crash of the database": crash_database,
    "crash of the database and kill": crash_database_and_kill,
}
"""What may happen, by name."""
