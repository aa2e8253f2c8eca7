"""Servers that share a store, as their actors see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports.cluster import Node, OneNode

if TYPE_CHECKING:
    from tests.integration.actors.conftest import World

PATIENCE = 60.0


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


def all_gone(world: World) -> None:
    """Wait until no conversation is alive."""
    with world.supervisor._changed:
        assert world.supervisor._changed.wait_for(lambda: not world.supervisor._live, PATIENCE), world.supervisor._live


def all_gone_of(world: World, *ids: str) -> None:
    """Wait until none of these is alive."""
    with world.supervisor._changed:
        assert world.supervisor._changed.wait_for(lambda: not set(ids) & world.supervisor._live.keys(), PATIENCE)
