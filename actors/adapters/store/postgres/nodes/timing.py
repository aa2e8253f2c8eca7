"""How long a lease lasts, and what follows from it."""

from __future__ import annotations

from msgspec import Struct

LONGEST_TTL = 60.0


class Timing(Struct, frozen=True):
    """Times in seconds."""

    ttl: float = 10.0
    """How long a heartbeat keeps a node alive in the database, from when it arrives there. Shorter finds stopped nodes
    sooner, and takes starved ones for dead; 3 did so on a busy machine."""
    confirm: float = 0.25
    """How long a session's lock has to be missing before the port of its node is tried."""
    grace: float = 0.5
    """How long a process that is gone has to be gone, so that its tool hosts have noticed and ended its tools."""

    @property
    def beat(self) -> float:
        """Between two heartbeats."""
        return self.ttl / 5

    @property
    def again(self) -> float:
        """After a heartbeat that failed, and between two looks at the other nodes."""
        return self.ttl / 20

    @property
    def young(self) -> float:
        """How long after a heartbeat was sent tools may start and live: less than the lease by the time of a kill."""
        return self.ttl * 0.8

    @property
    def steady(self) -> float:
        """How long a node must have had a lease without a gap before it judges others."""
        return self.ttl * 1.5

    @property
    def statement(self) -> float:
        """How long a statement may take."""
        return max(1.0, self.ttl / 2)
