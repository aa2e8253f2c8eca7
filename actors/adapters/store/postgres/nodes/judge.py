"""Decides when this node may declare another node dead.

A living node may be slow, suspended for a while, or without its database session; the database may be unreachable, and
its clock may be changed. So a node judges others only after it has itself had a valid lease without interruption for a
while. It then declares another node dead in two cases (capital letters are the names in the protocol's model):

- That node's lease has expired by the database's clock (EXPIRED), and this node's own monotonic clock shows that the
  lease was not renewed for its whole duration.
- That node's session has lost its advisory lock, its lease is not renewed, its port refuses connections (REFUSED), and
  all this has lasted so long (GRACE) that the node's tool processes have ended, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.adapters.store.postgres.nodes import node_statements as said
from actors.adapters.store.postgres.nodes.port_probe import refuses
from actors.ports.cluster import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from actors.adapters.store.postgres.nodes.timing import Timing

PROBE_SECONDS = 0.2


class NodeRow(NamedTuple):
    """A row of the table `nodes`, with the columns of the statement SEEN."""

    incarnation: int
    name: str
    address: str
    version: str
    labels: list[str]
    draining: bool
    active: int
    dead: bool
    session: bool
    """Whether the node's session is supposed to hold an advisory lock as long as the node lives."""
    held: bool
    """Whether the session holds that lock now."""
    ttl: float
    expires: str
    over: bool
    forgotten: bool
    """Whether the node has been dead for so long that its row may be deleted."""

    @property
    def node(self) -> Node:
        """The part of the row that describes the node, as a Node."""
        return node_of(self[:7])


def node_of(columns: Sequence[Any]) -> Node:
    """Return a node from the first seven columns of its row."""
    incarnation, name, address, version, labels, draining, active = columns
    return Node(incarnation, name, address, version, frozenset(labels), draining, active)


class _Signs(NamedTuple):
    """What this node has seen of another node. All times are in monotonic seconds, except `expires`.

    `expires` is the end of the other node's lease as text, as in its row; `renewed` is when this node first saw that
    text.
    """

    expires: str
    renewed: float
    missed: float | None = None
    """When the session was first seen without its advisory lock; None if it has the lock."""
    refused: float | None = None
    """When the node's port first refused a connection; None if it accepts connections or was not probed."""


class Judge:
    """Remembers what was observed of other nodes, and decides which of them are dead. Used by one thread only."""

    def __init__(
        self,
        me: Node,
        timing: Timing,
        *,
        steady_for: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        refused: Callable[[str], bool] = lambda address: refuses(address, seconds=PROBE_SECONDS),
    ) -> None:
        """`steady_for` returns for how many seconds this node has had its own lease without interruption.

        `monotonic` returns the time in seconds. `refused` returns whether an address "host:port" refuses connections.
        """
        self._me = me
        self._timing = timing
        self._steady_for = steady_for
        self._monotonic = monotonic
        self._refused = refused
        self._signs: dict[int, _Signs] = {}

    @property
    def suspects(self) -> bool:
        """Whether the session of any node has lost its advisory lock, so that this node should look again soon."""
        return any(signs.missed is not None for signs in self._signs.values())

    def keep(self, incarnations: Collection[int]) -> None:
        """Forget what was observed of all nodes except those in `incarnations` (the numbers of nodes)."""
        self._signs = {incarnation: signs for incarnation, signs in self._signs.items() if incarnation in incarnations}

    def verdict(self, row: NodeRow) -> str | None:
        """Record a node's present row; return the SQL statement to declare it dead, or None if it may still be alive.

        The statement checks the conditions again in the database. May block for PROBE_SECONDS per address of the node.
        """
        now = self._monotonic()
        signs = self._signs.get(row.incarnation)
        if signs is None or signs.expires != row.expires:
            signs = _Signs(row.expires, now)
        self._signs[row.incarnation] = signs = self._looked_for(row, signs, now)
        steady = self._steady_for() >= self._timing.steady
        if steady and row.over and now - signs.renewed >= row.ttl:
            return said.EXPIRED
        # If this node listens at the same address, no other process does: the earlier node there has ended, whatever
        # has happened to the database.
        sure = signs.refused is not None and now - signs.refused >= self._timing.grace
        return said.GONE if sure and (steady or row.address == self._me.address) else None

    def _looked_for(self, row: NodeRow, signs: _Signs, now: float) -> _Signs:
        """Look at a node whose session may have lost its advisory lock, and return the updated observations.

        If the lock is lost, the node's port is probed. It is not probed if the node is draining, since such a node has
        closed its port but still works; nor if the node has no address or does not listen yet; nor behind a connection
        pooler, where sessions keep no locks.
        """
        if row.held or not row.session or row.draining or not row.address:
            return signs._replace(missed=None, refused=None)
        missed = now if signs.missed is None else signs.missed
        if now - missed < self._timing.confirm:
            return signs._replace(missed=missed, refused=None)
        if row.address != self._me.address and not self._refused(row.address):
            return signs._replace(missed=missed, refused=None)
        return signs._replace(missed=missed, refused=now if signs.refused is None else signs.refused)
