"""The port for a node's lease: how long the node may start tools and take commands without hearing from the store."""

from __future__ import annotations

from typing import Protocol

OUT_OF_TOUCH = (
    "this server has not heard from its database for too long, so that it starts no tools and takes no commands until "
    "it does: try again"
)
"""The text of refusals while the lease has expired."""


class Lease(Protocol):
    """A permission to act that expires unless it is renewed. Safe to use from any thread; nothing here blocks."""

    @property
    def fd(self) -> int | None:
        """A descriptor of a file with 8 bytes: until when tools may live, in CLOCK_MONOTONIC nanoseconds.

        None: no limit.
        """
        ...

    def young(self) -> bool:
        """Return whether tools may be started and commands carried out now, because the lease has not expired."""
        ...

    def age(self) -> float:
        """Return the seconds since the lease was renewed, or else began; 0 if it never expires."""
        ...


class Forever:
    """The lease of a server that shares its store with nobody: it never expires."""

    fd: int | None = None

    def young(self) -> bool:
        """Return True."""
        return True

    def age(self) -> float:
        """Return 0."""
        return 0.0


FOREVER = Forever()
