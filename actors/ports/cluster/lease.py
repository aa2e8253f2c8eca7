"""The lease of a node: for how long it may start tools and take commands without hearing from the store again."""

from __future__ import annotations

from typing import Protocol

OUT_OF_TOUCH = (
    "this server has not heard from its database for too long, so that it starts no tools and takes no commands until "
    "it does: try again"
)
"""Why something is refused while the lease is not young."""


class Lease(Protocol):
    """Permission to act that runs out unless it is renewed. Any thread; nothing here blocks."""

    @property
    def fd(self) -> int | None:
        """A descriptor with 8 bytes: until when tools may live, in nanoseconds of CLOCK_MONOTONIC; None: for ever."""
        ...

    def young(self) -> bool:
        """Return whether tools may be started and commands be carried out now."""
        ...

    def age(self) -> float:
        """Return the seconds since it was renewed, or began; 0 if it need not be."""
        ...


class Forever:
    """Implements Lease for a server that has its store to itself."""

    fd: int | None = None

    def young(self) -> bool:
        """Return True."""
        return True

    def age(self) -> float:
        """Return 0."""
        return 0.0


FOREVER = Forever()
