"""The SQLite form of those parts of SQL statements that differ between SQLite and PostgreSQL."""

from __future__ import annotations

from actors.adapters.store import rows
from actors.adapters.store.sql.dialect import Clause, Dialect
from actors.adapters.store.sql.queries import Queries

CONTAINS = "contains_folded"
"""The SQL name of the function `contains_folded`, which is needed because SQLite folds the case of ASCII only."""


def contains_folded(text: bytes, folded: str) -> bool:
    """Return whether `text` (UTF-8) contains `folded` if case is ignored; `folded` must be case-folded already."""
    return folded in text.decode(errors="replace").casefold()


def _contains(text: str, folded: str) -> Clause:
    return Clause(f"{CONTAINS}(CAST({text} AS BLOB), ?)", (folded,))


def _has_label(key: str, value: str | None) -> Clause:
    """Return the condition that a conversation has a label with this key and, if given, this value.

    The condition is false for labels that are not valid JSON; an SQL error would make the whole list of conversations
    fail.
    """
    wanted, values = ("key = ?", (key,)) if value is None else ("key = ? AND value = ?", (key, value))
    found = f"EXISTS (SELECT 1 FROM json_each(labels) WHERE {wanted})"  # noqa: S608 -- constants only
    return Clause(f"CASE WHEN labels <> '{{}}' AND json_valid(labels) THEN {found} ELSE 0 END", values)


_AUDITED = "CASE WHEN json_valid(audit) THEN json_extract(audit, '$.origin.principal') END IS nullif(:principal, '')"
_FORKED_FROM = """coalesce((
    SELECT CASE WHEN json_valid(profile) THEN json_extract(profile, '$.forked_from') END
    FROM profiles WHERE profiles.conversation_id = conversations.id
), '')"""

SQLITE = Dialect(
    records=", ".join("CAST(state_data AS BLOB)" if name == "state_data" else name for name in rows.RECORD),
    visible="",
    unsettled_index="INDEXED BY conversations_unsettled",
    forked_from=_FORKED_FROM,
    audited=_AUDITED,
    contains=_contains,
    has_label=_has_label,
)
QUERIES = Queries(SQLITE)
