"""The PostgreSQL implementation of the port Cluster.

Makes this server a member of the cluster of servers that share a database, and finds the server that owns a
conversation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from actors.adapters.store.postgres.engine import database_outages
from actors.adapters.store.postgres.nodes import node_statements as sql
from actors.adapters.store.postgres.nodes.heartbeat import Heartbeat, LeaseClock, Timing
from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.adapters.store.postgres.nodes.node_watch import FailureDetector, NodeMonitor, NodeRow, node_of, release
from actors.common.machine import OutageLog
from actors.core.errors import Rejected
from actors.ports import StoreError, StoreUnavailableError
from actors.ports.cluster import (
    EVERYTHING,
    Cluster,
    Lease,
    Node,
    directories_above,
    has,
    label_of,
    node_with,
    workspace_of,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Maximum seconds that a starting node waits for an earlier node at the same address to be declared dead.
PREDECESSOR_SECONDS = 5.0
# How many seconds a leaving node waits for rows that other nodes have locked, and the pause between two attempts.
#
# If a row is still locked then, other nodes can take over its conversation only after this node's lease has expired.
RELEASE_SECONDS, RELEASE_PAUSE = 2.0, 0.02
MAX_OWNERS = 20_000  # maximum number of conversations whose owners are remembered, in about 3 MB


class PostgresCluster(Cluster):
    """Implements Cluster. A thread with its own database session sends heartbeats; another one watches nodes."""

    def __init__(
        self,
        url: str,
        new: Node,
        timing: Timing = Timing(),  # noqa: B008 -- immutable
        *,
        active: Callable[[], int] = lambda: 0,
        outages: OutageLog | None = None,
    ) -> None:
        """Join the cluster as `new`, and start the thread that renews the lease. The tables must already exist.

        `active` is called on another thread. Raises StoreUnavailableError or StoreUnusableError.
        """
        super().__init__(active)
        self._timing = timing
        self._ended = threading.Event()
        self._guard = threading.Lock()  # guards the fields below
        self._owners: OrderedDict[str, Node] = OrderedDict()
        self._lost = self._told = self._retired = False
        self._threads: list[threading.Thread] = []
        self._lease = LeaseClock(timing.lease)
        outages = outages or database_outages()
        self._beats = NodeSession(url, "bedrock heartbeat", seconds=timing.statement, outages=outages)
        self._looks = NodeSession(url, "bedrock nodes", seconds=timing.statement, outages=outages)
        self._heartbeat = Heartbeat(self._beats, self._lease, timing, active=active)
        try:
            self._me = self._heartbeat.join(new)
        except StoreError:
            self.close()
            raise
        detector = FailureDetector(self._me, timing, steady_for=self._heartbeat.steady_for)
        self._watch = NodeMonitor(self._looks, self._me, timing, detector, on_dead=self._dead, on_taken=self._taken)
        self._threads = [
            threading.Thread(target=self._repeat, args=(step, first), name=f"node-{name}", daemon=True)
            for step, first, name in ((self._beat, timing.beat, "heartbeat"), (self._look, 0.0, "watch"))
        ]
        self._threads[0].start()

    def start(self) -> None:
        """Begin to watch the other nodes. Call this once this node listens and the callbacks are set.

        If there was an earlier node at this address, blocks until that node was declared dead and its conversations
        were passed to `on_taken`, but at most for PREDECESSOR_SECONDS. Raises StoreUnavailableError.
        """
        self._heartbeat.listening = True
        self._looks.rows(sql.LISTENS, {"me": self._me.incarnation, "session": self._beats.direct})
        self._tell_lost()
        if self._lost:
            return
        self._threads[1].start()
        until = time.monotonic() + PREDECESSOR_SECONDS
        while time.monotonic() < until and not self._watch.succeeded:
            self._ended.wait(self._timing.confirm / 4)

    @property
    def me(self) -> Node:
        return self._me

    @property
    def lease(self) -> Lease:
        """The lease as this node sees it; it expires somewhat earlier than the lease in the database."""
        return self._lease

    def nodes(self) -> tuple[Node, ...]:
        return self._watch.nodes()

    def others(self) -> tuple[Node, ...]:
        """The other living nodes, read from the database. Blocks. Raises StoreUnavailableError."""
        return tuple(row.node for row in self._living() if row.incarnation != self._me.incarnation)

    def other_leases(self, seconds: float) -> tuple[tuple[str, float], ...]:
        """The names and lease lengths of the living nodes whose lease length is not `seconds`.

        Blocks. Raises StoreUnavailableError.
        """
        others = (row for row in self._living() if row.address != self._me.address and (row.held or not row.session))
        return tuple((row.name, row.ttl) for row in others if row.ttl != seconds)

    def _living(self) -> list[NodeRow]:
        found = (NodeRow(*each) for each in self._looks.rows(sql.SEEN))
        return [row for row in found if not (row.dead or row.over)]

    def remembered_owner(self, conversation_id: str) -> Node | None:
        with self._guard:
            owner = self._owners.get(conversation_id)
            if owner is None:
                return None
            if not self._watch.is_alive(owner.incarnation):
                del self._owners[conversation_id]
                return None
            self._owners.move_to_end(conversation_id)
            return owner

    def owner_of(self, conversation_id: str) -> Node | None:
        owner = self.remembered_owner(conversation_id)
        if owner is None:
            label, owner = self._stored_owner(conversation_id)
            if owner is None:
                return self._with(label)  # no owner is remembered, because this node may take the conversation over
            with self._guard:
                self._owners[conversation_id] = owner
                if len(self._owners) > MAX_OWNERS:
                    self._owners.popitem(last=False)
        return None if owner.incarnation == self._me.incarnation else owner

    def place_of(self, directory: str) -> Node | None:
        above = directories_above(directory)
        if EVERYTHING in self._me.labels:
            return None
        if not above:
            return self._with("")
        stored = (label for (label,) in self._looks.rows(sql.WORKSPACE, {"above": list(above)}))
        offered = (label for node in self.nodes() for label in node.labels)
        return self._with(workspace_of(directory, (*stored, *offered)))

    def place_of_fork(self, conversation_id: str) -> Node | None:
        label, _ = self._stored_owner(conversation_id)
        return self._with(label)

    def label_of(self, directory: str) -> str:
        return label_of(directory, self._me, self.nodes())

    def forget(self, conversation_id: str) -> None:
        with self._guard:
            self._owners.pop(conversation_id, None)

    def retire(self) -> None:
        self._retired = True
        self._looks.rows(sql.RETIRE, {"me": self._me.incarnation})

    def drain(self) -> None:
        self.retire()
        self._release_all()
        self._end()
        self._beats.rows(sql.LEAVE, {"me": self._me.incarnation})

    def _release_all(self) -> None:
        until = time.monotonic() + RELEASE_SECONDS
        while not release(self._looks, self._me.incarnation):
            if time.monotonic() >= until:
                raise StoreUnavailableError("some conversations are still being written and cannot be released")
            self._ended.wait(RELEASE_PAUSE)

    def close(self) -> None:
        self._end()
        self._beats.close()
        self._looks.close()
        self._lease.close()

    def _stored_owner(self, conversation_id: str) -> tuple[str, Node | None]:
        """A conversation's workspace label ("" for none) and owner (None if no living node owns it)."""
        found = self._looks.rows(sql.OWNER, {"conversation": conversation_id})
        label, *owner = found[0] if found else ("", None)
        return label, None if owner[0] is None else node_of(owner)

    def _with(self, workspace: str) -> Node | None:
        """The node that must serve a workspace, at worst a retired one; None if it is this node.

        Raises Rejected (WORKSPACE_OFFLINE).
        """
        others = (each for each in self.nodes() if each.incarnation != self._me.incarnation)
        if not has(self._me, workspace):
            return node_with(workspace, others)
        if self._retired:
            with suppress(Rejected):
                return node_with(workspace, others)
        return None

    def _end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(4 * self._timing.statement)

    def _repeat(self, step: Callable[[], float | None], pause: float | None) -> None:
        """Call `step` repeatedly, each time after the pause that it returned last.

        Ends when `step` returns None, which means that this node was declared dead, or when the cluster is closed.
        """
        while not self._ended.wait(pause):
            try:
                pause = step()
            except StoreError:  # already logged by the session
                pause = self._timing.again
            if pause is None:
                self._is_lost()
                return

    def _beat(self) -> float | None:
        return self._timing.beat if self._heartbeat.beat() else None

    def _look(self) -> float | None:
        return self._watch.pause() if self._watch.look() else None

    def _is_lost(self) -> None:
        with self._guard:
            first, self._lost = not self._lost, True
        if first:
            self._lease.close()
            self._ended.set()
            _log.critical("this node (%d) was declared dead and no longer owns any conversations", self._me.incarnation)
            self._tell_lost()

    def _tell_lost(self) -> None:
        """Call `on_lost` once, if this node was declared dead and has started."""
        with self._guard:
            tell = self._lost and not self._told and self._heartbeat.listening
            self._told = self._told or tell
        if tell:
            self.on_lost()

    def _taken(self, conversations: tuple[str, ...]) -> None:
        _log.warning("took over %d conversations from a dead node; their runs were interrupted", len(conversations))
        self._tell(self.on_taken, conversations)

    def _dead(self, node: Node) -> None:
        self._tell(self.on_node_dead, node)

    def _tell(self, whom: Callable[[T], object], what: T) -> None:
        try:
            whom(what)
        except Exception:  # noqa: BLE001 -- an error in a callback must not end the watching of other nodes
            _log.exception("failed to handle a change in the cluster; still watching the other nodes")
