"""The result type of a transition."""

from __future__ import annotations

from msgspec import Struct

from actors.core.effects import Effect
from actors.core.states import State


class TransitionResult(Struct, frozen=True):
    """The new state, and the effects of the transition in the order in which they were added."""

    new_state: State
    effects: tuple[Effect, ...]


def ignored(state: State) -> TransitionResult:
    """Return the result for an event that no longer applies: the same state object, no effects."""
    return TransitionResult(state, ())
