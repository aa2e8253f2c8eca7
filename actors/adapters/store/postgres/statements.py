"""The SQL statements that write to PostgreSQL, for one row or for many rows.

Many rows are passed as one JSON parameter, which is encoded much faster than an array for each column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from actors.adapters.store.log_rows import LOG
from actors.adapters.store.postgres.owner_sql import ALIVE, FREE
from actors.adapters.store.rows import ATTACHMENT, CHANGING, COMMAND, FIXED, MESSAGE, PROFILE, PROMPT, SPENDING
from actors.adapters.store.run_outcomes import FATE, RUN
from actors.adapters.store.sql.write_statements import ADD_TO_DAY, insert

if TYPE_CHECKING:
    from collections.abc import Sequence

NULLABLE = frozenset({"parent_conversation_id", "slug", "archived_at", "usage_data", "context", "audit"})
"""Columns that contain NULL in PostgreSQL where the code shared with SQLite uses ""."""
NULLABLE_OF_COMMAND = frozenset({"conversation_id", "principal"})

LOGGED = (*LOG, "principal")
"""The columns of the event log, and "principal": who sent the command, "" for nobody."""
CHOSEN = (*PROFILE, "forked_from")
"""The columns of a profile, and "forked_from": the origin of a fork, "" for other conversations."""
CREATED = (*FIXED, *CHANGING, "slug", "log_hash")
"""The columns of a new conversation, except `family` and `owner`."""
CHANGED = ("id", *CHANGING, "log_hash", "expected_step", "expected_revision", "expected_hash")
"""The columns that a change of a conversation writes, and the values that its row is expected to have before."""

_NUMBERS = frozenset({
    "user_initiated", "created_at", "state_updated_at", "updated_at", "archived", "archived_at", "epoch", "step",
    "last_seq", "expected_step", "expected_revision", "sequence_id", "attempt", "through_sequence", "at",
    "first_revision", "count", "revision", "last_sequence", "day", "tokens", "cost_micros",
})  # fmt: skip


def _rows_of(name: str, columns: Sequence[str]) -> str:
    """Return an SQL table expression for the rows in the JSON parameter `name`."""
    typed = ", ".join(f"{column} {'bigint' if column in _NUMBERS else 'text'}" for column in columns)
    return f"json_to_recordset(CAST(:{name} AS json)) AS new ({typed})"


INSERT_CONVERSATION = f"""
INSERT INTO conversations (family, owner, {", ".join(CREATED)})
SELECT :family, :me, {", ".join(f":{name}" for name in CREATED)} WHERE {ALIVE}
"""
INSERT_PROMPT = insert("prompts", PROMPT)
PUT_PROFILE = (
    insert("profiles", CHOSEN) + " ON CONFLICT (conversation_id) DO UPDATE"
    " SET profile = excluded.profile, profile_digest = excluded.profile_digest, forked_from = excluded.forked_from"
)
INSERT_MESSAGE = insert("messages", MESSAGE)
INSERT_LOG = insert("log", LOGGED)
INSERT_RUN = insert("runs", RUN)
INSERT_FATE = insert("fates", FATE)
INSERT_COMMAND = insert("commands", COMMAND)
INSERT_ATTACHMENT = f"""
INSERT INTO attachments ({", ".join(ATTACHMENT)})
SELECT {", ".join(f":{name}" for name in ATTACHMENT)} FROM conversations
WHERE conversations.id = :conversation_id AND owner = :me AND {ALIVE} ON CONFLICT DO NOTHING
"""  # noqa: S608
UPDATE_CONVERSATION = f"""
UPDATE conversations SET {", ".join(f"{name} = :{name}" for name in (*CHANGING, "log_hash"))}
WHERE id = :id AND step = :expected_step AND last_seq = :expected_revision AND log_hash = :expected_hash
      AND epoch <= :epoch AND owner = :me AND {ALIVE}
"""  # noqa: S608
MOVE_BEGINNING = f"""
INSERT INTO prunings (conversation_id, step, revision, hash)
SELECT id, :step, :revision, :hash FROM conversations WHERE id = :id AND (owner = :me OR {FREE}) AND {ALIVE}
ON CONFLICT (conversation_id) DO UPDATE SET step = :step, revision = :revision, hash = :hash
WHERE prunings.step = :from_step
"""  # noqa: S608
HEADS = """
SELECT id, epoch, step, last_seq, log_hash, coalesce(slug, '') FROM conversations WHERE id = ANY(?)
"""

# "IS TRUE" keeps the planner from using the index on owners, which would lead it to all conversations of this server
# instead of the few that change.
_UPDATE = f"""
WITH done AS (
    UPDATE conversations SET {", ".join(f"{name} = new.{name}" for name in (*CHANGING, "log_hash"))}
    FROM {_rows_of("conversations", CHANGED)}
    WHERE conversations.id = new.id AND conversations.step = new.expected_step
          AND conversations.last_seq = new.expected_revision AND conversations.log_hash = new.expected_hash
          AND conversations.epoch <= new.epoch AND (conversations.owner = :me) IS TRUE AND {ALIVE}
    RETURNING conversations.id
)
"""  # noqa: S608
_TABLES = {"messages": MESSAGE, "log": LOGGED, "runs": RUN, "fates": FATE, "commands": COMMAND}
_SPENDINGS = f"""
INSERT INTO spendings ({", ".join(SPENDING)})
SELECT principal, day, CAST(sum(tokens) AS bigint), CAST(sum(cost_micros) AS bigint)
FROM {_rows_of("spendings", (*SPENDING, "conversation_id"))} WHERE conversation_id IN (SELECT id FROM done)
GROUP BY principal, day ORDER BY day, principal {ADD_TO_DAY}
"""  # noqa: S608


@lru_cache
def update_many(tables: tuple[str, ...]) -> str:
    """Return the statement that changes many conversations, and that returns the ids of the changed ones.

    A conversation is changed only if its stored row has the expected values. `tables` are the tables that get new rows
    as well; for each of them, the statement has a parameter with its name.
    """
    inserts = [_insert_done(table) for table in tables]
    return f"{', '.join((_UPDATE, *inserts))} SELECT id FROM done"  # noqa: S608 -- only constant names


def _insert_done(table: str) -> str:
    """Return the part of the statement that adds rows to `table` for the conversations that the statement changed."""
    if table == "spendings":
        return f"into_spendings AS ({_SPENDINGS})"
    columns = _TABLES[table]
    names = ", ".join(columns)
    rows = f"SELECT {names} FROM {_rows_of(table, columns)} WHERE conversation_id IN (SELECT id FROM done)"  # noqa: S608
    return f"into_{table} AS (INSERT INTO {table} ({names}) {rows})"
