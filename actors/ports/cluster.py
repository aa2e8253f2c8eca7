"""The cluster of servers that share a database: its nodes, their leases, and which of them owns a conversation."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable

from msgspec import Struct

from actors.core.errors import Reason, Rejected

LEASE_EXPIRED = "database lease expired; retry"


class Lease:
    """A node's permission to act. It never expires; servers that share a database use a subclass that must be renewed.

    Thread-safe; never blocks.
    """

    @property
    def fd(self) -> int | None:
        """A file that says when running tools must end (8 bytes, nanoseconds of CLOCK_MONOTONIC); None: never."""
        return None

    def valid(self) -> bool:
        """Whether tools may start and commands (except cancels) be handled; False once the lease has expired."""
        return True

    def age(self) -> float:
        """Seconds since the last renewal, or since the start if there was none; 0 if the lease never expires."""
        return 0.0


class Node(Struct, frozen=True):
    """A server process, from its start to its end; a restarted server is a new node."""

    incarnation: int
    """The number of the node, which is never reused; 0 for a server that does not share its store."""
    name: str = ""
    address: str = ""
    version: str = ""
    labels: frozenset[str] = frozenset()
    """The workspaces (directories that only some nodes have) on this node."""
    draining: bool = False
    """Whether the node is about to stop: it releases the ownership of its conversations and takes no new ones."""
    active: int = 0
    """The number of conversations with an actor on this node, according to its last report."""


class Cluster:
    """The nodes of the cluster, as seen by this node. This class is for a single node with a database to itself.

    The subclass for several nodes overrides everything below. Thread-safe.
    """

    on_taken: Callable[[tuple[str, ...]], object]
    """Called with the ids of unfinished conversations that this node has taken over from a dead node."""
    on_node_dead: Callable[[Node], object]
    """Called when another node was declared dead, so that no call waits for its answers any longer."""
    on_lost: Callable[[], object]
    """Called when this node was declared dead or has lost its lease for good: all work must end at once."""

    def __init__(self, active: Callable[[], int] = lambda: 0) -> None:
        """Create a cluster of one node. `active`, which is thread-safe, counts the conversations with an actor."""
        self._active = active
        self.on_taken = self.on_node_dead = _ignore
        self.on_lost = _ignore

    @property
    def me(self) -> Node:
        return Node(0, active=self._active())

    @property
    def lease(self) -> Lease:
        """The lease, which limits how long this node may act without hearing from the database."""
        return Lease()

    def start(self) -> None:
        """Begin to watch the other nodes. Call this once, after setting the callbacks. Raises StoreUnavailableError.

        Blocks, for a limited time, until an earlier node at the same address is declared dead.
        """

    def nodes(self) -> tuple[Node, ...]:
        return (self.me,)

    def remembered_owner(self, conversation_id: str) -> Node | None:
        """The living node (possibly this one) remembered as a conversation's owner; None if unknown. Does not block."""
        return self.me

    def owner_of(self, conversation_id: str) -> Node | None:
        """The other living node that must handle calls about a conversation; None if this node may. Blocks briefly.

        The other node owns the conversation; if there is no owner, the other node has its workspace, which this node
        lacks. Raises StoreUnavailableError, or Rejected (WORKSPACE_OFFLINE) if no living node owns or could own it.
        """
        return None

    def place_of(self, directory: str) -> Node | None:
        """The other node that must serve requests about a directory; None if this one may.

        `directory` is the path as the client wrote it. Blocks briefly. Raises StoreUnavailableError, or Rejected
        (WORKSPACE_OFFLINE) if no living node has the workspace of conversations there.
        """
        return None

    def place_of_fork(self, conversation_id: str) -> Node | None:
        """The other node that must create a fork of a conversation; None if this one may. Raises like `place_of`."""
        return None

    def label_of(self, directory: str) -> str:
        """The workspace label for a conversation in `directory`; "" for none. Does not block.

        Raises Rejected (WORKING_DIRECTORY_INVALID) if only other nodes have that workspace.
        """
        return ""

    def forget(self, conversation_id: str) -> None:
        """Drop the remembered owner of a conversation, because it turned out to be wrong. Does not block."""

    def retire(self) -> None:
        """Stop taking ownership of conversations. Blocks. Raises StoreUnavailableError."""

    def drain(self) -> None:
        """Release all conversations, whose actors must have ended, and leave the cluster. Blocks.

        Raises StoreUnavailableError, in which case the other nodes declare this one dead after a while.
        """

    def close(self) -> None: ...


def _ignore(*_: object) -> None:
    pass


# The label of a node that does not share its store, and therefore has every workspace.
EVERYTHING = "*"


def directories_above(path: str) -> tuple[str, ...]:
    """A directory and all directories above it, innermost first; () if the path is not absolute."""
    if not path.startswith("/"):
        return ()
    found = ["/" + posixpath.normpath(path).lstrip("/")]
    while found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return tuple(found)


def workspace_of(path: str, workspaces: Iterable[str]) -> str:
    """The innermost workspace that contains the path or equals it; "" if none does."""
    known = set(workspaces)
    return next((each for each in directories_above(path) if each in known), "")


def has(node: Node, workspace: str) -> bool:
    """Whether a node can own conversations in this workspace; always True for "" (no workspace)."""
    return not workspace or bool(node.labels & {workspace, EVERYTHING})


def node_with(workspace: str, nodes: Iterable[Node]) -> Node:
    """The live node with that workspace and the fewest active conversations. Raises Rejected (WORKSPACE_OFFLINE)."""
    found = [each for each in nodes if each.address and not each.draining and has(each, workspace)]
    if not found:
        raise Rejected(
            Reason.WORKSPACE_OFFLINE,
            f"no running node has workspace {workspace}: start one that lists it in cluster.workspaces",
        )
    return min(found, key=lambda node: (node.active, node.incarnation))


def label_of(path: str, me: Node, nodes: Iterable[Node]) -> str:
    """The workspace label of a new conversation on the node `me`; "" if the directory is in no workspace.

    Raises Rejected (WORKING_DIRECTORY_INVALID) if only other nodes have the workspace. The client's path then leads
    there through a symbolic link; otherwise, the call would have been passed on to one of those nodes.
    """
    label = workspace_of(path, (each for node in nodes for each in node.labels))
    if has(me, label):
        return label
    raise Rejected(
        Reason.WORKING_DIRECTORY_INVALID,
        f"working_directory: use the real path; a symbolic link leads into workspace {label} of other nodes",
    )
