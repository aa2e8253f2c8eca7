"""Keeps the owners of conversations in the in-memory store.

A top-level conversation and all its sub-agents form a family, which is owned by one server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports import NotOwnerError, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.store.kept_conversation import KeptConversation
    from actors.ports import Commit


class KeptOwners:
    """The owners of families, and the servers that were declared dead. Not thread-safe: the store's lock guards it.

    Methods take the calling server as `me`. It is None for a store with a single server: then everything is allowed,
    and no owner is recorded.
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
        """Remove the owner of a deleted top-level conversation; do nothing for other conversations."""
        self._of.pop(conversation_id, None)

    def owns(self, me: Owner | None, family: str) -> bool:
        """Return whether the server `me` owns a family; always True for None."""
        return me is None or self._of.get(family) == me

    def take(self, me: Owner | None, family: str) -> None:
        """Make the server `me` the owner of a family.

        Raises NotOwnerError if another server owns the family, or if `me` was declared dead.
        """
        if me is not None:
            self.check(me, family, or_nobody=True)
            self._of[family] = me

    def check(self, me: Owner | None, family: str, *, or_nobody: bool = False) -> None:
        """Raise NotOwnerError if the server `me` was declared dead or does not own the family.

        With `or_nobody`, a family without an owner is accepted, too.
        """
        if me is None:
            return
        owner = self._of.get(family)
        if me.incarnation in self._dead:
            raise NotOwnerError(f"{me.incarnation} is declared dead", owner=owner)
        if owner != me and not (or_nobody and owner is None):
            raise NotOwnerError(f"{family} is owned by {owner.incarnation if owner else 'nobody'}", owner=owner)


def family_of(kept: Mapping[str, KeptConversation], part: Commit) -> str:
    """Return the id of the top-level conversation of the family to which a commit belongs."""
    return top_of(kept, part.record.parent_conversation_id or part.record.id)


def top_of(kept: Mapping[str, KeptConversation], conversation_id: str) -> str:
    """Return the id of the top-level conversation above a sub-agent; a top-level conversation's own id."""
    while (found := kept.get(conversation_id)) and (parent := found.record.parent_conversation_id):
        conversation_id = parent
    return conversation_id
