"""Servers that share a store, as their actors see it."""

from actors.ports.cluster import Cluster, Lease, Node
from tests.integration.actors.conftest import World
from tests.support.patience import PATIENCE


class FakeLease(Lease):
    """A lease that a test lets expire."""

    def __init__(self) -> None:
        self.is_valid = True

    def valid(self) -> bool:
        return self.is_valid


class FakeNode(Cluster):
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
