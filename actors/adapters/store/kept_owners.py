"""Who owns the conversations of an in-memory store: one server for each family of a conversation and its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports import NotOwnerError, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.store.kept_conversation import KeptConversation
    from actors.ports import Commit


class KeptOwners:
    """The owners by family, and who is declared dead. Not thread-safe: the store's lock guards it.

    `me` is None for a store that one server has to itself: everything is allowed then, and nothing noted.
    """

    def __init__(self) -> None:
        self._of: dict[str, Owner] = {}
        """The owner of each family that has one, by the conversation at its top."""
        self._dead: set[int] = set()

    def copy(self) -> KeptOwners:
        """Return what can be changed without this."""
        other = KeptOwners()
        other._of, other._dead = self._of.copy(), self._dead.copy()
        return other

    def kill(self, incarnation: int) -> None:
        """Declare a server dead, for ever, and free what it owns."""
        self._dead.add(incarnation)
        self.release(incarnation)

    def release(self, incarnation: int) -> None:
        """Free what a server owns."""
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
        """Raise NotOwnerError unless this server lives and owns a family, or nobody does and that is enough."""
        if me is None:
            return
        owner = self._of.get(family)
        if me.incarnation in self._dead:
            raise NotOwnerError(f"{me.incarnation} is declared dead", owner=owner)
        if owner != me and not (or_nobody and owner is None):
            raise NotOwnerError(f"{family} is owned by {owner.incarnation if owner else 'nobody'}", owner=owner)


def family_of(kept: Mapping[str, KeptConversation], part: Commit) -> str:
    """Return the conversation at the top of the family that a commit is about."""
    return top_of(kept, part.record.parent_conversation_id or part.record.id)


def top_of(kept: Mapping[str, KeptConversation], conversation_id: str) -> str:
    """Return the conversation at the top of a family; that of a sub-agent's parent, its parent's parent, and so on."""
    while (found := kept.get(conversation_id)) and (parent := found.record.parent_conversation_id):
        conversation_id = parent
    return conversation_id
