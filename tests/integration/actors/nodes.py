"""Servers that share a store, as their actors see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports.cluster import Node, OneNode
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from tests.integration.actors.conftest import World


class FakeLease:
    """A lease that a test makes old."""

    fd: int | None = None

    def __init__(self) -> None:
        self.is_young = True

    def young(self) -> bool:
        return self.is_young

    def age(self) -> float:
        return 0.0


class FakeNode(OneNode):
    """What a server knows of the others: nothing, but it has a lease, and wakes what it takes over."""

    def __init__(self) -> None:
        super().__init__()
        self._lease = FakeLease()

    @property
    def me(self) -> Node:
        return Node(1)

    @property
    def lease(self) -> FakeLease:
        return self._lease


def all_gone(world: World, *ids: str) -> None:
    """Wait until none of these conversations is alive; none at all if none is named."""
    live, changed = world.supervisor._live, world.supervisor._changed
    with changed:
        assert changed.wait_for(lambda: not (live.keys() & ids if ids else live), PATIENCE), live
