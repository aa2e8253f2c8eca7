"""The SQL statements that write to SQLite, for one row or for many rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from actors.adapters.store.log_rows import LOG
from actors.adapters.store.rows import ATTACHMENT, CHANGING, COMMAND, FIXED, MESSAGE, PROFILE, PROMPT
from actors.adapters.store.run_outcomes import FATE, RUN

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

NULLABLE = frozenset({"parent_conversation_id", "slug", "archived_at", "usage_data", "context", "audit"})
"""Columns in which the value "" is stored as NULL, because binding None takes ten times as long as binding a text."""


def _value(column: str, text: str, nullable: Set[str] = NULLABLE) -> str:
    return f"nullif({text}, '')" if column in nullable else text


def _insert(table: str, columns: Sequence[str], nullable: Set[str] = NULLABLE) -> str:
    values = ", ".join(_value(column, "?", nullable) for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"  # noqa: S608 -- constants only


INSERT_CONVERSATION = _insert("conversations", (*FIXED, *CHANGING, "slug", "log_hash"))
FINISH_CONVERSATION = "UPDATE conversations SET slug = nullif(?, ''), log_hash = ? WHERE id = ?"
INSERT_PROMPT = _insert("prompts", PROMPT)
PUT_PROFILE = (
    _insert("profiles", PROFILE) + " ON CONFLICT (conversation_id)"
    " DO UPDATE SET profile = excluded.profile, profile_digest = excluded.profile_digest"
)
INSERT_MESSAGE = _insert("messages", MESSAGE)
INSERT_LOG = _insert("log", LOG)
INSERT_RUN = _insert("runs", RUN)
INSERT_FATE = _insert("fates", FATE)
INSERT_COMMAND = _insert("commands", COMMAND, nullable={"conversation_id", "principal"})
INSERT_ATTACHMENT = _insert("attachments", ATTACHMENT) + " ON CONFLICT DO NOTHING"

UPDATE_CONVERSATION = (
    f"UPDATE conversations SET {', '.join(f'{name} = {_value(name, chr(63))}' for name in CHANGING)}, log_hash = ? "  # noqa: S608
    "WHERE id = ? AND step = ? AND epoch <= ?"
)
MOVE_BEGINNING = """
INSERT INTO prunings (conversation_id, step, revision, hash)
SELECT id, :step, :revision, :hash FROM conversations WHERE id = :id
ON CONFLICT DO UPDATE SET step = :step, revision = :revision, hash = :hash WHERE step = :from_step
"""
HEADS = """
SELECT json_group_array(json_array(id, epoch, step, last_seq, log_hash, coalesce(slug, ''))) FROM conversations
WHERE id IN (SELECT value FROM json_each(?))
"""
"""The query for the current positions (heads) of the conversations whose ids are in a JSON array.

The result is a single JSON array, because `sqlite3` releases the interpreter lock for each value that it reads, and the
writing thread would have to get the lock back from busy threads each time.
"""


@lru_cache
def update_conversations(count: int) -> str:
    """Return the statement that updates `count` conversations without checking their step or epoch.

    Its parameters are, for each conversation, the id, the values of the columns in CHANGING, and the log hash.
    """
    columns = (*CHANGING, "log_hash")
    values = ", ".join(f"{name} = {_value(name, f'new.column{place}')}" for place, name in enumerate(columns, 2))
    table = _table(len(columns) + 1, count)
    return f"UPDATE conversations SET {values} FROM {table} AS new WHERE id = new.column1"  # noqa: S608 -- constants only


@lru_cache
def insert_messages(count: int) -> str:
    """Return the statement that inserts `count` rows with the columns in MESSAGE."""
    return _insert_many("messages", MESSAGE, count)


@lru_cache
def insert_log(count: int) -> str:
    """Return the statement that inserts `count` rows with the columns in LOG."""
    return _insert_many("log", LOG, count)


@lru_cache
def insert_runs(count: int) -> str:
    """Return the statement that inserts `count` rows with the columns in RUN."""
    return _insert_many("runs", RUN, count)


def _insert_many(table: str, columns: Sequence[str], count: int) -> str:
    values = ", ".join(_value(column, f"column{place}") for place, column in enumerate(columns, 1))
    rows = _table(len(columns), count)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {rows} WHERE column1 <> ''"  # noqa: S608


def _table(columns: int, count: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"(VALUES {', '.join([row] * count)})"
