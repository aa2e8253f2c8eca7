"""Watches the other nodes: notices which of them live and which died, and takes over conversations of dead nodes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from actors.adapters.store.postgres.nodes import node_statements as said
from actors.adapters.store.postgres.nodes.judge import Judge, NodeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.adapters.store.postgres.nodes.node_session import NodeSession
    from actors.adapters.store.postgres.nodes.take_over import TakeOver
    from actors.adapters.store.postgres.nodes.timing import Timing
    from actors.ports.cluster import Node

_log = logging.getLogger(__name__)


class NodeWatch:
    """Watches the other nodes. Used by one thread; only `nodes` and `is_alive` are safe to call from any thread."""

    def __init__(
        self,
        session: NodeSession,
        me: Node,
        timing: Timing,
        judge: Judge,
        take_over: TakeOver,
        *,
        on_dead: Callable[[Node], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_dead` is called for each node that has died or left, before its conversations are taken over."""
        self._session = session
        self._me = me.incarnation
        self._timing = timing
        self._judge = judge
        self._take_over = take_over
        self._on_dead = on_dead
        self._monotonic = monotonic
        self._living = {me.incarnation: me}
        self._abandoned_at: float | None = None

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that lived when `look` was last called, including this one."""
        return tuple(self._living.values())

    def is_alive(self, incarnation: int) -> bool:
        """Return whether a node lived when `look` was last called."""
        return incarnation in self._living

    def pause(self) -> float:
        """Return the seconds to wait before the next call of `look`."""
        return min(self._timing.confirm, self._timing.again) if self._judge.suspects else self._timing.again

    def look(self) -> bool:
        """Read the rows of all nodes, declare nodes dead if the judge allows that, and take over their conversations.

        Returns False if this node itself was declared dead. Raises StoreUnavailableError.
        """
        rows = {row.incarnation: row for row in (NodeRow(*each) for each in self._session.rows(said.SEEN))}
        mine = rows.pop(self._me, None)
        if mine is None or mine.dead:
            return False
        dead = {row.incarnation: row for row in rows.values() if row.dead or self._declared(row)}
        living = {self._me: mine.node} | {each: row.node for each, row in rows.items() if each not in dead}
        self._judge.keep(living)
        gone = [node for incarnation, node in self._living.items() if incarnation not in living]
        self._living = living
        for node in gone:
            self._on_dead(node)
        self._take(dead.values(), left=bool(gone))
        return True

    def _declared(self, row: NodeRow) -> bool:
        """Declare another node dead if the judge allows that; return whether this call has declared it dead."""
        statement = self._judge.verdict(row)
        if statement is None:
            return False
        values = {"me": self._me, "other": row.incarnation, "expires": row.expires, "locks": said.LOCKS}
        if not self._session.rows(statement, values):
            return False
        how = "its process is gone" if statement is said.GONE else "its lease is over"
        _log.warning("node %d (%s, %s) is declared dead: %s", row.incarnation, row.name, row.address, how)
        return True

    def _take(self, dead: Iterable[NodeRow], *, left: bool) -> None:
        for row in dead:
            self._take_over.from_dead(row.incarnation)
            if row.forgotten:
                self._session.rows(said.SWEEP, {"other": row.incarnation})
        now = self._monotonic()
        if left or self._abandoned_at is None or now - self._abandoned_at >= self._timing.ttl:
            self._take_over.abandoned()
            self._abandoned_at = now
