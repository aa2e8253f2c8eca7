"""This node's lease: its length, the heartbeats that renew it, and the node's own view of when it ends.

A heartbeat renews the lease in the database and, after a reconnect, the node's advisory lock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from actors.adapters.store.postgres.nodes import node_statements as sql
from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.ports import StoreUnusableError
from actors.ports.cluster import Lease, Node

# How many times a starting node checks whether a living node already has its address, and the seconds between checks.
#
# There are several checks, because a process's database session may remain for a while after the process has ended.
TWIN_TRIES, TWIN_SECONDS = 21, 0.1


class Heartbeat:
    """Joins the cluster, and then renews this node's lease. Not thread-safe, except for `steady_for`."""

    def __init__(
        self,
        session: NodeSession,
        lease: LeaseClock,
        timing: Timing,
        *,
        active: Callable[[], int],
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`active` returns how many conversations have an actor on this node; `monotonic` returns nanoseconds."""
        self._session = session
        self._lease = lease
        self._timing = timing
        self._active = active
        self._monotonic = monotonic
        self._incarnation = 0
        # Whether the node accepts connections at its address.
        #
        # Until then, a closed port does not prove that the process is dead.
        self.listening = False
        self._opened = 0
        self._locked = False
        self._steady_since = 0

    def join(self, new: Node) -> Node:
        """Add this node's row to `nodes`; return `new` with its number. Raises StoreUnavailableError.

        The node's address is that of this process's gRPC listener, "host:port"; "" if other nodes cannot reach it. The
        address must belong to this process: if it refuses connections, the process is considered dead. A later node
        with the same address is considered the replacement for this one.

        The advisory lock is taken before the row is added: nodes that saw a row without a lock would consider this node
        gone. Raises StoreUnusableError if a living node has the same address, because the failure of one of the two
        would be attributed to both.
        """
        self._refuse_twin(new.address)
        ((self._incarnation,),) = self._session.rows(sql.NEXT)
        self._keep_lock()
        sent = self._monotonic()
        values = {"name": new.name, "address": new.address, "version": new.version, "labels": sorted(new.labels)}
        self._session.rows(sql.JOIN, values | self._mine() | {"ttl": self._timing.ttl})
        self._steady_since = sent
        self._lease.renew(sent)
        return replace(new, incarnation=self._incarnation)

    def beat(self) -> bool:
        """Renew the lease; False if this node was declared dead. Raises StoreUnavailableError.

        Each session takes the advisory lock before its first heartbeat. After the loss of a session or of the lease,
        `steady_for` counts from zero again.
        """
        gap = self._keep_lock() or not self._lease.valid()
        sent = self._monotonic()
        if not self._session.rows(sql.BEAT, self._mine() | {"active": self._active()}):
            self._lease.close()
            return False
        if gap:
            self._steady_since = sent
        self._lease.renew(sent)
        return True

    def steady_for(self) -> float:
        """How many seconds this node has had a valid lease in one session without interruption."""
        return (self._monotonic() - self._steady_since) / NANOSECONDS if self._lease.valid() else 0.0

    def _refuse_twin(self, address: str) -> None:
        for left in reversed(range(TWIN_TRIES if address else 0)):
            twins = self._session.rows(sql.TWIN, {"address": address})
            if not twins:
                return
            if not left:
                raise StoreUnusableError(
                    f"node {twins[0][0]!r} already uses the address {address}; give each server a different one"
                )
            time.sleep(TWIN_SECONDS)

    def _mine(self) -> dict[str, object]:
        return {"me": self._incarnation, "session": self._session.direct and self.listening}

    def _keep_lock(self) -> bool:
        """Take the advisory lock unless it is held; return whether the session is new.

        The previous session holds the lock until the database notices that this session has ended; until then, each
        heartbeat tries again to take the lock.
        """
        number = self._session.open()
        new = number != self._opened
        if new:
            self._opened, self._locked = number, False
        if self._session.direct and not self._locked:
            ((self._locked,),) = self._session.rows(sql.LOCK, {"locks": sql.LOCKS, "me": self._incarnation})
        return new


class Timing(Struct, frozen=True):
    """Durations in seconds: of leases, and of the steps by which the servers of a cluster detect dead servers."""

    # The length of a lease: how long a node counts as alive after a heartbeat has arrived in the database.
    #
    # A shorter lease would reveal stopped nodes sooner, but slow nodes would be declared dead, as happened with 3 s on
    # a busy machine.
    ttl: float = 10.0
    # How long a node's advisory lock must be missing before the node's port is probed.
    confirm: float = 0.25
    # How long a process must be known to be gone before its node is declared dead.
    #
    # In this time, the processes that run the node's tools notice that their server is gone, and end the tools.
    grace: float = 0.5

    @property
    def beat(self) -> float:
        return self.ttl / 5

    @property
    def again(self) -> float:
        """The pause after a failed heartbeat, and between two reads of the `nodes` table."""
        return self.ttl / 20

    @property
    def lease(self) -> float:
        """How long tools may start and run after a heartbeat was sent: the lease minus the time needed to kill them."""
        return self.ttl * 0.8

    @property
    def steady(self) -> float:
        """How long a node must have had a valid lease without interruption before it judges other nodes."""
        return self.ttl * 1.5

    @property
    def statement(self) -> float:
        return max(1.0, self.ttl / 2)


# --- the lease as this node sees it: a file in memory that the node's tool processes read --------------------------

NANOSECONDS = 1_000_000_000
_BYTES = 8
_F_SEAL_FUTURE_WRITE = 0x10
# Seals of the memory file: its size is fixed, and only the mapping made before sealing can write to it.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE


class LeaseClock(Lease):
    """A lease whose end is kept in a file in memory. It counts as expired until it is first renewed."""

    def __init__(self, seconds: float) -> None:
        """Create the file (needs Linux 5.1). Raises OSError.

        Tools may start and run for `seconds` after a heartbeat was sent. The lease in the database is longer, because
        tool hosts need the difference to end the tools.
        """
        self._seconds = seconds
        self._lock = threading.Lock()  # guards the fields below
        self._until = 0
        self._renewed = time.monotonic_ns()
        self._fd: int | None = os.memfd_create("bedrock-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, _BYTES)
        try:
            self._map = mmap.mmap(self._fd, _BYTES)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self._fd)
            raise
        self._word = memoryview(self._map).cast("q")

    @property
    def fd(self) -> int | None:
        return self._fd

    def valid(self) -> bool:
        return time.monotonic_ns() < self._until

    def age(self) -> float:
        return (time.monotonic_ns() - self._renewed) / NANOSECONDS

    def renew(self, sent: int) -> None:
        """Extend the lease for an accepted heartbeat.

        The lease counts from the time at which the heartbeat was sent (time.monotonic_ns), because its answer may take
        any time to arrive. A heartbeat that was sent before the latest accepted one changes nothing.
        """
        with self._lock:
            until = sent + int(self._seconds * NANOSECONDS)
            if self._fd is not None and until > self._until:
                self._word[0] = self._until = until
                self._renewed = sent

    def close(self) -> None:
        with self._lock:
            if self._fd is None:
                return
            self._word[0] = self._until = 0
            self._word.release()
            self._map.close()
            os.close(self._fd)
            self._fd = None
