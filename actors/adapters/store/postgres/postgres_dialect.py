"""The PostgreSQL form of those parts of SQL statements that differ between PostgreSQL and SQLite."""

from __future__ import annotations

from msgspec import json

from actors.adapters.store import rows
from actors.adapters.store.sql.dialect import Clause, Dialect

FOLD = "bedrock_fold"
"""The SQL function in the schema that folds case as `str.casefold` does; PostgreSQL's `lower` depends on the locale."""


def _contains(text: str, folded: str) -> Clause:
    return Clause(f"strpos({FOLD}({text}), ?) > 0", (folded,))


def _has_label(key: str, value: str | None) -> Clause:
    """Return the condition that a conversation has a label with this key and, if given, this value.

    Labels are stored as JSON, in which each text has exactly one encoding, so a search for the encoded pair is exact.
    """
    pair = json.encode(key).decode() + ":" + ("" if value is None else json.encode(value).decode())
    return Clause("(strpos(labels, ?) = 1 OR strpos(labels, ?) > 0)", ("{" + pair, "," + pair))


POSTGRES = Dialect(
    records=", ".join(rows.RECORD),
    visible=" AND conversation_id NOT IN (SELECT conversation_id FROM deletions)",
    unsettled_index="",
    forked_from="coalesce((SELECT forked_from FROM profiles WHERE profiles.conversation_id = conversations.id), '')",
    audited="principal = :principal",
    contains=_contains,
    has_label=_has_label,
)
