"""The SQL statements for nodes and for take-overs of conversations, as text: peewee lacks the clauses they need.

Each statement is a transaction of its own and locks rows in a WITH query (`AS MATERIALIZED … FOR UPDATE OF`), so that a
node that is suspended between two statements holds no lock. Every take-over locks the top-level conversation first, so
that the second of two nodes sees the result of the first.

All times are from the database's clock; nodes never compare their clocks. The statements use `clock_timestamp()`, not
`now()`, because a statement that waited for a locked row evaluates its condition again, and must then use the current
time.
"""

from __future__ import annotations

from actors.adapters.store.models import UNSETTLED
from actors.ports.cluster import EVERYTHING

# The condition that this node is alive.
_LIVES = """
    EXISTS (SELECT FROM nodes AS mine WHERE mine.incarnation = %(me)s AND NOT mine.dead
            AND mine.expires > clock_timestamp() {more})
"""
_ALIVE = _LIVES.format(more="")


def taking(conversation: str) -> str:
    """The SQL condition that this node may take over a conversation and has its workspace; see the port's `has`.

    `conversation` is the name or alias of the `conversations` table.
    """
    label = f"{conversation}.workspace_label"
    workspace = f"({label} = '' OR mine.labels && ARRAY[{label}, '{EVERYTHING}'])"
    return _LIVES.format(more=f"AND NOT mine.draining AND {workspace}")


_FREE = """
    (owner IS NULL OR EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner AND theirs.dead)
     OR owner < %(me)s AND NOT EXISTS (SELECT FROM nodes AS theirs WHERE theirs.incarnation = owner))
"""  # the same condition as FREE in actors.adapters.store.query
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


# The first half of the key of every node's advisory lock; the second half is the node's incarnation (number).
LOCKS = 0x426564

_HELD = f"""
    EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCKS} AND objsubid = 2 AND granted
            AND objid::bigint = nodes.incarnation
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""  # noqa: S608
# Matches leases that have run out.
#
# A lease that ends far in the future was granted before the database's clock was set back; it also counts as run out.
_OVER = "(expires < clock_timestamp() OR expires > clock_timestamp() + 2 * make_interval(secs => lease_seconds))"

NEXT = "SELECT nextval('node_incarnations')"

# Takes this node's advisory lock; returns false while an earlier session in the database still holds it.
LOCK = "SELECT pg_try_advisory_lock(%(locks)s, %(me)s)"

JOIN = """
INSERT INTO nodes (incarnation, name, address, version, labels, session, lease_seconds, expires)
VALUES (%(me)s, %(name)s, %(address)s, %(version)s, %(labels)s, %(session)s, %(ttl)s,
        clock_timestamp() + make_interval(secs => %(ttl)s))
"""

# Renews a node's lease; returns no row if the node was declared dead.
BEAT = """
UPDATE nodes SET expires = clock_timestamp() + make_interval(secs => lease_seconds), session = %(session)s,
       active = %(active)s
WHERE incarnation = %(me)s AND NOT dead RETURNING incarnation
"""

SEEN = f"""
SELECT incarnation, name, address, version, labels, draining, active,
       dead, session, {_HELD}, lease_seconds, expires::text, {_OVER}, dead AND expires < clock_timestamp()
FROM nodes ORDER BY incarnation
"""  # noqa: S608

# Returns the nodes with a valid lease. Uses only columns from the first version of the table.
#
# Programs that are not nodes use this statement on databases of any version.
LEASED = f"SELECT name, address, lease_seconds, draining FROM nodes WHERE NOT dead AND NOT {_OVER} ORDER BY incarnation"  # noqa: S608

# The row of a dead node is kept until the time `expires`, because statements that the node sent before its
# death may still arrive.
_DECLARE_DEAD = f"""
UPDATE nodes SET dead = true, expires = clock_timestamp() + 6 * make_interval(secs => lease_seconds)
WHERE incarnation = %(other)s AND NOT dead AND expires::text = %(expires)s AND {{condition}} AND {_ALIVE}
RETURNING incarnation
"""  # noqa: S608
# Declares dead a node whose lease has run out.
EXPIRED = _DECLARE_DEAD.format(condition=_OVER)
# Declares dead a node whose process is gone, although its lease has not run out.
GONE = _DECLARE_DEAD.format(condition=f"NOT draining AND session AND NOT {_HELD}")

_TAKE = f"""
WITH families AS MATERIALIZED (
    SELECT top.id FROM conversations AS top
    WHERE top.id IN (SELECT family FROM conversations WHERE {{owned}} AND ({UNSETTLED}))
          AND (top.owner IS NULL OR top.owner = %(me)s OR top.owner = %(dead)s) AND {taking("top")}
    LIMIT %(most)s FOR UPDATE OF top SKIP LOCKED
)
UPDATE conversations AS taken SET owner = %(me)s FROM families
WHERE taken.family = families.id AND (taken.owner IS NULL OR taken.owner = %(dead)s)
RETURNING taken.id, ({UNSETTLED})
"""  # noqa: S608
# Takes over those conversations of a dead node that have unfinished work, or a sub-agent with unfinished work, each
# together with all its sub-agents.
#
# This node must have the conversations' workspaces. Every take-over locks the top-level conversation first;
# conversations that another node has locked are left to that node. If a top-level conversation belongs to this node or
# has no owner, the dead node may still own sub-agents of it, because statements that it sent before its death may
# arrive late.
TAKE = _TAKE.format(owned="owner = %(dead)s")
# Takes over the conversations without an owner that have unfinished work themselves or in a sub-agent, with all
# sub-agents.
TAKE_ABANDONED = _TAKE.format(owned="owner IS NULL")

# Removes the owner from conversations. Skips locked rows, so that the statement cannot take part in a deadlock.
RELEASE = """
WITH found AS MATERIALIZED (
    SELECT id FROM conversations WHERE owner = %(owner)s LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
UPDATE conversations SET owner = NULL FROM found WHERE conversations.id = found.id RETURNING conversations.id
"""

# Finds a node that registered the same address and is alive, because its session holds its advisory lock.
TWIN = f"SELECT name FROM nodes WHERE address = %(address)s AND NOT dead AND session AND {_HELD}"  # noqa: S608

OWNS = "SELECT EXISTS (SELECT FROM conversations WHERE owner = %(owner)s)"

# Records that the node is listening: from now on, a lost session and a closed port show that the node is gone.
#
# This is stored immediately, not with the next heartbeat, because the node may be killed before then.
LISTENS = "UPDATE nodes SET session = %(session)s WHERE incarnation = %(me)s"

RETIRE = "UPDATE nodes SET draining = true WHERE incarnation = %(me)s AND NOT dead"

LEAVE = "DELETE FROM nodes WHERE incarnation = %(me)s AND NOT dead"

SWEEP = """
DELETE FROM nodes WHERE incarnation = %(other)s AND dead AND expires < clock_timestamp()
       AND NOT EXISTS (SELECT FROM conversations WHERE owner = %(other)s)
"""

OWNER = """
SELECT workspace_label,
       owner.incarnation, owner.name, owner.address, owner.version, owner.labels, owner.draining, owner.active
FROM conversations LEFT JOIN nodes AS owner ON owner.incarnation = conversations.owner AND NOT owner.dead
WHERE conversations.id = %(conversation)s
"""

# Finds the innermost of the given directories that is some conversation's workspace, even if no node has that workspace
# now.
WORKSPACE = """
SELECT workspace_label FROM conversations WHERE workspace_label = ANY(%(above)s) AND workspace_label <> ''
ORDER BY length(workspace_label) DESC LIMIT 1
"""
