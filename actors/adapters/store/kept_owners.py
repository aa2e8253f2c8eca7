"""Remembers, for the in-memory store, which server owns each conversation.

A top-level conversation and all its sub-agents (called a family) have the same owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports import NotOwnerError, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.store.kept_conversation import KeptConversation
    from actors.ports import Commit


class KeptOwners:
    """The servers that own conversations, and the servers that were declared dead. Not thread-safe.

    In the methods, `family` is the id of a top-level conversation, and stands for all its sub-agents, too. `me` is the
    calling server. It is None for a store with a single server: then everything is allowed, and no owner is recorded.
    `incarnation` is the number of a server.
    """

    def __init__(self) -> None:
        self._of: dict[str, Owner] = {}
        """The owning server by the id of a top-level conversation; conversations that nobody owns are missing."""
        self._dead: set[int] = set()

    def copy(self) -> KeptOwners:
        """Return a copy that can be changed independently."""
        other = KeptOwners()
        other._of, other._dead = self._of.copy(), self._dead.copy()
        return other

    def kill(self, incarnation: int) -> None:
        """Declare a server dead for ever: it loses its conversations, and can never own conversations again."""
        self._dead.add(incarnation)
        self.release(incarnation)

    def release(self, incarnation: int) -> None:
        """Remove a server as the owner of all its conversations."""
        self._of = {family: owner for family, owner in self._of.items() if owner.incarnation != incarnation}

    def forget(self, conversation_id: str) -> None:
        """Remove the owner of a deleted top-level conversation; do nothing for other conversations."""
        self._of.pop(conversation_id, None)

    def owns(self, me: Owner | None, family: str) -> bool:
        """Return whether the server `me` owns a top-level conversation; always True if `me` is None."""
        return me is None or self._of.get(family) == me

    def take(self, me: Owner | None, family: str) -> None:
        """Make the server `me` the owner of a top-level conversation and its sub-agents.

        Raises NotOwnerError if another server owns them, or if `me` was declared dead.
        """
        if me is not None:
            self.check(me, family, or_nobody=True)
            self._of[family] = me

    def check(self, me: Owner | None, family: str, *, or_nobody: bool = False) -> None:
        """Raise NotOwnerError if the server `me` was declared dead or does not own the top-level conversation.

        With `or_nobody`, a conversation that nobody owns is accepted, too.
        """
        if me is None:
            return
        owner = self._of.get(family)
        if me.incarnation in self._dead:
            raise NotOwnerError(f"{me.incarnation} is declared dead", owner=owner)
        if owner != me and not (or_nobody and owner is None):
            raise NotOwnerError(f"{family} is owned by {owner.incarnation if owner else 'nobody'}", owner=owner)


def family_of(kept: Mapping[str, KeptConversation], part: Commit) -> str:
    """Return the id of the top-level conversation to which the conversation of a commit belongs."""
    return top_of(kept, part.record.parent_conversation_id or part.record.id)


def top_of(kept: Mapping[str, KeptConversation], conversation_id: str) -> str:
    """Return the id of the top-level conversation above a sub-agent; for a top-level conversation its own id."""
    while (found := kept.get(conversation_id)) and (parent := found.record.parent_conversation_id):
        conversation_id = parent
    return conversation_id
