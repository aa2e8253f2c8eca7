"""Removes deleted conversations in the background, in small slices, including those that other servers have deleted.

A deletion only hides conversations: they are recorded in the table `deletions`, lose their slug, and get an epoch so
great that every later change is refused. Their rows are removed afterwards, so that no caller waits for the removal of
a conversation with many sub-agents.

An unfinished fork is hidden in the same way; in its row of `deletions`, the column `depth` contains the negative number
of the server that makes the fork. Its rows are removed only if the fork is abandoned or that server is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.owner_sql import ALIVE, not_owner
from actors.adapters.store.sql.queries import NOT_DELETED

if TYPE_CHECKING:
    from actors.adapters.store.sql.dialect import Connection

SLICE_ROWS = 256
"""Maximum number of rows that one statement removes."""

_TABLES = ("messages", "log", "runs", "fates", "commands", "attachments", "prunings", "prompts", "profiles")
"""The tables, besides `conversations`, with rows that belong to conversations."""
_NO_EPOCH = (1 << 63) - 1
"""An epoch greater than that of any actor (the object that serves a conversation), so that all commits are refused."""

_LOCK = "SELECT id, owner = :me FROM conversations WHERE family = :family ORDER BY id FOR UPDATE"
_FAMILY = f"SELECT family, {ALIVE} FROM conversations WHERE id = :id AND {NOT_DELETED}"  # noqa: S608
_NOTE = """
WITH RECURSIVE family_of (id, depth) AS (
    SELECT id, 0 FROM conversations WHERE id = ?
    UNION SELECT conversations.id, depth + 1 FROM conversations JOIN family_of ON parent_conversation_id = family_of.id
)
INSERT INTO deletions (conversation_id, depth) SELECT id, depth FROM family_of ON CONFLICT DO NOTHING
RETURNING conversation_id
"""
_HIDE = "UPDATE conversations SET slug = NULL, epoch = ? WHERE id = ANY(?)"
_NEXT = "SELECT conversation_id FROM deletions WHERE depth >= 0 LIMIT 1"
_HIDE_UNFINISHED = "INSERT INTO deletions (conversation_id, depth) VALUES (?, ?)"
_HOLD_UNFINISHED = "SELECT FROM deletions WHERE conversation_id = ? AND depth = ? FOR SHARE"
_SHOW_UNFINISHED = "DELETE FROM deletions WHERE conversation_id = ? AND depth = ?"
_ABANDON_UNFINISHED = "UPDATE deletions SET depth = 0 WHERE conversation_id = ? AND depth = ?"
_ABANDON_OF_THE_DEAD = """
UPDATE deletions SET depth = 0
WHERE depth < 0 AND NOT EXISTS (SELECT FROM nodes WHERE incarnation = -depth AND NOT dead)
"""


def hide(connection: Connection, conversation_id: str, me: int) -> bool:
    """Mark a conversation and its sub-agents for removal; return whether the conversation existed.

    Raises NotOwnerError if the server `me` does not own the conversation or was declared dead.
    """
    found = connection.execute(_FAMILY, {"id": conversation_id, "me": me}).fetchone()
    if found is None:
        return False
    family, alive = found
    owned = dict(connection.execute(_LOCK, {"family": family, "me": me}).fetchall())
    if not alive or not owned.get(conversation_id):
        raise not_owner(connection, conversation_id, me)
    ids = [id_ for (id_,) in connection.execute(_NOTE, (conversation_id,))]
    connection.execute(_HIDE, (_NO_EPOCH, ids))
    return bool(ids)


def remove_slice(connection: Connection) -> bool:
    """Remove some rows of one deleted conversation; return False if no deleted conversation is left.

    Runs on the thread that writes to the database.
    """
    connection.execute(_ABANDON_OF_THE_DEAD)
    found = connection.execute(_NEXT).fetchone()
    if found is None:
        return False
    for table in _TABLES:
        if _removed(connection, table, found[0], SLICE_ROWS):
            return True
    _forget(connection, found[0])
    return True


def hide_unfinished(connection: Connection, conversation_id: str, me: int) -> None:
    """Hide a conversation that will be a fork, until the server `me` has finished the fork."""
    connection.execute(_HIDE_UNFINISHED, (conversation_id, -me))


def hold_unfinished(connection: Connection, conversation_id: str, me: int) -> bool:
    """Return whether the fork that the server `me` makes is still unfinished.

    Other transactions cannot abandon the fork until this transaction ends.
    """
    return connection.execute(_HOLD_UNFINISHED, (conversation_id, -me)).fetchone() is not None


def show_unfinished(connection: Connection, conversation_id: str, me: int) -> bool:
    """Make visible a fork that the server `me` has finished; return False if no such fork was hidden."""
    return connection.execute(_SHOW_UNFINISHED, (conversation_id, -me)).rowcount == 1


def abandon_unfinished(connection: Connection, conversation_id: str, me: int) -> None:
    """Mark a fork for removal if the server `me` has not finished it."""
    connection.execute(_ABANDON_UNFINISHED, (conversation_id, -me))


def remove_all(connection: Connection, conversation_id: str) -> None:
    """Remove all remaining rows of a deleted conversation at once; do nothing if it is not deleted."""
    if connection.execute("SELECT FROM deletions WHERE conversation_id = ?", (conversation_id,)).fetchone() is None:
        return
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE conversation_id = ?", (conversation_id,))  # noqa: S608
    _forget(connection, conversation_id)


def _removed(connection: Connection, table: str, conversation_id: str, count: int) -> int:
    some = f"SELECT ctid FROM {table} WHERE conversation_id = :id LIMIT {count}"  # noqa: S608 -- only constant names
    still = "EXISTS (SELECT FROM deletions WHERE conversation_id = :id)"
    delete = f"DELETE FROM {table} WHERE ctid = ANY(ARRAY({some})) AND {still}"  # noqa: S608
    return connection.execute(delete, {"id": conversation_id}).rowcount


def _forget(connection: Connection, conversation_id: str) -> None:
    """Remove the conversation's own row and the record of its deletion, in one statement."""
    connection.execute(
        """
        WITH deleted AS (DELETE FROM deletions WHERE conversation_id = :id RETURNING conversation_id)
        DELETE FROM conversations WHERE id IN (SELECT conversation_id FROM deleted)
        """,
        {"id": conversation_id},
    )
