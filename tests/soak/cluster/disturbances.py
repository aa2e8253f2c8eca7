"""What happens to three nodes and their database, one thing after the other."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from tests.soak.cluster.late_commit import claim_first, write_first
from tests.soak.cluster.three_nodes import DECLARED_DEAD, NAMES, Cluster, World
from tests.support.nodes import LEASE_SECONDS

BLINK_SECONDS = 1.0
"""Shorter than a lease."""
SLOW_SECONDS = (0.02, 0.2)
"""What a slow database takes for anything, in each direction."""
SLOW_FOR_SECONDS = LEASE_SECONDS + 2.0
SKEW_SECONDS = 86_400.0
LOG_FILES = 200
"""More files of its log than PostgreSQL has made in advance."""
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


def unplug(cluster: Cluster) -> None:
    """The network loses whatever is sent to one or by it, for longer than its lease, and tells nobody."""
    (name,) = cluster.at_work()
    server, incarnation = cluster.servers[name], cluster.incarnation(name)
    server.foreseen = DECLARED_DEAD
    assert cluster.networks is not None
    cluster.networks.unplug(name)
    try:
        cluster.await_dead(server, incarnation)
    finally:
        cluster.networks.plug(name)
    cluster.replace(name)


def set_clock(cluster: Cluster) -> None:
    """The clock of one is set by hours, and stays so: nobody is taken for dead."""
    incarnations = [cluster.incarnation(name) for name in NAMES]
    assert cluster.clock is not None
    cluster.clock.set(cluster.random.uniform(-1, 1) * SKEW_SECONDS)
    time.sleep(SLOW_FOR_SECONDS)
    cluster.note_deaths(incarnations)


def fill_disk(cluster: Cluster) -> None:
    """There is no room on the database's disk for a while: nothing new is written."""
    cluster.nodes.database.fill()
    time.sleep(cluster.random.uniform(*LOCKED_SECONDS))
    cluster.nodes.database.free()
    cluster.replace_dead()


def fill_disk_and_log(cluster: Cluster) -> None:
    """There is none for PostgreSQL's log either, which makes it crash, and it may not come back by itself."""
    crashes = cluster.nodes.database.log.count("PANIC")
    cluster.nodes.database.fill()
    with suppress(psycopg.Error), psycopg.connect(cluster.url, autocommit=True) as connection:
        for number in range(LOG_FILES):
            connection.execute(f"SELECT pg_logical_emit_message(false, 'full', '{number}'), pg_switch_wal()".encode())
    time.sleep(cluster.random.uniform(*LOCKED_SECONDS))
    cluster.nodes.database.free()
    if cluster.nodes.database.log.count("PANIC") == crashes:
        cluster.wrong.append("a full disk did not make the database crash")
    cluster.replace_dead()


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


ALWAYS: dict[str, Callable[[Cluster], None]] = {
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
"""What may happen anywhere, by name."""
WITH_NETWORKS: dict[str, Callable[[Cluster], None]] = {"network lost": unplug}
WITH_CLOCK: dict[str, Callable[[Cluster], None]] = {"clock set": set_clock}
ON_SMALL_DISK: dict[str, Callable[[Cluster], None]] = {
    "full disk of the database": fill_disk,
    "full disk and crash of the database": fill_disk_and_log,
}
KINDS = ALWAYS | WITH_NETWORKS | WITH_CLOCK | ON_SMALL_DISK


def possible(world: World) -> list[str]:
    """Return the names of what may happen there."""
    networks, clock = WITH_NETWORKS if world.networks else {}, WITH_CLOCK if world.clock else {}
    return list(ALWAYS | networks | clock | (ON_SMALL_DISK if world.small_disk else {}))
