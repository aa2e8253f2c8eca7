"""Resolves resource names to conversations of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.system_clock import has_form_of_id
from server.auth.authentication import caller, subject
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError

if TYPE_CHECKING:
    from actors.ports import ConversationReader, ConversationRecord
    from server.queries.read_pool import ReadPool

OWNERS = 10_000
"""How many owners of conversations are cached. A cached owner saves a read for each command."""


class NameResolver:
    """Resolves resource names, with a cache of conversations' ids and owners. Use in the event loop only."""

    def __init__(self, store: ConversationReader, reads: ReadPool) -> None:
        self._store = store
        self._reads = reads
        self._owners: dict[str, str] = {}

    async def record(self, name: str) -> ConversationRecord:
        """Read the row of a conversation of the caller.

        Raises ConversationNotFoundError if there is none, or if the conversation belongs to another principal.
        """
        record = await self._reads(self._find, names.parse_conversation(name) or "", caller.get().principal)
        if record is None or record.principal != caller.get().principal:
            raise ConversationNotFoundError(name)
        self._remember(record)
        subject.set(record.id)
        return record

    async def identify(self, name: str) -> str:
        """Return the id of a conversation of the caller. Raises ConversationNotFoundError.

        If the conversation was deleted since it was cached, its id is returned all the same; the actor checks that.
        """
        key = names.parse_conversation(name) or ""
        if self._owners.get(key) == caller.get().principal:
            subject.set(key)
            return key
        return (await self.record(name)).id

    async def locate(self, name: str) -> str:
        """Return the id of a conversation of the caller, even if its row is damaged.

        Raises ConversationNotFoundError.
        """
        conversation_id = await self._reads(self._locate, names.parse_conversation(name) or "", caller.get().principal)
        if conversation_id is None:
            raise ConversationNotFoundError(name)
        return conversation_id

    def _locate(self, key: str, principal: str) -> str | None:
        """Return the id of a conversation of `principal`, given by id or slug; None if there is none. Blocks."""
        slug = "" if has_form_of_id(key) else key
        for conversation_id in (key, self._store.find_slug(principal, slug) if slug else None):
            if conversation_id and self._store.owner(conversation_id) == principal:
                return conversation_id
        return None

    def _find(self, key: str, principal: str) -> ConversationRecord | None:
        """Return the row of a conversation, given by id, else by a slug of `principal`; None if there is none. Blocks.

        The row may belong to another principal. No slug has the form of an id.
        """
        found = self._store.load(key)
        if found is not None or has_form_of_id(key):
            return found
        conversation_id = self._store.find_slug(principal, key)
        return None if conversation_id is None else self._store.load(conversation_id)

    def _remember(self, record: ConversationRecord) -> None:
        """Cache the id and the owner of a conversation, which never change.

        The oldest entry is dropped if there are too many.
        """
        self._owners[record.id] = record.principal
        if len(self._owners) > OWNERS:
            del self._owners[next(iter(self._owners))]
