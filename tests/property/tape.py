"""Decisions out of one drawn byte string: cheap to draw, simple to shrink, and the same in every run.

Drawn numbers would not do: Hypothesis mixes constants into them that it finds in whatever modules are loaded.
"""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Tape:
    """Bytes, spent one a decision. Zero takes the first option, which is the plainest; so does the end of the tape."""

    def __init__(self, decisions: bytes) -> None:
        self._decisions = decisions
        self._at = 0

    def __repr__(self) -> str:
        return f"Tape({self._decisions!r})"

    @property
    def over(self) -> bool:
        return self._at >= len(self._decisions)

    def pick(self, options: Sequence[T]) -> T:
        return options[self._next() % len(options)]

    def one_in(self, count: int) -> bool:
        """Seldom true; never for zero."""
        return self._next() % count == count - 1

    def number(self, largest: int) -> int:
        """From 0 to `largest`, below 256."""
        return self._next() % (largest + 1)

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to so many, each any of them."""
        return [self.pick(options) for _ in range(self.number(most))]

    def _next(self) -> int:
        decision = 0 if self.over else self._decisions[self._at]
        self._at += 1
        return decision


def tapes(shortest: int, longest: int) -> st.SearchStrategy[Tape]:
    """Tapes of so many decisions; a walk takes about five for each event."""
    return st.binary(min_size=shortest, max_size=longest).map(Tape)
