"""How servers take over conversations: SQL by hand, because peewee cannot say these statements.

Each is a single statement, with the rows that it locks in a WITH query (`AS MATERIALIZED … FOR UPDATE OF`), so that a
server that is stopped between two statements holds no lock. Every take-over locks the top-level conversation first, so
that the second of two servers sees the result of the first.
"""

from __future__ import annotations

from actors.adapters.store.models import UNSETTLED
from actors.ports.cluster.placement import EVERYTHING


def has_workspace(conversation: str) -> str:
    """Return the SQL condition that a node has the workspace of a conversation.

    `placement.has` is the same condition in Python. In the statement, `mine` must be the alias of the table `nodes`,
    and `conversation` the name or alias of the table `conversations`.
    """
    label = f"{conversation}.workspace_label"
    return f"({label} = '' OR mine.labels && ARRAY[{label}, '{EVERYTHING}'])"


def taking(conversation: str) -> str:
    """Return the SQL condition that this node may take over a conversation."""
    return f"""
        EXISTS (SELECT FROM nodes AS mine WHERE mine.incarnation = %(me)s AND NOT mine.dead AND NOT mine.draining
                AND mine.expires > clock_timestamp() AND {has_workspace(conversation)})
    """


_FREE = """
    (owner IS NULL OR EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner AND theirs.dead)
     OR owner < %(me)s AND NOT EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner))
"""  # the same as FREE of actors.adapters.store.owners
CLAIM = f"""
WITH top AS MATERIALIZED (
    SELECT id AS family_id FROM conversations
    WHERE id = (SELECT family FROM conversations WHERE id = %(id)s) AND (owner = %(me)s OR {_FREE})
          AND {taking("conversations")}
    FOR UPDATE OF conversations
)
UPDATE conversations SET owner = %(me)s FROM top WHERE family = family_id AND (owner IS NULL OR owner <> %(me)s)
RETURNING id, ({UNSETTLED}) AND id NOT IN (SELECT conversation_id FROM deletions)
"""  # noqa: S608 -- only constants
