"""Removes deleted conversations in the background, in small slices.

A deletion only hides conversations: they are recorded in the table `deletions`, lose their slug, and get an epoch so
great that every later change is refused. Their rows are removed afterwards in slices, so that no caller waits for the
removal of a conversation with many sub-agents. After a crash, the next start resumes the removal.

An unfinished fork is hidden in the same way. Its rows are removed only if the fork is abandoned, or after a crash.
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
"""Maximum duration of a slice in seconds, its commit not included. Waiting changes are written between slices."""
SLICE_ROWS = 64
"""Number of removed rows after which a slice ends, since the commit may have to write a separate page for each row."""

_ROWS = {
    "messages": 16, "log": 16, "runs": 16, "fates": 16, "commands": 16, "attachments": 1, "prunings": 1, "prompts": 1,
    "profiles": 1,
}  # fmt: skip
"""The tables whose rows belong to conversations, each with the number of rows that one statement deletes.

After each statement, the limits of the slice (SLICE_ROWS and SLICE_SECONDS) are checked.
"""
_NO_EPOCH = (1 << 63) - 1
"""An epoch greater than that of any actor (the object that serves a conversation), so that all commits are refused."""

_NOTE = """
WITH RECURSIVE family (id, depth) AS (
    SELECT id, 0 FROM conversations WHERE id = ?
    UNION SELECT conversations.id, depth + 1 FROM conversations JOIN family ON parent_conversation_id = family.id
)
INSERT INTO deletions (conversation_id, depth) SELECT id, depth FROM family WHERE true ON CONFLICT DO NOTHING
RETURNING conversation_id
"""
_HIDE = "UPDATE conversations SET slug = NULL, epoch = ? WHERE id IN (SELECT value FROM json_each(?))"
_NEXT = "SELECT conversation_id FROM deletions WHERE depth >= 0 ORDER BY depth DESC LIMIT 1"
_HIDE_UNFINISHED = "INSERT INTO deletions (conversation_id, depth) VALUES (?, -1)"
_SHOW_UNFINISHED = "DELETE FROM deletions WHERE conversation_id = ? AND depth < 0"
_ABANDON_UNFINISHED = "UPDATE deletions SET depth = 0 WHERE depth < 0"


class _Budget(Struct):
    """How many rows a slice may still remove, and until when it may last (in seconds of time.monotonic)."""

    rows: int
    until: float

    @property
    def spent(self) -> bool:
        """Whether the slice must end."""
        return self.rows <= 0 or time.monotonic() > self.until


class Removal:
    """Keeps the ids of deleted conversations that still have rows, and removes these rows in slices.

    Safe to call from any thread, except `remove_slice`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Load the deletions that earlier processes did not finish, and mark their unfinished forks for removal."""
        connection.execute(_ABANDON_UNFINISHED)
        self._hidden = {id_ for (id_,) in connection.execute("SELECT conversation_id FROM deletions")}

    @property
    def pending(self) -> bool:
        """Whether there are deleted conversations whose rows are not yet removed."""
        return bool(self._hidden)

    def unless_hidden(self, conversation_id: str) -> str:
        """Return the id, or "" if the conversation is deleted, so that queries with the result find nothing."""
        return "" if conversation_id in self._hidden else conversation_id

    def add(self, ids: Iterable[str]) -> None:
        """Record that these conversations are deleted."""
        self._hidden.update(ids)

    def forget(self, ids: Iterable[str]) -> None:
        """Record that new conversations were created with these ids, which are therefore not deleted any more."""
        self._hidden.difference_update(ids)

    def remove_slice(self, connection: sqlite3.Connection) -> bool:
        """Remove some rows of deleted conversations, sub-agents before their parents; return False if no rows are left.

        Runs on the store's own background thread.
        """
        budget = _Budget(SLICE_ROWS, time.monotonic() + SLICE_SECONDS)
        found = connection.execute(_NEXT).fetchone()
        if found is None:
            self._hidden.clear()
            return False
        while found is not None and _remove(connection, found[0], budget) and not budget.spent:
            found = connection.execute(_NEXT).fetchone()
        return True


def hide(connection: sqlite3.Connection, conversation_id: str) -> tuple[str, ...]:
    """Mark the conversation and its sub-agents for removal; return the ids that were not marked before."""
    ids = tuple(id_ for (id_,) in connection.execute(_NOTE, (conversation_id,)).fetchall())
    connection.execute(_HIDE, (_NO_EPOCH, rows.names(ids)))
    return ids


def hide_unfinished(connection: sqlite3.Connection, conversation_id: str) -> None:
    """Hide an unfinished fork, whose row was just inserted."""
    connection.execute(_HIDE_UNFINISHED, (conversation_id,))


def show_unfinished(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Make a finished fork visible; return False if it was not hidden as unfinished."""
    return connection.execute(_SHOW_UNFINISHED, (conversation_id,)).rowcount == 1


def abandon_unfinished(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Mark a fork for removal if the fork is unfinished; return whether it was unfinished."""
    return connection.execute(f"{_ABANDON_UNFINISHED} AND conversation_id = ?", (conversation_id,)).rowcount == 1


def is_hidden(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Return whether the conversation is deleted but not yet removed, or is an unfinished fork."""
    found = connection.execute("SELECT 1 FROM deletions WHERE conversation_id = ?", (conversation_id,))
    return found.fetchone() is not None


def remove_all(connection: sqlite3.Connection, conversation_id: str) -> None:
    """Remove all rows of one conversation at once."""
    _remove(connection, conversation_id, _Budget(sys.maxsize, float("inf")))


def _remove(connection: sqlite3.Connection, conversation_id: str, budget: _Budget) -> bool:
    """Remove rows of a conversation until the budget is spent; return whether no row is left."""
    for table, count in _ROWS.items():
        some = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE conversation_id = ? LIMIT {count})"  # noqa: S608
        while removed := connection.execute(some, (conversation_id,)).rowcount:
            budget.rows -= removed
            if budget.spent:
                return False
    connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
    return True
