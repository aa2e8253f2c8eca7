"""Nodes: the servers that share one store, each of which owns some of its conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.ports.cluster.lease import FOREVER, Lease

if TYPE_CHECKING:
    from collections.abc import Callable


class Node(Struct, frozen=True):
    """A server, from its start to its end; one that starts anew is another node."""

    incarnation: int
    """Never used again; 0 for a server that has its store to itself."""
    name: str = ""
    address: str = ""
    """Where its own gRPC listener is reached by the others, "host:port"."""
    version: str = ""
    labels: frozenset[str] = frozenset()
    """The workspaces that it has: see `placement`."""
    draining: bool = False
    """Whether it gives its conversations up and takes no others."""
    active: int = 0
    """How many conversations it has an actor for, as it last said."""


class Cluster(Protocol):
    """The nodes, as this one knows them. Any thread."""

    on_taken: Callable[[tuple[str, ...]], object]
    """Called with unsettled conversations that this node has just taken over from a dead one. Set it before the start,
    as all of these; they are called on threads of the cluster."""
    on_node_dead: Callable[[Node], object]
    """Called when another node was declared dead: nothing more is to be expected from it."""
    on_lost: Callable[[], object]
    """Called when this node was declared dead, or has lost its lease for good: everything has to end at once."""

    @property
    def me(self) -> Node:
        """This node."""
        ...

    @property
    def lease(self) -> Lease:
        """For how long this node may act."""
        ...

    def start(self) -> None:
        """Begin to watch the other nodes, now that whoever wants to be told of them is known. Call once.

        Blocks for as long as the node that this one replaces is not given up. Raises StoreUnavailableError.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes with this one, as last seen; does not block."""
        ...

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """Return the living node, this one included, that owns a conversation as far as is remembered; does not block.

        None: ask `owner_of`.
        """
        ...

    def owner_of(self, conversation_id: str) -> Node | None:
        """Return the other living node that owns a conversation, or has to claim it since only some have its workspace.

        None: this node owns it, or may claim it. Blocks briefly, for what is not remembered. Raises
        StoreUnavailableError; Rejected (WORKSPACE_OFFLINE) if nobody owns it, and no living node has its workspace.
        """
        ...

    def place_of(self, directory: str) -> Node | None:
        """Return the other node that has to serve what is about a directory, as it was given; None: this one can.

        Blocks briefly. Raises StoreUnavailableError; Rejected (WORKSPACE_OFFLINE) if no living node has its workspace,
        which conversations are in.
        """
        ...

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """Return the other node that has to create a fork of a conversation; None: this one can. As `place_of`."""
        ...

    def label_of(self, directory: str) -> str:
        """Return the workspace of a new conversation of this node, in a directory that it has; "" for none.

        Does not block. Raises Rejected (WORKING_DIRECTORY_INVALID) if the workspace is one that only others have.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Forget who owns a conversation, because it was wrong; does not block."""
        ...

    def retire(self) -> None:
        """Take no conversations from now on, for no caller and from no dead node. Blocks.

        Raises StoreUnavailableError.
        """
        ...

    def drain(self) -> None:
        """Give up all conversations of this node, whose actors have ended, and leave. Blocks.

        Raises StoreUnavailableError: the others take this node for dead then, in time.
        """
        ...

    def close(self) -> None:
        """End all threads and connections of the cluster; idempotent. Blocks."""
        ...


class OneNode:
    """Implements Cluster for a server that has its store to itself."""

    def __init__(self, active: Callable[[], int] = lambda: 0) -> None:
        """`active` returns how many conversations have an actor here; any thread."""
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
        """A lease without end."""
        return FOREVER

    def start(self) -> None:
        """Do nothing: there are no others."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the only node."""
        return (self.me,)

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """Return this node, which owns everything."""
        return self.me

    def owner_of(self, conversation_id: str) -> Node | None:
        """Return None: this node owns everything."""
        return None

    def place_of(self, directory: str) -> Node | None:
        """Return None: there is no other."""
        return None

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """Return None: there is no other."""
        return None

    def label_of(self, directory: str) -> str:
        """Return "": all is on this node."""
        return ""

    def forget(self, conversation_id: str) -> None:
        """Do nothing."""

    def retire(self) -> None:
        """Do nothing: nobody else would take anything."""

    def drain(self) -> None:
        """Do nothing: nobody else would take anything."""

    def close(self) -> None:
        """Do nothing."""


def _ignore(*_: object) -> None:
    pass


ONE_NODE = OneNode()
"""The embedded server, which has its store to itself."""
