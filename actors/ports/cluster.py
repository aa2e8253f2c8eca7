"""The cluster of servers that share a database: its nodes, their leases, and which of them has a conversation."""

from __future__ import annotations

import fcntl
import mmap
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from actors.core.errors import Reason, Rejected

OUT_OF_TOUCH = (
    "this server has not heard from its database for too long, so that it starts no tools and takes no commands until "
    "it does: try again"
)
"""The error text with which calls are refused after the lease has expired."""


class Lease(Protocol):
    """A permission to act that expires unless it is renewed. Safe to use from any thread; nothing here blocks."""

    @property
    def fd(self) -> int | None:
        """A descriptor of a file that contains the time at which running tools must end; None if there is no such time.

        The file has 8 bytes: nanoseconds of CLOCK_MONOTONIC as an integer.
        """
        ...

    def young(self) -> bool:
        """Return whether tools may start and commands (except cancels) be handled; False once the lease has expired."""
        ...

    def age(self) -> float:
        """Return the seconds since the last renewal, or since the start if there was none; 0 if it never expires."""
        ...


class Forever:
    """The lease of a server that shares its store with nobody: it never expires."""

    fd: int | None = None

    def young(self) -> bool:
        """Return True, because the lease never expires."""
        return True

    def age(self) -> float:
        """Return 0, because the lease is never renewed."""
        return 0.0


FOREVER = Forever()


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


NANOSECONDS = 1_000_000_000
_BYTES = 8
_F_SEAL_FUTURE_WRITE = 0x10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE
"""Seals of the memory file: its size is fixed, and only the mapping made before sealing can write to it."""


class LeaseClock:
    """Implements Lease with a file in memory. The lease counts as expired until it is renewed for the first time."""

    def __init__(self, seconds: float) -> None:
        """Create the file (needs Linux 5.1). Raises OSError.

        `seconds`: for how long after sending a heartbeat tools may start and run. The database counts the node as alive
        for longer than that after a heartbeat: the processes that run tools (tool hosts) need the difference to end
        the tools.
        """
        self._seconds = seconds
        self._lock = threading.Lock()  # guards the fields below
        self._until = 0
        self._renewed = time.monotonic_ns()
        self._fd: int | None = os.memfd_create("bedrock-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, _BYTES)
        try:
            self._map = mmap.mmap(self._fd, _BYTES)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self._fd)
            raise
        self._word = memoryview(self._map).cast("q")

    @property
    def fd(self) -> int | None:
        """The descriptor of the file in memory, through which nobody can write; None after `close`. See `Lease.fd`."""
        return self._fd

    def young(self) -> bool:
        """Return whether tools may start and commands (except cancels) be handled now. See `Lease.young`."""
        return time.monotonic_ns() < self._until

    def age(self) -> float:
        """Return the seconds since the last successful heartbeat was sent. See `Lease.age`."""
        return (time.monotonic_ns() - self._renewed) / NANOSECONDS

    def renew(self, sent: int) -> None:
        """Extend the lease for a heartbeat that the database has accepted.

        `sent`: when the heartbeat was sent, in nanoseconds of CLOCK_MONOTONIC (`time.monotonic_ns`), not when it was
        answered, because nobody knows how long the answer took. A heartbeat sent before the latest accepted one
        changes nothing.
        """
        with self._lock:
            until = sent + int(self._seconds * NANOSECONDS)
            if self._fd is not None and until > self._until:
                self._word[0] = self._until = until
                self._renewed = sent

    def close(self) -> None:
        """End the lease and free the file. Idempotent.

        The processes that run tools notice the end when they next read the file.
        """
        with self._lock:
            if self._fd is None:
                return
            self._word[0] = self._until = 0
            self._word.release()
            self._map.close()
            os.close(self._fd)
            self._fd = None
