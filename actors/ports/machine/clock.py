"""Ports for time, ids and fault points: sources of nondeterminism, which tests replace."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A source of time. Safe to call from any thread."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch (UTC), for records and events."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for deadlines and durations."""
        ...


class Ids(Protocol):
    """A source of new ids. Safe to call from any thread."""

    def conversation(self) -> str:
        """Return a new conversation id: lower-case letters, digits and '-'. Ids are never reused."""
        ...

    def message(self) -> str:
        """Return a new message id."""
        ...

    def slug(self) -> str:
        """Return a short readable name for a conversation, which may be in use already."""
        ...


class FaultPoints(Protocol):
    """Named points at which tests inject failures, delays or the death of the process. Safe to call from any thread."""

    def hit(self, point: str) -> None:
        """Mark that the code has reached this point, such as "commit.before".

        In tests, this call may raise or block.
        """
        ...


class NoFaultPoints:
    """The implementation of FaultPoints for production, which does nothing."""

    def hit(self, point: str) -> None:
        """Do nothing."""
