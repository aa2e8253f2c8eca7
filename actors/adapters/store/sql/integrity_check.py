"""Verifies stored conversations: compares every row with its digest, and checks the hash chain of every event log."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from actors.adapters.store import rows
from actors.adapters.store.integrity import StoredRows, violations
from actors.adapters.store.log_rows import LogRow
from actors.adapters.store.pruning import BEGINNING, LogPosition
from actors.adapters.store.rows import is_as_written
from actors.adapters.store.sql.queries import ALL, NOT_DELETED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.adapters.store.sql.dialect import Connection, Dialect
    from actors.adapters.store.sql.queries import Queries

MAX_FINDINGS = 100
"""Maximum number of violations that are returned for one conversation."""

_PROMPT = f"SELECT {', '.join(rows.PROMPT)} FROM prompts WHERE conversation_id = ?"  # noqa: S608
_IDS = f"SELECT id FROM conversations WHERE {NOT_DELETED} ORDER BY id"  # noqa: S608
_OTHERS = (
    f"SELECT {', '.join(rows.PROFILE)} FROM profiles WHERE conversation_id = ?",  # noqa: S608
    f"SELECT {', '.join(rows.COMMAND)} FROM commands WHERE conversation_id = ?",  # noqa: S608
    f"SELECT {', '.join(rows.ATTACHMENT)} FROM attachments WHERE conversation_id = ?",  # noqa: S608
)
_CREATED = f"SELECT {', '.join(rows.COMMAND)} FROM commands WHERE conversation_id IS NULL"  # noqa: S608


def check(connection: Connection, conversation_id: str, dialect: Dialect, queries: Queries) -> tuple[str, ...]:
    """Verify a conversation, and return the violations as texts; () if there is no violation, or no such conversation.

    Call it inside one transaction, on a connection that replaces invalid UTF-8 instead of raising an error. Raises what
    the database raises.
    """
    row = f"SELECT {dialect.records} FROM conversations WHERE id = ? AND {NOT_DELETED}"  # noqa: S608
    conversation = connection.execute(row, (conversation_id,)).fetchone()
    if conversation is None:
        return ()
    log = map(LogRow._make, connection.execute(queries.logged, (conversation_id, 0, ALL)))
    messages = connection.execute(f"{queries.messages} ORDER BY sequence_id", (conversation_id,))
    prompt = connection.execute(_PROMPT, (conversation_id,)).fetchone()
    begins = beginning(connection, conversation_id, queries)
    runs, fates = (connection.execute(query, (conversation_id,)) for query in (queries.runs, queries.fates))
    others = chain.from_iterable(connection.execute(query, (conversation_id,)) for query in _OTHERS)
    stored = StoredRows(conversation, prompt, begins, log, messages, runs, fates, others)
    return tuple(islice(violations(stored), MAX_FINDINGS))


def check_all(connection: Connection, dialect: Dialect, queries: Queries) -> Iterator[tuple[str, str]]:
    """Verify all conversations, and yield a description of each damaged one with its first violation.

    The stored create commands are verified, too. Call it on a connection that replaces invalid UTF-8 instead of raising
    an error. Raises what the database raises.
    """
    ids = [str(id_) for (id_,) in connection.execute(_IDS)]
    for conversation_id in ids:
        for finding in check(connection, conversation_id, dialect, queries)[:1]:
            yield f"conversation {conversation_id}", finding
    if not all(map(is_as_written, connection.execute(_CREATED))):
        yield "the remembered calls of CreateConversation", "one of them is not what was written"


def beginning(connection: Connection, conversation_id: str, queries: Queries) -> LogPosition:
    """Return the position at which the stored event log of a conversation begins, which is after the pruned rows."""
    row = connection.execute(queries.pruned, (conversation_id,)).fetchone()
    return LogPosition(*row) if row else BEGINNING
