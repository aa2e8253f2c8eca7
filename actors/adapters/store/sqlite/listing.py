"""Lists of conversations: the query, and the checks that keep one damaged row from spoiling the list."""

from __future__ import annotations

from typing import Any

from peewee import JOIN, SQL

from actors.adapters.store import rows
from actors.adapters.store.sqlite.schema import tables as schema


def query(
    principal: str,
    *,
    archived: bool,
    parent: str | None,
    directory: str | None,
    before: tuple[int, str] | None,
    limit: int,
) -> Any:
    """Return the query for rows of RECORD with prompt and profile, latest update first, after the position `before`."""
    table = schema.Conversation
    columns = [SQL("CAST(state_data AS BLOB)") if name == "state_data" else SQL(name) for name in rows.RECORD]
    wanted = (
        table.select(*columns, schema.Prompt.text, schema.Profile.profile)
        .join(schema.Prompt, JOIN.LEFT_OUTER)
        .switch(table)
        .join(schema.Profile, JOIN.LEFT_OUTER)
        .where(table.principal == principal, table.archived == archived, SQL(schema.NOT_DELETED))
        .order_by(table.updated_at.desc(), table.id.desc())
        .limit(limit)
    )
    if parent is None:
        wanted = wanted.where(SQL("parent_conversation_id IS NULL"))
    else:
        wanted = wanted.where(table.parent_conversation == parent)
    if directory is not None:
        wanted = wanted.where(table.cwd == directory)
    if before is not None:
        wanted = wanted.where(SQL("(updated_at, id) < (?, ?)", before))
    return wanted.tuples()


def place_of(row: rows.Row) -> tuple[int, str]:
    """Return the position of a row, from which the next page continues."""
    return row[rows.RECORD.index("updated_at")], row[rows.RECORD.index("id")]


def refuse_broken_texts(row: rows.Row) -> None:
    """Raise UnicodeEncodeError if a text that was read with surrogates is not valid UTF-8."""
    for value in row:
        if isinstance(value, str):
            value.encode()
