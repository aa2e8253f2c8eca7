"""The duration of a node's lease, and the time limits derived from it."""

from __future__ import annotations

from msgspec import Struct

LONGEST_TTL = 60.0


class Timing(Struct, frozen=True):
    """Durations in seconds."""

    ttl: float = 10.0
    """How long a heartbeat keeps a node alive in the database, from its arrival there.

    With a shorter time, stopped nodes are found sooner, but slow ones are taken for dead, as happened with 3 s on a
    busy machine.
    """
    confirm: float = 0.25
    """How long the advisory lock of a node's session has to be missing before the node's port is probed."""
    grace: float = 0.5
    """How long a process must be known to be gone, so that its tool hosts have noticed that and ended its tools."""

    @property
    def beat(self) -> float:
        """The pause between two heartbeats."""
        return self.ttl / 5

    @property
    def again(self) -> float:
        """The pause after a failed heartbeat, and between two looks at the other nodes."""
        return self.ttl / 20

    @property
    def young(self) -> float:
        """How long after sending a heartbeat tools may start and live: the lease minus the time that a kill takes."""
        return self.ttl * 0.8

    @property
    def steady(self) -> float:
        """How long a node must have had a lease without a gap before it judges others."""
        return self.ttl * 1.5

    @property
    def statement(self) -> float:
        """The time limit of a statement."""
        return max(1.0, self.ttl / 2)
