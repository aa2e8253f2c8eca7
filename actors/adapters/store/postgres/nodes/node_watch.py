"""Watches the other nodes: decides which of them are dead, and takes over the dead nodes' conversations.

A node that is slow, suspended for a while, or without its database session is still alive; and the database may be
unreachable, or its clock may be changed. A node therefore judges others only after its own lease has been valid without
interruption for a while. It then declares another node dead in two cases (names in capital letters are from the
protocol's model):

- That node's lease has expired by the database's clock (EXPIRED), and this node's own monotonic clock shows that the
  lease was not renewed for its whole duration.
- That node's session has lost its advisory lock, its lease is not renewed, its port refuses connections (REFUSED), and
  all this has lasted long enough (GRACE) for the node's tool processes to have ended, too.

Living nodes take over interrupted conversations immediately. They take over idle ones only when a client uses them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from actors.adapters.store.postgres.nodes import node_statements as sql
from actors.adapters.store.postgres.nodes.heartbeat import Timing
from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.common.settings_checks import host_and_port
from actors.ports.cluster import Node

_log = logging.getLogger(__name__)

# Maximum number of top-level conversations that one transaction takes over, each with all its sub-agents.
#
# A transaction for each conversation would take seconds in total; a single transaction for all would lock rows for too
# long.
MAX_FAMILIES = 200
MAX_RELEASED = 1_000


class NodeMonitor:
    def __init__(
        self,
        session: NodeSession,
        me: Node,
        timing: Timing,
        detector: FailureDetector,
        *,
        on_dead: Callable[[Node], object],
        on_taken: Callable[[tuple[str, ...]], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_dead` is called for each node that has died or left, before its conversations are taken over.

        `on_taken` is called after each batch of take-overs, with the ids of those conversations that have unfinished
        work.
        """
        self._session = session
        self._me, self._address = me.incarnation, me.address
        self._timing = timing
        self._detector = detector
        self._on_dead, self._on_taken = on_dead, on_taken
        self._monotonic = monotonic
        self._living = {me.incarnation: me}
        self._abandoned_at: float | None = None
        self.succeeded = False
        """Whether every earlier node at this node's address is dead, and its conversations were taken over."""

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._living.values())

    def is_alive(self, incarnation: int) -> bool:
        return incarnation in self._living

    def pause(self) -> float:
        return min(self._timing.confirm, self._timing.again) if self._detector.suspects else self._timing.again

    def look(self) -> bool:
        """Read all nodes, declare dead those that the detector names, and take over their conversations.

        Returns False if this node was declared dead. Raises StoreUnavailableError.
        """
        rows = {row.incarnation: row for row in (NodeRow(*each) for each in self._session.rows(sql.SEEN))}
        mine = rows.pop(self._me, None)
        if mine is None or mine.dead:
            return False
        dead = {row.incarnation: row for row in rows.values() if row.dead or self._declared(row)}
        living = {self._me: mine.node} | {each: row.node for each, row in rows.items() if each not in dead}
        self._detector.keep(living)
        gone = [node for incarnation, node in self._living.items() if incarnation not in living]
        self._living = living
        for node in gone:
            self._on_dead(node)
        self._recover(dead.values(), left=bool(gone))
        self.succeeded = not any(row.address == self._address for each, row in rows.items() if each in living)
        return True

    def _declared(self, row: NodeRow) -> bool:
        statement = self._detector.verdict(row)
        if statement is None:
            return False
        values = {"me": self._me, "other": row.incarnation, "expires": row.expires, "locks": sql.LOCKS}
        if not self._session.rows(statement, values):
            return False
        how = "its process has exited" if statement is sql.GONE else "its lease has expired"
        _log.warning("node %d (%s, %s) declared dead: %s", row.incarnation, row.name, row.address, how)
        return True

    def _recover(self, dead: Iterable[NodeRow], *, left: bool) -> None:
        for row in dead:
            self.take_from_dead(row.incarnation)
            if row.forgotten:
                self._session.rows(sql.SWEEP, {"other": row.incarnation})
        now = self._monotonic()
        if left or self._abandoned_at is None or now - self._abandoned_at >= self._timing.ttl:
            self._take(sql.TAKE_ABANDONED, None)
            self._abandoned_at = now

    def take_from_dead(self, incarnation: int) -> None:
        """Take over a dead node's interrupted conversations, and remove the owner from its idle ones.

        Takes over nothing if this node is itself dead or draining. Raises StoreUnavailableError; this node then keeps
        the conversations that it has already taken over.
        """
        self._take(sql.TAKE, incarnation)
        release(self._session, incarnation)

    def _take(self, statement: str, dead: int | None) -> None:
        values = {"me": self._me, "dead": dead, "most": MAX_FAMILIES}
        while taken := self._session.rows(statement, values):
            if unsettled := tuple(conversation for conversation, is_unsettled in taken if is_unsettled):
                self._on_taken(unsettled)


