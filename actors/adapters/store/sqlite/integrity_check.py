"""Verify stored conversations over a connection: every row, its digest, and the chains between them."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING

from actors.adapters.store import rows
from actors.adapters.store.integrity import StoredRows, violations
from actors.adapters.store.log_rows import LOG, LogRow
from actors.adapters.store.pruning import BEGINNING, Place
from actors.adapters.store.rows import is_as_written
from actors.adapters.store.run_outcomes import FATE, RUN
from actors.adapters.store.sqlite.schema.tables import NOT_DELETED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from actors.adapters.store.sqlite.engine import sqlite3

MAX_FINDINGS = 100
"""Maximum findings per conversation; more would not help."""

RECORDS = ", ".join("CAST(state_data AS BLOB)" if name == "state_data" else name for name in rows.RECORD)
"""The columns of a conversation; its state as bytes, so that a damaged one can be read."""
MESSAGES = f"SELECT {', '.join(rows.MESSAGE)} FROM messages WHERE conversation_id = ?"  # noqa: S608
LOGGED = (
    f"SELECT {', '.join(LOG)} FROM log WHERE conversation_id = ? AND step > ? ORDER BY first_revision, step LIMIT ?"  # noqa: S608
)
RUNS = f"SELECT {', '.join(RUN)} FROM runs WHERE conversation_id = ?"  # noqa: S608
FATES = f"SELECT {', '.join(FATE)} FROM fates WHERE conversation_id = ?"  # noqa: S608
ALL = -1
"""SQLite's LIMIT for no limit."""

_ROW = f"SELECT {RECORDS} FROM conversations WHERE id = ?"  # noqa: S608
_PROMPT = f"SELECT {', '.join(rows.PROMPT)} FROM prompts WHERE conversation_id = ?"  # noqa: S608
_IDS = f"SELECT id FROM conversations WHERE {NOT_DELETED} ORDER BY id"  # noqa: S608
_PRUNED = "SELECT step, revision, hash FROM prunings WHERE conversation_id = ?"
_OTHERS = (
    f"SELECT {', '.join(rows.PROFILE)} FROM profiles WHERE conversation_id = ?",  # noqa: S608
    f"SELECT {', '.join(rows.COMMAND)} FROM commands WHERE conversation_id = ?",  # noqa: S608
    f"SELECT {', '.join(rows.ATTACHMENT)} FROM attachments WHERE conversation_id = ?",  # noqa: S608
)
_CREATED = f"SELECT {', '.join(rows.COMMAND)} FROM commands WHERE conversation_id IS NULL"  # noqa: S608


def check(connection: sqlite3.Connection, conversation_id: str) -> tuple[str, ...]:
    """Return the findings about a conversation, as text; () if it does not exist.

    Call it inside one transaction. Raises what SQLite raises.
    """
    with every_text(connection):
        conversation = connection.execute(_ROW, (conversation_id,)).fetchone()
        if conversation is None:
            return ()
        log = map(LogRow._make, connection.execute(LOGGED, (conversation_id, 0, ALL)))
        messages = connection.execute(f"{MESSAGES} ORDER BY sequence_id", (conversation_id,))
        prompt = connection.execute(_PROMPT, (conversation_id,)).fetchone()
        begins = beginning(connection, conversation_id)
        runs, fates = (connection.execute(query, (conversation_id,)) for query in (RUNS, FATES))
        others = chain.from_iterable(connection.execute(query, (conversation_id,)) for query in _OTHERS)
        stored = StoredRows(conversation, prompt, begins, log, messages, runs, fates, others)
        return tuple(islice(violations(stored), MAX_FINDINGS))


def check_all(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield each damaged object in the database with its first finding, as text. Raises what SQLite raises."""
    with every_text(connection):
        ids = [str(id_) for (id_,) in connection.execute(_IDS)]
    for conversation_id in ids:
        for finding in check(connection, conversation_id)[:1]:
            yield f"conversation {conversation_id}", finding
    with every_text(connection):
        if not all(map(is_as_written, connection.execute(_CREATED))):
            yield "the remembered calls of CreateConversation", "one of them is not what was written"


def beginning(connection: sqlite3.Connection, conversation_id: str) -> Place:
    """Return the position where the log begins: after the pruned rows."""
    row = connection.execute(_PRUNED, (conversation_id,)).fetchone()
    return Place(*row) if row else BEGINNING


@contextmanager
def every_text(connection: sqlite3.Connection, errors: str = "replace") -> Generator[None]:
    """Decode texts that are not valid UTF-8 with replacements or surrogates for the duration of the block."""
    connection.text_factory = lambda raw: raw.decode(errors=errors)
    try:
        yield
    finally:
        connection.text_factory = str
