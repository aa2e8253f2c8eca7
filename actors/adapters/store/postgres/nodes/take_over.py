"""Takes over the conversations of dead nodes.

Living nodes take over interrupted conversations at once. They take over idle ones only when a client uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.nodes import node_statements as said

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.postgres.nodes.node_session import NodeSession

MAX_FAMILIES = 200
"""Maximum number of top-level conversations, with all their sub-agents, that one transaction takes over.

One transaction for each conversation would take seconds; one for all would lock rows for too long.
"""
MAX_RELEASED = 1_000


class TakeOver:
    """Takes over conversations for one node. Used by one thread.

    Each method raises StoreUnavailableError; conversations taken before the error stay taken.
    """

    def __init__(self, session: NodeSession, me: int, *, on_taken: Callable[[tuple[str, ...]], object]) -> None:
        """`on_taken` is called for each batch, with the ids of those conversations in it that have unfinished work."""
        self._session = session
        self._me = me
        self._on_taken = on_taken

    def from_dead(self, incarnation: int) -> None:
        """Take over the interrupted conversations of a dead node that no other node has taken.

        Afterwards its idle conversations have no owner. If this node is itself declared dead or is draining, it takes
        none.
        """
        self._take(said.TAKE, incarnation)
        release(self._session, incarnation)

    def abandoned(self) -> None:
        """Take over interrupted conversations that nobody owns."""
        self._take(said.TAKE_ABANDONED, None)

    def _take(self, statement: str, dead: int | None) -> None:
        values = {"me": self._me, "dead": dead, "most": MAX_FAMILIES}
        while taken := self._session.rows(statement, values):
            if unsettled := tuple(conversation for conversation, is_unsettled in taken if is_unsettled):
                self._on_taken(unsettled)


def release(session: NodeSession, owner: int) -> bool:
    """Remove the node `owner` as the owner of its conversations, except in rows that others have locked.

    Returns whether the node now owns no conversation. Raises StoreUnavailableError.
    """
    while session.rows(said.RELEASE, {"owner": owner, "most": MAX_RELEASED}):
        pass
    return not session.rows(said.OWNS, {"owner": owner})[0][0]
