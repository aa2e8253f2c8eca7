"""Time, ids and fault points: sources of nondeterminism, which tests replace."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Source of time. Any thread."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC: for records and for events."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back: for deadlines and durations."""
        ...


class Ids(Protocol):
    """Source of new ids. Any thread."""

    def conversation(self) -> str:
        """Return a new conversation id: lower-case letters, digits and '-', never reused."""
        ...

    def message(self) -> str:
        """Return a new message id."""
        ...

    def slug(self) -> str:
        """Return a short readable handle; it may be taken already."""
        ...


class FaultPoints(Protocol):
    """Named points at which tests inject failures, delays or the death of the process. Any thread."""

    def hit(self, point: str) -> None:
        """Pass `point`, e.g. "commit.before"; a test's implementation may raise or block."""
        ...


class NoFaultPoints:
    """Fault points in production: they do nothing."""

    def hit(self, point: str) -> None:
        """Do nothing."""