def release(session: NodeSession, owner: int) -> bool:
    """Remove `owner` from its conversations, except in locked rows; return whether it no longer owns any.

    Raises StoreUnavailableError.
    """
    while session.rows(sql.RELEASE, {"owner": owner, "most": MAX_RELEASED}):
        pass
    return not session.rows(sql.OWNS, {"owner": owner})[0][0]


# --- which nodes are dead ---------------------------------------------------------------------------------

PROBE_SECONDS = 0.2


class NodeRow(NamedTuple):
    incarnation: int
    name: str
    address: str
    version: str
    labels: list[str]
    draining: bool
    active: int
    dead: bool
    session: bool  # whether the node's session should hold an advisory lock while the node is alive
    held: bool  # whether the session holds that lock now
    ttl: float
    expires: str
    over: bool
    forgotten: bool  # whether the node has been dead for so long that its row may be deleted

    @property
    def node(self) -> Node:
        return node_of(self[:7])


def node_of(columns: Sequence[Any]) -> Node:
    incarnation, name, address, version, labels, draining, active = columns
    return Node(incarnation, name, address, version, frozenset(labels), draining, active)


class _Signs(NamedTuple):
    """The observations that this node has made about another node; times are in monotonic seconds.

    `expires` is the end of the other node's lease as text; `renewed` is when that text was first seen.
    """

    expires: str
    renewed: float
    missed: float | None = None  # when the session was first seen without its advisory lock; None if it has the lock
    # When the node's port first refused a connection; None if it accepts connections or was not probed.
    refused: float | None = None


class FailureDetector:
    """Observes other nodes, and decides which of them are dead. Not thread-safe."""

    def __init__(
        self,
        me: Node,
        timing: Timing,
        *,
        steady_for: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        refused: Callable[[str], bool] = lambda address: refuses(address, seconds=PROBE_SECONDS),
    ) -> None:
        """`steady_for` returns for how many seconds this node's lease has been valid without interruption.

        `refused` returns whether an address refuses connections.
        """
        self._me = me
        self._timing = timing
        self._steady_for = steady_for
        self._monotonic = monotonic
        self._refused = refused
        self._signs: dict[int, _Signs] = {}

    @property
    def suspects(self) -> bool:
        """Whether any node's session has lost its advisory lock, so that this node should look again soon."""
        return any(signs.missed is not None for signs in self._signs.values())

    def keep(self, incarnations: Collection[int]) -> None:
        """Forget what was observed about all nodes except those in `incarnations` (node numbers)."""
        self._signs = {incarnation: signs for incarnation, signs in self._signs.items() if incarnation in incarnations}

    def verdict(self, row: NodeRow) -> str | None:
        """Record a node's row; return the statement that declares the node dead, or None if it may be alive.

        The statement checks its conditions again. May block for PROBE_SECONDS for each of the node's addresses.
        """
        now = self._monotonic()
        signs = self._signs.get(row.incarnation)
        if signs is None or signs.expires != row.expires:
            signs = _Signs(row.expires, now)
        self._signs[row.incarnation] = signs = self._looked_for(row, signs, now)
        steady = self._steady_for() >= self._timing.steady
        if steady and row.over and now - signs.renewed >= row.ttl:
            return sql.EXPIRED
        # If this node listens at the other node's address, the other node has ended, whatever has happened to the
        # database, because only one process can listen there.
        sure = signs.refused is not None and now - signs.refused >= self._timing.grace
        return sql.GONE if sure and (steady or row.address == self._me.address) else None

    def _looked_for(self, row: NodeRow, signs: _Signs, now: float) -> _Signs:
        """Look at a node whose session may have lost its advisory lock.

        The node's port is probed once the lock has been missing for a while. It is not probed if the node has no
        address, does not listen yet, is draining (which closes the port), or is behind a pooler, where sessions keep no
        locks.
        """
        if row.held or not row.session or row.draining or not row.address:
            return signs._replace(missed=None, refused=None)
        missed = now if signs.missed is None else signs.missed
        if now - missed < self._timing.confirm:
            return signs._replace(missed=missed, refused=None)
        if row.address != self._me.address and not self._refused(row.address):
            return signs._replace(missed=missed, refused=None)
        return signs._replace(missed=missed, refused=now if signs.refused is None else signs.refused)


def refuses(address: str, *, seconds: float) -> bool:
    """Whether all addresses of "host:port" refuse connections, which proves that the process there is gone.

    No other result proves it: without an answer, the machine may just be cut off; and the kernel accepts connections
    even for a suspended process. Blocks for up to `seconds` per address, and for the DNS lookup.
    """
    where = host_and_port(address)
    if where is None or not where[1]:  # no server can listen at port 0; host_and_port refuses ports above 65,535
        return False
    try:
        found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_refused(family, where, seconds) for family, _, _, _, where in found)


def _refused(family: int, where: tuple[object, ...], seconds: float) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.settimeout(seconds)
        try:
            tried.connect(where)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
