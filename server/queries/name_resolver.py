"""Finds the caller's conversations by resource names such as `conversations/abc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.services import has_form_of_id
from server.auth.authentication import caller, subject
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError

if TYPE_CHECKING:
    from actors.ports import ConversationReader, ConversationRecord
    from server.queries.read_pool import ReadPool

OWNERS = 10_000
"""How many conversations' principals are cached. With a cached principal, a command needs no read of the store."""


class NameResolver:
    """Finds conversations by their resource names, with a cache of ids and principals. Use in the event loop only."""

    def __init__(self, store: ConversationReader, reads: ReadPool) -> None:
        self._store = store
        self._reads = reads
        self._owners: dict[str, str] = {}

    async def record(self, name: str) -> ConversationRecord:
        """Read the stored record of one of the caller's conversations.

        Raises ConversationNotFoundError if there is none, or if the conversation belongs to another principal.
        """
        record = await self._reads(self._find, names.parse_conversation(name) or "", caller.get().principal)
        if record is None or record.principal != caller.get().principal:
            raise ConversationNotFoundError(name)
        self._remember(record)
        subject.set(record.id)
        return record

    async def identify(self, name: str) -> str:
        """Return the id of a conversation of the caller. Raises ConversationNotFoundError if there is none.

        The id may come from the cache although the conversation has been deleted; the conversation's actor notices
        the deletion.
        """
        key = names.parse_conversation(name) or ""
        if self._owners.get(key) == caller.get().principal:
            subject.set(key)
            return key
        return (await self.record(name)).id

    async def locate(self, name: str) -> str:
        """Return the id of a conversation of the caller, even if its stored record is damaged.

        Raises ConversationNotFoundError if there is none.
        """
        conversation_id = await self._reads(self._locate, names.parse_conversation(name) or "", caller.get().principal)
        if conversation_id is None:
            raise ConversationNotFoundError(name)
        return conversation_id

    def _locate(self, key: str, principal: str) -> str | None:
        """Return the id of a conversation of `principal`; None if there is none. `key` is the id or a slug. Blocks."""
        slug = "" if has_form_of_id(key) else key
        for conversation_id in (key, self._store.find_slug(principal, slug) if slug else None):
            if conversation_id and self._store.owner(conversation_id) == principal:
                return conversation_id
        return None

    def _find(self, key: str, principal: str) -> ConversationRecord | None:
        """Return the record with the id `key`, else the one with the slug `key` of `principal`, else None. Blocks.

        A record with this id may belong to another principal. No slug has the form of an id.
        """
        found = self._store.load(key)
        if found is not None or has_form_of_id(key):
            return found
        conversation_id = self._store.find_slug(principal, key)
        return None if conversation_id is None else self._store.load(conversation_id)

    def _remember(self, record: ConversationRecord) -> None:
        """Cache the id and the principal of a conversation, which never change.

        If the cache is full, drop the oldest entry.
        """
        self._owners[record.id] = record.principal
        if len(self._owners) > OWNERS:
            del self._owners[next(iter(self._owners))]
