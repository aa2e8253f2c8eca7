"""When a node may be declared dead.

One that lives may be slow, stopped for a while, or without a session of the database; the database may be away, and its
clock may be set. So only a node judges that has itself had a lease without a gap for a while, and another one is dead

- if its lease is over by the database's clock (the model's EXPIRED), and was not renewed for as long on the monotonic
  clock of the one that judges; or
- if its session has lost its lock and it renews no lease, its port refuses connections (REFUSED), and that has been so
  for the time that its tool hosts need to notice (GRACE).
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
    """A row of `nodes`, in the order of the statement SEEN."""

    incarnation: int
    name: str
    address: str
    version: str
    labels: list[str]
    draining: bool
    active: int
    dead: bool
    session: bool
    """Whether it keeps a lock of its session at all."""
    held: bool
    """Whether its session has its lock."""
    ttl: float
    expires: str
    over: bool
    forgotten: bool
    """Whether it has been dead for so long that its row may go."""

    @property
    def node(self) -> Node:
        """Who it is."""
        return node_of(self[:7])


def node_of(columns: Sequence[Any]) -> Node:
    """Return a node from the first columns of its row."""
    incarnation, name, address, version, labels, draining, active = columns
    return Node(incarnation, name, address, version, frozenset(labels), draining, active)


class _Signs(NamedTuple):
    """What was seen of a node, each since when on the monotonic clock."""

    expires: str
    renewed: float
    missed: float | None = None
    """When its session was first seen to be gone."""
    refused: float | None = None
    """When its port first refused a connection."""


class Judge:
    """Remembers the signs of other nodes. One thread."""

    def __init__(
        self,
        me: Node,
        timing: Timing,
        *,
        steady_for: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        refused: Callable[[str], bool] = lambda address: refuses(address, seconds=PROBE_SECONDS),
    ) -> None:
        """`steady_for` returns for how many seconds this node has had its own lease without a gap.

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
        """Whether the end of a node has to be confirmed soon."""
        return any(signs.missed is not None for signs in self._signs.values())

    def keep(self, incarnations: Collection[int]) -> None:
        """Forget all other nodes."""
        self._signs = {incarnation: signs for incarnation, signs in self._signs.items() if incarnation in incarnations}

    def verdict(self, row: NodeRow) -> str | None:
        """Note what is seen of another node; returns the statement that declares it dead, which asks again, or None.

        May block for the time of a probe.
        """
        now = self._monotonic()
        signs = self._signs.get(row.incarnation)
        if signs is None or signs.expires != row.expires:
            signs = _Signs(row.expires, now)
        self._signs[row.incarnation] = signs = self._looked_for(row, signs, now)
        steady = self._steady_for() >= self._timing.steady
        if steady and row.over and now - signs.renewed >= row.ttl:
            return said.EXPIRED
        # Where this node listens itself nobody else does: the node before it there is gone, whatever the database has
        # been through.
        sure = signs.refused is not None and now - signs.refused >= self._timing.grace
        return said.GONE if sure and (steady or row.address == self._me.address) else None

    def _looked_for(self, row: NodeRow, signs: _Signs, now: float) -> _Signs:
        """Return the signs after a look for the process of a node.

        One that drains has closed its port although it still works, and one that has just joined does not listen yet
        (OPEN); one behind a pooler keeps no lock.
        """
        if row.held or not row.session or row.draining or not row.address:
            return signs._replace(missed=None, refused=None)
        missed = now if signs.missed is None else signs.missed
        if now - missed < self._timing.confirm:
            return signs._replace(missed=missed, refused=None)
        if row.address != self._me.address and not self._refused(row.address):
            return signs._replace(missed=missed, refused=None)
        return signs._replace(missed=missed, refused=now if signs.refused is None else signs.refused)
