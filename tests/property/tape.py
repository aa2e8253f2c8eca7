"""Decisions out of one drawn byte string: cheap to draw, simple to shrink, and the same in every run.

Drawn numbers would not do: Hypothesis mixes constants into them that it finds in whatever modules are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from tests.property.profiles import CI_EXAMPLES, profile

T = TypeVar("T")

TOGETHER = 10
"""Tapes that are drawn at once: drawing one alone costs as much as most tests of it."""


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

    def _next(self) -> int:
        decision = 0 if self.over else self._decisions[self._at]
        self._at += 1
        return decision


def tapes(shortest: int, longest: int) -> st.SearchStrategy[Tape]:
    """Tapes of so many decisions; a walk takes about five for each event."""
    return st.binary(min_size=shortest, max_size=longest).map(Tape)


def on_tapes(
    shortest: int, longest: int, examples: int = CI_EXAMPLES
) -> Callable[[Callable[[Tape], None]], Callable[[], None]]:
    """Run a test on so many tapes (in CI) of so many decisions. A failure names its tape."""

    def decorate(test: Callable[[Tape], None]) -> Callable[[], None]:
        def run(several: list[Tape]) -> None:
            for tape in several:
                try:
                    test(tape)
                except Exception as error:
                    error.add_note(f"with {tape}")
                    raise

        run.__name__ = test.__qualname__  # what CI draws depends on it, and so differs from test to test
        run.__doc__, run.__module__ = test.__doc__, test.__module__
        size = TOGETHER * (1 + longest)
        drawn = st.binary(min_size=size, max_size=size).map(lambda decisions: _cut(decisions, shortest, longest))
        return profile(examples // TOGETHER)(given(drawn)(run))

    return decorate


def _cut(decisions: bytes, shortest: int, longest: int) -> list[Tape]:
    """Equal pieces. The first byte of each says how much of the rest is used."""
    pieces = [decisions[start : start + 1 + longest] for start in range(0, len(decisions), 1 + longest)]
    return [Tape(piece[1 : 1 + shortest + piece[0] * (longest - shortest) // 255]) for piece in pieces]
