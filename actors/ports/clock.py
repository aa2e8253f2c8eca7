"""Time, ids and fault points: what the core may not have and tests must own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time, injected so that tests own it. Any thread."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC: for records and for the machine."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and durations."""
        ...


class Ids(Protocol):
    """Where new identities come from. Any thread."""

    def conversation(self) -> str:
        """A new conversation id: lower-case letters, digits and '-', never reused."""
        ...

    def message(self) -> str:
        """A new message id."""
        ...

    def slug(self) -> str:
        """A short readable handle; may be taken already."""
        ...


class FaultPoints(Protocol):
    """Named points where a test may fail, delay or kill the process. Production does nothing. Any thread."""

    def hit(self, point: str) -> None:
        """Called as the work passes `point`, e.g. "commit.before"; may raise."""
        ...


class NoFaultPoints:
    """Production: nothing fails on purpose."""

    def hit(self, point: str) -> None:
        """Do nothing."""
