"""Translates conditions on conversations to SQL, with the meaning that `matches` of the store port gives them.

Every translation is true or false, never NULL, so that a negation is the exact opposite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.sql.dialect import Clause, Dialect
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

_NULLABLE_TEXT = frozenset({TextField.SLUG, TextField.PARENT})
_NULLABLE_TIME = frozenset({TimeField.ARCHIVED})


def clause_of(condition: Condition, dialect: Dialect) -> Clause:
    """Return the SQL of a condition on a row of the table `conversations`."""
    match condition:
        case Every(parts):
            return joined(" AND ", "TRUE", [clause_of(part, dialect) for part in parts])
        case AnyOf(parts):
            return joined(" OR ", "FALSE", [clause_of(part, dialect) for part in parts])
        case Negation(part):
            inner = clause_of(part, dialect)
            return Clause(f"NOT ({inner.sql})", inner.values)
        case StateIs(kinds):
            among = f"state IN ({', '.join('?' * len(kinds))})" if kinds else "FALSE"
            return Clause(among, tuple(sorted(kinds)))
        case IsArchived(archived):
            return Clause("archived = ?", (int(archived),))
        case TextEquals(field, value):
            return Clause(f"{_text(field, dialect)} = ?", (value,))
        case TextContains(field, folded):
            return dialect.contains(_text(field, dialect), folded)
        case IsWithin(directory):
            start = beneath(directory)
            return Clause("(cwd = ? OR substr(cwd, 1, length(?)) = ?)", (directory, start, start))
        case TimeCompares(field, comparison, ms):
            known = f"{field} IS NOT NULL AND " if field in _NULLABLE_TIME else ""
            return Clause(f"({known}{field} {comparison} ?)", (ms,))
        case HasLabel(key, value):
            return dialect.has_label(key, value)


def joined(operator: str, empty: str, clauses: Sequence[Clause]) -> Clause:
    """Return one clause that connects `clauses` by an SQL operator; the clause `empty` if there are none."""
    if not clauses:
        return Clause(empty)
    values = tuple(value for clause in clauses for value in clause.values)
    return Clause("(" + operator.join(clause.sql for clause in clauses) + ")", values)


def _text(field: TextField, dialect: Dialect) -> str:
    if field is TextField.FORKED_FROM:
        return dialect.forked_from
    return f"coalesce({field}, '')" if field in _NULLABLE_TEXT else field
