"""Translate the conditions of a list to SQL. It selects what `matches` in the port does.

Every translation is true or false, never NULL, so that a negation is the exact opposite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.ports.store.conditions import (
    AnyOf,
    Condition,
    Every,
    HasLabel,
    IsArchived,
    IsWithin,
    Negation,
    StateIs,
    TextContains,
    TextEquals,
    TextField,
    TimeCompares,
    TimeField,
    beneath,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTAINS = "contains_folded"
"""The name of `contains_folded` in SQL: SQLite itself folds ASCII only."""

_NULLABLE_TEXT = frozenset({TextField.SLUG, TextField.PARENT})
_FORKED_FROM = """coalesce((
    SELECT CASE WHEN json_valid(profile) THEN json_extract(profile, '$.forked_from') END
    FROM profiles WHERE profiles.conversation_id = conversations.id
), '')"""
_NULLABLE_TIME = frozenset({TimeField.ARCHIVED})


class Clause(NamedTuple):
    """A condition in SQL with the values of its parameters."""

    sql: str
    values: tuple[object, ...] = ()


def contains_folded(text: bytes, folded: str) -> bool:
    """Return whether a text, in UTF-8, contains another one regardless of case."""
    return folded in text.decode(errors="replace").casefold()


def clause_of(condition: Condition) -> Clause:
    """Return a condition of the table `conversations` as SQL."""
    match condition:
        case Every(parts):
            return joined(" AND ", "1", [clause_of(part) for part in parts])
        case AnyOf(parts):
            return joined(" OR ", "0", [clause_of(part) for part in parts])
        case Negation(part):
            inner = clause_of(part)
            return Clause(f"NOT ({inner.sql})", inner.values)
        case StateIs(kinds):
            return Clause(f"state IN ({', '.join('?' * len(kinds))})", tuple(sorted(kinds)))
        case IsArchived(archived):
            return Clause("archived = ?", (int(archived),))
        case TextEquals(field, value):
            return Clause(f"{_text(field)} = ?", (value,))
        case TextContains(field, folded):
            return Clause(f"{CONTAINS}(CAST({_text(field)} AS BLOB), ?)", (folded,))
        case IsWithin(directory):
            start = beneath(directory)
            return Clause("(cwd = ? OR substr(cwd, 1, ?) = ?)", (directory, len(start), start))
        case TimeCompares(field, comparison, ms):
            known = f"{field} IS NOT NULL AND " if field in _NULLABLE_TIME else ""
            return Clause(f"({known}{field} {comparison} ?)", (ms,))
        case HasLabel(key, value):
            return _label(key, value)


def joined(operator: str, empty: str, clauses: Sequence[Clause]) -> Clause:
    """Return clauses connected by an operator; `empty` if there are none."""
    if not clauses:
        return Clause(empty)
    values = tuple(value for clause in clauses for value in clause.values)
    return Clause("(" + operator.join(clause.sql for clause in clauses) + ")", values)


def _text(field: TextField) -> str:
    if field is TextField.FORKED_FROM:
        return _FORKED_FROM
    return f"coalesce({field}, '')" if field in _NULLABLE_TEXT else field


def _label(key: str, value: str | None) -> Clause:
    """Return the clause for a label; damaged labels, which only a list would notice, are taken to be none."""
    wanted, values = ("key = ?", (key,)) if value is None else ("key = ? AND value = ?", (key, value))
    found = f"EXISTS (SELECT 1 FROM json_each(labels) WHERE {wanted})"  # noqa: S608 -- texts of ours
    return Clause(f"CASE WHEN labels <> '{{}}' AND json_valid(labels) THEN {found} ELSE 0 END", values)
