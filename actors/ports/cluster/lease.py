"""The port for the lease of a node (a server process): how long it may act without hearing from the database."""

from __future__ import annotations

from typing import Protocol

OUT_OF_TOUCH = (
    "this server has not heard from its database for too long, so that it starts no tools and takes no commands until "
    "it does: try again"
)
"""The error text with which calls are refused after the lease has expired."""


class Lease(Protocol):
    """A permission to act that expires unless it is renewed. Safe to use from any thread; nothing here blocks."""

    @property
    def fd(self) -> int | None:
        """A descriptor of a file that contains the time at which running tools must end; None if there is no such time.

        The file has 8 bytes: nanoseconds of CLOCK_MONOTONIC as an integer.
        """
        ...

    def young(self) -> bool:
        """Return whether tools may start and commands (except cancels) be handled; False once the lease has expired."""
        ...

    def age(self) -> float:
        """Return the seconds since the last renewal, or since the start if there was none; 0 if it never expires."""
        ...


class Forever:
    """The lease of a server that shares its store with nobody: it never expires."""

    fd: int | None = None

    def young(self) -> bool:
        """Return True, because the lease never expires."""
        return True

    def age(self) -> float:
        """Return 0, because the lease is never renewed."""
        return 0.0


FOREVER = Forever()
