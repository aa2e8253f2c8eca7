"""The heartbeats of this node: they keep its row, its session's lock and its own lease alive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.adapters.store.postgres.nodes import node_statements as said
from actors.ports import StoreUnusableError
from actors.ports.cluster import Node
from actors.ports.cluster.lease_clock import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.postgres.nodes.node_session import NodeSession
    from actors.adapters.store.postgres.nodes.timing import Timing
    from actors.ports.cluster.lease_clock import LeaseClock

TWIN_TRIES, TWIN_SECONDS = 21, 0.1
"""How often another node at the same address is looked for, since a session may outlive its process for a while."""


class NewNode(Struct, frozen=True):
    """What a server says of itself when it joins."""

    name: str = ""
    address: str = ""
    """Where its own gRPC listener is reached by the others, "host:port"; "" if it is not.

    It has to be the process's own: what refuses connections there is taken for the end of the process, and the next
    node with the same address for the one that replaces it.
    """
    version: str = ""
    labels: frozenset[str] = frozenset()


class Heartbeat:
    """Joins, and renews the lease from then on. One thread at a time; `steady_for` on any."""

    def __init__(
        self,
        session: NodeSession,
        lease: LeaseClock,
        timing: Timing,
        *,
        active: Callable[[], int],
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`active` returns how many conversations have an actor here."""
        self._session = session
        self._lease = lease
        self._timing = timing
        self._active = active
        self._monotonic = monotonic
        self._incarnation = 0
        self.listening = False
        """Whether the node listens at its address: until then a lost session says nothing about its process."""
        self._opened = 0
        self._locked = False
        self._steady_since = 0

    def join(self, new: NewNode) -> Node:
        """Add a row for this node and return the node.

        Its session's lock comes before its row: else others could see the row alone, and take the node for gone.
        Raises StoreUnavailableError; StoreUnusableError if another node is reached at the same address: the silence of
        either would be taken for the end of both.
        """
        self._refuse_twin(new.address)
        ((self._incarnation,),) = self._session.rows(said.NEXT)
        self._keep_lock()
        sent = self._monotonic()
        values = {"name": new.name, "address": new.address, "version": new.version, "labels": sorted(new.labels)}
        self._session.rows(said.JOIN, values | self._mine() | {"ttl": self._timing.ttl})
        self._steady_since = sent
        self._lease.renew(sent)
        return Node(self._incarnation, new.name, new.address, new.version, new.labels)

    def beat(self) -> bool:
        """Renew the lease; False if this node was declared dead. Raises StoreUnavailableError.

        A new session has its lock before its first heartbeat, and a node that had lost its session, or let its lease
        grow old, begins anew to be steady.
        """
        gap = self._keep_lock() or not self._lease.young()
        sent = self._monotonic()
        if not self._session.rows(said.BEAT, self._mine() | {"active": self._active()}):
            self._lease.close()
            return False
        if gap:
            self._steady_since = sent
        self._lease.renew(sent)
        return True

    def steady_for(self) -> float:
        """Return for how many seconds this node has had a young lease and one session; 0 if it has not."""
        return (self._monotonic() - self._steady_since) / NANOSECONDS if self._lease.young() else 0.0

    def _refuse_twin(self, address: str) -> None:
        """Wait for a while, since the session of a process that has just ended may still be there."""
        for left in reversed(range(TWIN_TRIES if address else 0)):
            twins = self._session.rows(said.TWIN, {"address": address})
            if not twins:
                return
            if not left:
                raise StoreUnusableError(
                    f"the node {twins[0][0]!r} is reached at {address} as well: give each server an address of its own"
                )
            time.sleep(TWIN_SECONDS)

    def _mine(self) -> dict[str, object]:
        return {"me": self._incarnation, "session": self._session.direct and self.listening}

    def _keep_lock(self) -> bool:
        """Take the lock of the session if it does not have it; returns whether the session is a new one.

        While the database has not noticed the end of the last session, that one still holds the lock; the next
        heartbeat tries again.
        """
        number = self._session.open()
        new = number != self._opened
        if new:
            self._opened, self._locked = number, False
        if self._session.direct and not self._locked:
            ((self._locked,),) = self._session.rows(said.LOCK, {"locks": said.LOCKS, "me": self._incarnation})
        return new
