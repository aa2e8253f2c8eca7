"""What dead nodes owned goes to the living: what was interrupted at once, what is at rest when it is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.nodes import node_statements as said

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.postgres.nodes.node_session import NodeSession

MAX_FAMILIES = 200
"""Families taken in one transaction: one by one took seconds, and all at once would hold their rows for as long."""
MAX_RELEASED = 1_000


class TakeOver:
    """Takes for one node. One thread; each method raises StoreUnavailableError, and what was done by then is done."""

    def __init__(self, session: NodeSession, me: int, *, on_taken: Callable[[tuple[str, ...]], object]) -> None:
        """`on_taken` is called with the unsettled conversations of each batch that is this node's from now on."""
        self._session = session
        self._me = me
        self._on_taken = on_taken

    def from_dead(self, incarnation: int) -> None:
        """Take what was interrupted, as other nodes do at the same time, and let the rest be owned by nobody.

        Nothing is taken, only let go, if this node is itself declared dead or gives up what it has.
        """
        self._take(said.TAKE, incarnation)
        release(self._session, incarnation)

    def abandoned(self) -> None:
        """Take what nobody owns although it was interrupted."""
        self._take(said.TAKE_ABANDONED, None)

    def _take(self, statement: str, dead: int | None) -> None:
        values = {"me": self._me, "dead": dead, "most": MAX_FAMILIES}
        while taken := self._session.rows(statement, values):
            if unsettled := tuple(conversation for conversation, is_unsettled in taken if is_unsettled):
                self._on_taken(unsettled)


def release(session: NodeSession, owner: int) -> bool:
    """Let all that a node owns be owned by nobody; returns whether nothing is left, which others had locked.

    Raises StoreUnavailableError.
    """
    while session.rows(said.RELEASE, {"owner": owner, "most": MAX_RELEASED}):
        pass
    return not session.rows(said.OWNS, {"owner": owner})[0][0]
