"""Nodes without threads, whose clocks tests set; and the rows that they fight for."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from actors.adapters.store.postgres.nodes.heartbeat import NANOSECONDS, Heartbeat, LeaseClock, Timing
from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.adapters.store.postgres.nodes.node_watch import FailureDetector, NodeMonitor
from actors.ports.cluster import Node

TIMING = Timing(ttl=300)
"""So long that no lease is over before a test says so, however busy the machine is."""


class Clock:
    """The monotonic clock of one process, which stands still until a test sets it ahead."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def pass_by(self, seconds: float) -> None:
        self._now += seconds

    def seconds(self) -> float:
        return self._now

    def nanoseconds(self) -> int:
        return int(self.seconds() * NANOSECONDS)


class Database:
    """Looks into the database, and changes what tests can't wait for. Close it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def add(
        self, owner: int | None, family: str, *members: str, state: str = "awaiting_llm", workspace: str = ""
    ) -> None:
        """Add a family: people's conversation at the top, in a state, and sub-agents at work."""
        for conversation in (family, *members):
            self.ask(
                "INSERT INTO conversations (id, family, owner, state, user_initiated, workspace_label) "
                "VALUES (%s, %s, %s, %s, %s, %s)",
                conversation,
                family,
                owner,
                state if conversation == family else "awaiting_llm",
                int(conversation == family),
                workspace,
            )

    def owners(self) -> dict[str, int | None]:
        return dict(self.ask("SELECT id, owner FROM conversations"))

    def owner(self, conversation: str) -> int | None:
        return self.owners()[conversation]

    def set_lease(self, node: Node, seconds: float) -> None:
        """Let the lease of a node last for so long from now on, by the database's clock."""
        self.ask(
            "UPDATE nodes SET expires = clock_timestamp() + make_interval(secs => %s) WHERE incarnation = %s",
            seconds,
            node.incarnation,
        )

    def cut_session(self, node: Node) -> None:
        """End the session that holds the lock of a node, and wait until it has ended."""
        held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND objid::bigint = %s"
        for (process,) in self.ask(held, node.incarnation):
            self.ask("SELECT pg_terminate_backend(%s, 60000)", process)

    def is_dead(self, node: Node) -> bool:
        return self.ask("SELECT dead FROM nodes WHERE incarnation = %s", node.incarnation) != [(False,)]

    def close(self) -> None:
        self._connection.close()


class Stepped:
    """A node that does only what it is told."""

    def __init__(
        self,
        ending: ExitStack,
        url: str,
        address: str = "",
        *,
        timing: Timing = TIMING,
        session: Callable[..., NodeSession] = NodeSession,
        steady: bool = True,
        labels: tuple[str, ...] = ("here",),
    ) -> None:
        """Join; `steady`: as one that has been there for long; `labels`: the workspaces that it has."""
        self.clock = Clock()
        self.timing = timing
        self.refusing: set[str] = set()
        """The addresses that refuse connections, for this node."""
        self.dead: list[Node] = []
        self.taken: list[str] = []
        self.lease = LeaseClock(timing.lease)
        self.beats = session(url, "beats", seconds=60)
        self.looks = NodeSession(url, "looks", seconds=60)
        for closed in (self.lease, self.beats, self.looks):
            ending.callback(closed.close)
        self.heartbeat = Heartbeat(self.beats, self.lease, timing, active=lambda: 3, monotonic=self.clock.nanoseconds)
        self.me = self.heartbeat.join(Node(0, f"node of {address}", address, "1.0", frozenset(labels)))
        self.heartbeat.listening = True
        assert self.heartbeat.beat()
        if steady:
            self.clock.pass_by(timing.steady)
            assert self.heartbeat.beat()
        detector = FailureDetector(
            self.me,
            timing,
            steady_for=self.heartbeat.steady_for,
            monotonic=self.clock.seconds,
            refused=self.refusing.__contains__,
        )
        self.watch = NodeMonitor(
            self.looks,
            self.me,
            timing,
            detector,
            on_dead=self.dead.append,
            on_taken=self.taken.extend,
            monotonic=self.clock.seconds,
        )

    def die(self, database: Database) -> None:
        """End as a killed process does, as far as the database sees it."""
        database.cut_session(self.me)
        self.beats.close()

    def look_for(self, seconds: float) -> None:
        """Look, and again after so long, in which the own lease was renewed."""
        assert self.watch.look()
        self.clock.pass_by(seconds)
        assert self.heartbeat.beat()
        assert self.watch.look()
