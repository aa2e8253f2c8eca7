"""The cluster of servers that share a database: its nodes, their leases, and which of them has a conversation."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable

from msgspec import Struct

from actors.core.errors import Reason, Rejected

LEASE_EXPIRED = "database lease expired; retry"
"""The error text with which calls are refused after the lease has expired."""


class Lease:
    """A permission to act. This one never expires; where servers share a database, it does unless it is renewed.

    Safe to use from any thread; nothing here blocks.
    """

    @property
    def fd(self) -> int | None:
        """A descriptor of a file that contains the time at which running tools must end; None if there is no such time.

        The file has 8 bytes: nanoseconds of CLOCK_MONOTONIC as an integer.
        """
        return None

    def valid(self) -> bool:
        """Return whether tools may start and commands (except cancels) be handled; False once the lease has expired."""
        return True

    def age(self) -> float:
        """Return the seconds since the last renewal, or since the start if there was none; 0 if it never expires."""
        return 0.0


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


class Cluster:
    """The nodes of the cluster, as this node sees them. This one has a single node, which has its database to itself.

    Safe to call from any thread. A cluster of several nodes overrides everything below.
    """

    on_taken: Callable[[tuple[str, ...]], object]
    """Called with the ids of the conversations with unfinished work that this node has taken over from a dead node."""
    on_node_dead: Callable[[Node], object]
    """Called when another node was declared dead, so that nobody waits for its answers any longer."""
    on_lost: Callable[[], object]
    """Called when this node was declared dead or has lost its lease for good: all work must end at once."""

    def __init__(self, active: Callable[[], int] = lambda: 0) -> None:
        """Create a cluster of one node. `active` returns the number of conversations with an actor, on any thread."""
        self._active = active
        self.on_taken = self.on_node_dead = _ignore
        self.on_lost = _ignore

    @property
    def me(self) -> Node:
        """This node."""
        return Node(0, active=self._active())

    @property
    def lease(self) -> Lease:
        """The lease, which limits how long this node may act without hearing from the database."""
        return Lease()

    def start(self) -> None:
        """Begin to watch the other nodes. Call this once, after the callbacks are set.

        Blocks, for a limited time, until an earlier node at the same address is declared dead. Raises
        StoreUnavailableError.
        """

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes, including this one, as last seen. Does not block."""
        return (self.me,)

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """Return the living node that owns a conversation, according to this node's memory, without blocking.

        The owner may be this node. None: the owner is not in memory; `owner_of` asks the database.
        """
        return self.me

    def owner_of(self, conversation_id: str) -> Node | None:
        """Return the other living node that must handle calls about a conversation; None: this node may handle them.

        The returned node owns the conversation; or no node does, and the returned node has its workspace, which this
        node does not have. Blocks briefly if the answer is not in memory.

        Raises StoreUnavailableError; Rejected (WORKSPACE_OFFLINE) if no node owns the conversation and no living node
        has its workspace.
        """
        return None

    def place_of(self, directory: str) -> Node | None:
        """Return the other node that must serve requests about a directory; None: this node can.

        `directory` is the path as the client gave it. Blocks briefly. Raises StoreUnavailableError; Rejected
        (WORKSPACE_OFFLINE) if conversations are in the directory's workspace but no living node has that workspace.
        """
        return None

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """Return the other node that must create a fork of a conversation; None: this node can.

        Raises the same errors as `place_of`.
        """
        return None

    def label_of(self, directory: str) -> str:
        """Return the workspace label for a new conversation of this node in `directory`; "" if it is in no workspace.

        Does not block. Raises Rejected (WORKING_DIRECTORY_INVALID) if the directory is in a workspace that only other
        nodes have.
        """
        return ""

    def forget(self, conversation_id: str) -> None:
        """Drop the remembered owner of a conversation, because it turned out to be wrong. Does not block."""

    def retire(self) -> None:
        """Become the owner of no more conversations, neither to handle clients' calls nor because another node died.

        Blocks. Raises StoreUnavailableError.
        """

    def drain(self) -> None:
        """Release the ownership of all conversations of this node, whose actors must have ended, and leave the cluster.

        Blocks. Raises StoreUnavailableError; in that case the other nodes declare this node dead after a while.
        """

    def close(self) -> None:
        """End the threads and connections that this object uses. Idempotent. Blocks."""


def _ignore(*_: object) -> None:
    pass


EVERYTHING = "*"
"""The label of a node that shares its store with nobody, and therefore has every workspace."""


def directories_above(path: str) -> tuple[str, ...]:
    """Return a directory and all directories above it, the innermost first; () if the path is not absolute."""
    if not path.startswith("/"):
        return ()
    found = ["/" + posixpath.normpath(path).lstrip("/")]
    while found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return tuple(found)


def workspace_of(path: str, workspaces: Iterable[str]) -> str:
    """Return the innermost workspace that contains the path or equals it; "" if none does."""
    known = set(workspaces)
    return next((each for each in directories_above(path) if each in known), "")


def has(node: Node, workspace: str) -> bool:
    """Return whether a node can own conversations of this workspace; always True for "" (no workspace)."""
    return not workspace or bool(node.labels & {workspace, EVERYTHING})


def node_with(workspace: str, nodes: Iterable[Node]) -> Node:
    """Return the node with the fewest active conversations of those living `nodes` that have a workspace.

    Raises Rejected (WORKSPACE_OFFLINE) if none of the nodes has it, or if all that have it are about to stop.
    """
    found = [each for each in nodes if each.address and not each.draining and has(each, workspace)]
    if not found:
        raise Rejected(
            Reason.WORKSPACE_OFFLINE,
            f"no server that runs has the workspace {workspace}: start one that names it in cluster.workspaces",
        )
    return min(found, key=lambda node: (node.active, node.incarnation))


def label_of(path: str, me: Node, nodes: Iterable[Node]) -> str:
    """Return the workspace label of a new conversation on the node `me`; "" if the directory is in no workspace.

    Raises Rejected (WORKING_DIRECTORY_INVALID) if the directory is in a workspace that only other nodes have. This
    happens only if the client's path leads there through a symbolic link: otherwise the call would have been passed on
    to such a node.
    """
    label = workspace_of(path, (each for node in nodes for each in node.labels))
    if has(me, label):
        return label
    raise Rejected(
        Reason.WORKING_DIRECTORY_INVALID,
        f"working_directory: is in the workspace {label} of other servers: give its path there",
    )
