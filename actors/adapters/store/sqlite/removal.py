"""Removing what was deleted, a little at a time.

A deletion only hides: its conversations are noted in `deletions`, lose their slug, and get an epoch that fences off
every late change. Their rows go afterwards, in slices, so that nobody waits for the removal of a large family. What a
crash leaves is noted, and goes on with the next start.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.adapters.store import rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.adapters.store.sqlite.engine import sqlite3

SLICE_SECONDS = 0.005
"""What a slice takes at most, but for its commit; then whoever waits has a turn."""
SLICE_ROWS = 64
"""Of a slice: each may be on a page of its own, all of which its commit has to write."""

_ROWS = {
    "messages": 16, "log": 16, "runs": 16, "fates": 16, "commands": 16, "attachments": 1, "prunings": 1, "prompts": 1,
}  # fmt: skip
"""Tables with rows of a conversation, and how many are deleted between two looks at the clock."""
_NO_EPOCH = (1 << 63) - 1
"""Later than that of any actor."""

_NOTE = """
WITH RECURSIVE family (id, depth) AS (
    SELECT id, 0 FROM conversations WHERE id = ?
    UNION SELECT conversations.id, depth + 1 FROM conversations JOIN family ON parent_conversation_id = family.id
)
INSERT INTO deletions (conversation_id, depth) SELECT id, depth FROM family WHERE true ON CONFLICT DO NOTHING
RETURNING conversation_id
"""
_HIDE = "UPDATE conversations SET slug = NULL, epoch = ? WHERE id IN (SELECT value FROM json_each(?))"
_NEXT = "SELECT conversation_id FROM deletions ORDER BY depth DESC LIMIT 1"


class _Budget(Struct):
    """What a slice may still do."""

    rows: int
    until: float

    @property
    def spent(self) -> bool:
        return self.rows <= 0 or time.monotonic() > self.until


class Removal:
    """What is deleted and not yet removed. Any thread, `remove_slice` apart."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """What earlier servers left to be removed."""
        self._hidden = {id_ for (id_,) in connection.execute("SELECT conversation_id FROM deletions")}

    @property
    def pending(self) -> bool:
        """Whether there is anything."""
        return bool(self._hidden)

    def unless_hidden(self, conversation_id: str) -> str:
        """The id, or, of what is hidden, one that nothing has."""
        return "" if conversation_id in self._hidden else conversation_id

    def add(self, ids: Iterable[str]) -> None:
        """They are deleted."""
        self._hidden.update(ids)

    def forget(self, ids: Iterable[str]) -> None:
        """There are new conversations with these ids."""
        self._hidden.difference_update(ids)

    def remove_slice(self, connection: sqlite3.Connection) -> bool:
        """Remove some of it, sub-agents before their parents; whether there was anything (writer's thread)."""
        budget = _Budget(SLICE_ROWS, time.monotonic() + SLICE_SECONDS)
        found = connection.execute(_NEXT).fetchone()
        if found is None:
            self._hidden.clear()
            return False
        while found is not None and _remove(connection, found[0], budget) and not budget.spent:
            found = connection.execute(_NEXT).fetchone()
        return True


def hide(connection: sqlite3.Connection, conversation_id: str) -> tuple[str, ...]:
    """Note the conversation and its sub-agents for removal; returns the ids of those that were not noted yet."""
    ids = tuple(id_ for (id_,) in connection.execute(_NOTE, (conversation_id,)).fetchall())
    connection.execute(_HIDE, (_NO_EPOCH, rows.names(ids)))
    return ids


def is_hidden(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Whether it is deleted but not yet removed."""
    found = connection.execute("SELECT 1 FROM deletions WHERE conversation_id = ?", (conversation_id,))
    return found.fetchone() is not None


def remove_all(connection: sqlite3.Connection, conversation_id: str) -> None:
    """Remove what is left of one, at once."""
    _remove(connection, conversation_id, _Budget(sys.maxsize, float("inf")))


def _remove(connection: sqlite3.Connection, conversation_id: str, budget: _Budget) -> bool:
    """Whether nothing of it is left."""
    for table, count in _ROWS.items():
        some = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE conversation_id = ? LIMIT {count})"  # noqa: S608
        while removed := connection.execute(some, (conversation_id,)).rowcount:
            budget.rows -= removed
            if budget.spent:
                return False
    connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
    return True
