"""Owners of conversations in the in-memory store.

One server owns a family: a top-level conversation with all its sub-agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports import NotOwnerError, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.store.kept_conversation import KeptConversation
    from actors.ports import Commit


class KeptOwners:
    """The owners by family, and the servers that were declared dead. Not thread-safe: the store's lock guards it.

    `me` is None for a store with a single server: then everything is allowed, and nothing recorded.
    """

    def __init__(self) -> None:
        self._of: dict[str, Owner] = {}
        """The owner of each owned family, by the id of its top-level conversation."""
        self._dead: set[int] = set()

    def copy(self) -> KeptOwners:
        """Return a copy that can be changed independently."""
        other = KeptOwners()
        other._of, other._dead = self._of.copy(), self._dead.copy()
        return other

    def kill(self, incarnation: int) -> None:
        """Declare a server dead for ever, and release its families."""
        self._dead.add(incarnation)
        self.release(incarnation)

    def release(self, incarnation: int) -> None:
        """Release all families of a server."""
        self._of = {family: owner for family, owner in self._of.items() if owner.incarnation != incarnation}

    def forget(self, conversation_id: str) -> None:
        """Remove the owner of a family that is deleted."""
        self._of.pop(conversation_id, None)

    def owns(self, me: Owner | None, family: str) -> bool:
        """Return whether this server owns a family."""
        return me is None or self._of.get(family) == me

    def take(self, me: Owner | None, family: str) -> None:
        """Make this server the owner of a family. Raises NotOwnerError."""
        if me is not None:
            self.check(me, family, or_nobody=True)
            self._of[family] = me

    def check(self, me: Owner | None, family: str, *, or_nobody: bool = False) -> None:
        """Raise NotOwnerError if this server was declared dead or does not own the family.

        `or_nobody`: a family without an owner is fine, too.
        """
        if me is None:
            return
        owner = self._of.get(family)
        if me.incarnation in self._dead:
            raise NotOwnerError(f"{me.incarnation} is declared dead", owner=owner)
        if owner != me and not (or_nobody and owner is None):
            raise NotOwnerError(f"{family} is owned by {owner.incarnation if owner else 'nobody'}", owner=owner)


def family_of(kept: Mapping[str, KeptConversation], part: Commit) -> str:
    """Return the top-level conversation of the family of a commit."""
    return top_of(kept, part.record.parent_conversation_id or part.record.id)


def top_of(kept: Mapping[str, KeptConversation], conversation_id: str) -> str:
    """Return the top-level conversation of a family, following the parents of a sub-agent upwards."""
    while (found := kept.get(conversation_id)) and (parent := found.record.parent_conversation_id):
        conversation_id = parent
    return conversation_id
