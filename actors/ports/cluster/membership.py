"""The port for cluster membership: the nodes (servers) that share one store, and which node owns a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.ports.cluster.lease import FOREVER, Lease

if TYPE_CHECKING:
    from collections.abc import Callable


class Node(Struct, frozen=True):
    """A server process, from its start to its end; after a restart it is another node."""

    incarnation: int
    """The number of the node, never used again; 0 for a server that shares its store with nobody."""
    name: str = ""
    address: str = ""
    """The address of the gRPC listener for other nodes, "host:port"."""
    version: str = ""
    labels: frozenset[str] = frozenset()
    """The paths of the workspaces (directories that only some nodes have) on this node; see the module `placement`."""
    draining: bool = False
    """Whether the node is about to stop: it releases the ownership of its conversations and takes no new ones."""
    active: int = 0
    """The number of conversations with an actor on this node, according to its last report."""


class Cluster(Protocol):
    """The nodes of the cluster, as this node sees them. Safe to call from any thread."""

    on_taken: Callable[[tuple[str, ...]], object]
    """Called with the ids of the conversations with unfinished work that this node has taken over from a dead node."""
    on_node_dead: Callable[[Node], object]
    """Called when another node was declared dead, so that nobody waits for its answers any longer."""
    on_lost: Callable[[], object]
    """Called when this node was declared dead or has lost its lease for good: all work must end at once."""

    @property
    def me(self) -> Node:
        """This node."""
        ...

    @property
    def lease(self) -> Lease:
        """The lease, which limits how long this node may act without hearing from the database."""
        ...

    def start(self) -> None:
        """Begin to watch the other nodes. Call this once, after the callbacks are set.

        Blocks, for a limited time, until an earlier node at the same address is declared dead. Raises
        StoreUnavailableError.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes, including this one, as last seen. Does not block."""
        ...

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """Return the living node that owns a conversation, according to this node's memory, without blocking.

        The owner may be this node. None: the owner is not in memory; `owner_of` asks the database.
        """
        ...

    def owner_of(self, conversation_id: str) -> Node | None:
        """Return the other living node that must handle calls about a conversation; None: this node may handle them.

        The returned node owns the conversation; or nobody owns it, and the returned node has its workspace, which this
        node does not have. Blocks briefly if the answer is not in memory.

        Raises StoreUnavailableError; Rejected (WORKSPACE_OFFLINE) if nobody owns the conversation and no living node
        has its workspace.
        """
        ...

    def place_of(self, directory: str) -> Node | None:
        """Return the other node that must serve requests about a directory; None: this node can.

        `directory` is the path as the client gave it. Blocks briefly. Raises StoreUnavailableError; Rejected
        (WORKSPACE_OFFLINE) if conversations are in the directory's workspace but no living node has that workspace.
        """
        ...

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """Return the other node that must create a fork of a conversation; None: this node can.

        Raises the same errors as `place_of`.
        """
        ...

    def label_of(self, directory: str) -> str:
        """Return the workspace label for a new conversation of this node in `directory`; "" if it is in no workspace.

        Does not block. Raises Rejected (WORKING_DIRECTORY_INVALID) if the directory is in a workspace that only other
        nodes have.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Drop the remembered owner of a conversation, because it turned out to be wrong. Does not block."""
        ...

    def retire(self) -> None:
        """Become the owner of no more conversations, neither to handle clients' calls nor because another node died.

        Blocks. Raises StoreUnavailableError.
        """
        ...

    def drain(self) -> None:
        """Release the ownership of all conversations of this node, whose actors must have ended, and leave the cluster.

        Blocks. Raises StoreUnavailableError; in that case the other nodes declare this node dead after a while.
        """
        ...

    def close(self) -> None:
        """End the threads and connections that this object uses. Idempotent. Blocks."""
        ...


class OneNode:
    """Implements Cluster for a server that shares its store with nobody."""

    def __init__(self, active: Callable[[], int] = lambda: 0) -> None:
        """Create the only node.

        `active` returns how many conversations have an actor; it is safe to call from any thread.
        """
        self._active = active
        self.on_taken: Callable[[tuple[str, ...]], object] = _ignore
        self.on_node_dead: Callable[[Node], object] = _ignore
        self.on_lost: Callable[[], object] = _ignore

    @property
    def me(self) -> Node:
        """The only node."""
        return Node(0, active=self._active())

    @property
    def lease(self) -> Lease:
        """A lease that never expires."""
        return FOREVER

    def start(self) -> None:
        """Do nothing, because there are no other nodes."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the only node."""
        return (self.me,)

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """Return this node, which owns everything."""
        return self.me

    def owner_of(self, conversation_id: str) -> Node | None:
        """Return None, because this node owns everything."""
        return None

    def place_of(self, directory: str) -> Node | None:
        """Return None, because there is no other node."""
        return None

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """Return None, because there is no other node."""
        return None

    def label_of(self, directory: str) -> str:
        """Return "" (no workspace), because this node has all directories."""
        return ""

    def forget(self, conversation_id: str) -> None:
        """Do nothing, because this node owns everything."""

    def retire(self) -> None:
        """Do nothing, because there are no other nodes."""

    def drain(self) -> None:
        """Do nothing, because there are no other nodes."""

    def close(self) -> None:
        """Do nothing, because there are no threads or connections."""


def _ignore(*_: object) -> None:
    pass


ONE_NODE = OneNode()
"""The cluster of a server that shares its store with nobody."""
