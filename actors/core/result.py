"""What a transition answers."""

from __future__ import annotations

from msgspec import Struct

from actors.core.effects import Effect
from actors.core.states import State


class TransitionResult(Struct, frozen=True):
    """A verdict: the state that holds from now on, and what is to be done in phases (effects.py)."""

    new_state: State
    effects: tuple[Effect, ...]


def ignored(state: State) -> TransitionResult:
    """The verdict on an outcome that no longer concerns anybody: the very same state, no effects."""
    return TransitionResult(state, ())
