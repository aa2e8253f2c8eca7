"""The SQL by which servers take over conversations, and find out which server owns a conversation.

A top-level conversation and all its sub-agents (a family) have one owner. Every take-over locks the top-level
conversation first, so that the second of two servers sees the result of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.sql.queries import NOT_DELETED, UNSETTLED
from actors.ports import NotOwnerError, Owner
from actors.ports.cluster.placement import EVERYTHING

if TYPE_CHECKING:
    from actors.adapters.store.sql.dialect import Connection


def has_workspace(conversation: str) -> str:
    """Return the SQL condition that a node has the workspace of a conversation.

    `placement.has` is the same condition in Python. In the statement, `mine` must be the alias of the table `nodes`,
    and `conversation` the name or alias of the table `conversations`.
    """
    label = f"{conversation}.workspace_label"
    return f"({label} = '' OR mine.labels && ARRAY[{label}, '{EVERYTHING}'])"


ALIVE = "EXISTS (SELECT FROM nodes AS mine WHERE mine.incarnation = :me AND NOT mine.dead)"
"""The condition that this server was not declared dead.

Every change of a conversation has this condition, so that a server that was declared dead changes no conversation.
"""
_TAKING = f"""
    EXISTS (SELECT FROM nodes AS mine WHERE mine.incarnation = :me AND NOT mine.dead AND NOT mine.draining
            AND mine.expires > clock_timestamp() AND {has_workspace("conversations")})
"""
FREE = """
    (owner IS NULL OR EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner AND theirs.dead)
     OR owner < :me AND NOT EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner))
"""
"""The condition that no living server owns a row of `conversations`.

An owner without a row in `nodes` has left. But if its number is greater than this server's, it may be a new server
whose row is not visible to this statement yet, so it counts as living.
"""

_MINE = f"SELECT owner = :me AND {ALIVE} FROM conversations WHERE id = :id AND {NOT_DELETED}"  # noqa: S608
_CLAIM = f"""
WITH top AS MATERIALIZED (
    SELECT id AS family_id FROM conversations
    WHERE id = (SELECT family FROM conversations WHERE id = :id) AND (owner = :me OR {FREE}) AND {_TAKING}
    FOR UPDATE OF conversations
)
UPDATE conversations SET owner = :me FROM top WHERE family = family_id AND (owner IS NULL OR owner <> :me)
RETURNING id, ({UNSETTLED}) AND {NOT_DELETED}
"""  # noqa: S608
_OWNER = """
SELECT incarnation, name, address FROM conversations JOIN nodes ON incarnation = owner AND NOT dead
WHERE id = :id AND incarnation <> :me
"""
MINE_UNSETTLED = f"SELECT id FROM conversations WHERE owner = ? AND ({UNSETTLED}) AND {NOT_DELETED}"  # noqa: S608


def is_mine(connection: Connection, conversation_id: str, me: int) -> bool | None:
    """Return whether the server `me` owns a conversation and may write to it; None if there is no such conversation."""
    found = connection.execute(_MINE, {"id": conversation_id, "me": me}).fetchone()
    return None if found is None else bool(found[0])


def claimed(connection: Connection, conversation_id: str, me: int) -> tuple[str, ...] | None:
    """Make the server `me` the owner of the family of a conversation; return None if there is no such conversation.

    A family is a top-level conversation with all its sub-agents. Returns the ids of those conversations in it that have
    unfinished work, or () if `me` owned them already. Raises NotOwnerError if `me` may not take the conversation.
    """
    values = {"id": conversation_id, "me": me}
    if (mine := is_mine(connection, conversation_id, me)) is None:
        return None
    if mine:
        return ()
    taken = connection.execute(_CLAIM, values).fetchall()
    if not taken:  # another thread of this server may just have claimed it
        if (mine := is_mine(connection, conversation_id, me)) is None:
            return None
        if not mine:
            raise not_owner(connection, conversation_id, me)
    return tuple(id_ for id_, unsettled in taken if unsettled)


def not_owner(connection: Connection, conversation_id: str, me: int) -> NotOwnerError:
    """Return the error to raise for a conversation that the server `me` does not own.

    The error contains the owner if the owner is alive.
    """
    row = connection.execute(_OWNER, {"id": conversation_id, "me": me}).fetchone()
    owner = None if row is None else Owner(*row)
    who = "nobody alive" if owner is None else f"server {owner.incarnation}"
    return NotOwnerError(f"{conversation_id} is owned by {who}", owner=owner)
