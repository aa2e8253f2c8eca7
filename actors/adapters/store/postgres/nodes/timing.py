"""The duration of a node's lease, and the time limits derived from it."""

from __future__ import annotations

from msgspec import Struct

LONGEST_TTL = 60.0


class Timing(Struct, frozen=True):
    """The durations, in seconds, by which the servers of a cluster renew leases and find dead servers."""

    ttl: float = 10.0
    """The length of a lease: how long a node counts as alive after a heartbeat has arrived in the database.

    With a shorter time, stopped nodes are found sooner, but slow nodes are declared dead, as happened with 3 s on a
    busy machine.
    """
    confirm: float = 0.25
    """How long a node's session must be without its advisory lock before the node's port is probed."""
    grace: float = 0.5
    """How long a process must be known to be gone before its node is declared dead.

    In this time the processes that run its tools notice that their server is gone, and end the tools.
    """

    @property
    def beat(self) -> float:
        """The pause between two heartbeats."""
        return self.ttl / 5

    @property
    def again(self) -> float:
        """The pause after a failed heartbeat, and between two reads of the table of nodes."""
        return self.ttl / 20

    @property
    def young(self) -> float:
        """How long after sending a heartbeat tools may start and run: the lease minus the time a kill takes."""
        return self.ttl * 0.8

    @property
    def steady(self) -> float:
        """How long a node must have had a valid lease without interruption before it judges other nodes."""
        return self.ttl * 1.5

    @property
    def statement(self) -> float:
        """The time limit of an SQL statement."""
        return max(1.0, self.ttl / 2)
