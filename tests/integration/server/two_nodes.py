"""Two servers over one store, in this process, and what they believe about who owns what."""

from contextlib import ExitStack
from typing import Any

from actors.core.errors import Rejected
from actors.ports import Store, StoreUnavailableError
from actors.ports.cluster import Cluster, Node
from actors.ports.records import CommandOrigin
from server.cluster.router import NodeAccess
from tests.integration.server.grpc_harness import GrpcHarness, Loop
from tests.support.stores import SharedDatabase, new_store

NODES_TOKEN = "n" * 43


class FakeCluster(Cluster):
    """Believes what the test says (ports.Cluster)."""

    def __init__(self, incarnation: int) -> None:
        super().__init__()
        self.node = Node(incarnation)
        self.owners: dict[str, Node] = {}
        """Where a conversation is, if not here."""
        self.remembered: dict[str, Node] = {}
        """Where a conversation is, as far as that needs no look."""
        self.places: dict[str, Node | Rejected] = {}
        """Where what is about a directory, or a fork of a conversation, is served, if not here; or why nowhere."""
        self.others: tuple[Node, ...] = ()
        """The other living nodes."""
        self.deaf = False
        """Whether the store cannot be asked."""
        self.forgets = True
        self.forgotten: list[str] = []

    def nodes(self) -> tuple[Node, ...]:
        return (self.me, *self.others)

    @property
    def me(self) -> Node:
        return self.node

    def remembered_owner(self, conversation_id: str) -> Node | None:
        return self.remembered.get(conversation_id)

    def owner_of(self, conversation_id: str) -> Node | None:
        if self.deaf:
            raise StoreUnavailableError("the database is gone")
        return self.owners.get(conversation_id)

    def place_of(self, directory: str) -> Node | None:
        found = self.places.get(directory)
        if isinstance(found, Rejected):
            raise found
        return found

    def place_of_fork(self, conversation_id: str) -> Node | None:
        return self.place_of(conversation_id)

    def forget(self, conversation_id: str) -> None:
        self.forgotten.append(conversation_id)
        self.remembered.pop(conversation_id, None)
        if self.forgets:
            self.owners.pop(conversation_id, None)


class RunningNode:
    """A server, with the store and the cluster as it sees them."""

    def __init__(
        self, loop: Loop, store: Store, incarnation: int, token: str, opened: ExitStack, **settings: Any
    ) -> None:
        self.cluster = FakeCluster(incarnation)
        self.store = store
        self.woken: list[str] = []
        self.cluster.on_taken = self.woken.extend
        access = NodeAccess(token=token)
        self.harness = GrpcHarness(loop, store=self.store, cluster=self.cluster, access=access, **settings)
        opened.callback(self.harness.close)
        self.cluster.node = Node(incarnation, f"node-{incarnation}", self.harness.address)
        self.stub = self.harness.stub

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The commands that reached this node's conversations."""
        return [(id_, type(command).__name__) for id_, command, _ in self.harness.conversations.asked]

    @property
    def origins(self) -> list[CommandOrigin | None]:
        """Who sent them."""
        return self.harness.conversations.origins

    def forget_all(self) -> None:
        conversations = self.harness.conversations
        for each in (conversations.asked, conversations.answers, conversations.held, conversations.origins):
            each.clear()
        self.cluster.owners.clear()
        self.cluster.remembered.clear()
        self.cluster.places.clear()
        self.cluster.forgotten.clear()
        self.cluster.forgets, self.cluster.deaf = True, False
        self.woken.clear()


class TwoNodes:
    """Node `a`, which the tests call, and node `b`, which owns what `owned_by_b` names."""

    def __init__(
        self,
        loop: Loop,
        tokens: tuple[str, str] = (NODES_TOKEN, NODES_TOKEN),
        shared: SharedDatabase | None = None,
        **settings: Any,
    ) -> None:
        """Without `shared`, both use one store, which knows no owners."""
        self._opened = ExitStack()
        stores: tuple[Store, Store] = (shared.node(1), shared.node(2)) if shared else (one := new_store(), one)
        self.data = stores[0]
        self.a, self.b = (
            RunningNode(loop, store, number, token, self._opened, **settings)
            for number, (token, store) in enumerate(zip(tokens, stores, strict=True), 1)
        )
        self.a.cluster.others, self.b.cluster.others = (self.b.cluster.me,), (self.a.cluster.me,)

    def owned_by_b(self, *conversations: str) -> None:
        """Make `a` believe that `b` owns them."""
        self.a.cluster.owners.update(dict.fromkeys(conversations, self.b.cluster.me))

    def begin(self) -> None:
        """Forget what was before: conversations stay."""
        self.a.forget_all()
        self.b.forget_all()

    def close(self) -> None:
        self._opened.close()
