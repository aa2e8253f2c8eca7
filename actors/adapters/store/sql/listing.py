"""Builds the queries for lists of conversations, and checks rows so that one damaged row does not break a list.

If an index has the order of the list, the list is read in windows, which are a fixed number of successive index
entries. One query finds where the next window ends; a second query searches the rows of the window. So the cost of a
call is bounded even if no row matches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.store import rows
from actors.adapters.store.sql.condition_sql import clause_of, joined
from actors.adapters.store.sql.dialect import Clause
from actors.adapters.store.sql.queries import NOT_DELETED, UNSETTLED
from actors.ports.store.conditions import (
    Condition,
    IsArchived,
    ListPosition,
    OrderKey,
    Selection,
    StateIs,
    TextEquals,
    TextField,
    TimeCompares,
    TimeField,
    conjuncts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.adapters.store.sql.dialect import Dialect

WINDOW = 2_000
"""Number of index entries that one query searches if columns outside of the index decide which rows match."""

_SETTLED = frozenset({"idle", "context_exhausted", "completed", "failed"})
"""States in which a conversation needs no recovery after a restart, except for idle sub-agents, which do need it."""
_ORDERED_BY_INDEX = frozenset({OrderKey.UPDATED, OrderKey.CREATED})


class Query(NamedTuple):
    """A query with the values of its parameters."""

    sql: str
    values: tuple[object, ...]


def window_end(selection: Selection, after: ListPosition | None, limit: int, dialect: Dialect) -> Query | None:
    """Return the query for the position (key, id) where the next window ends; it finds no row in the last window.

    A window is a number of successive index entries. Returns None if the list is not read in windows. `limit` is the
    size of the page.
    """
    if not _has_index(selection):
        return None
    parts = conjuncts(selection.where)
    indexed = [part for part in parts if _in_index(part, selection.order.key)]
    size = limit if len(indexed) == len(parts) else WINDOW
    entries = [_entries(selection, [*indexed, *more], after, size, dialect) for more in _halves(selection, indexed)]
    inner = " UNION ALL ".join(f"SELECT * FROM ({query.sql}) AS half" for query in entries)  # noqa: S608 -- only constant names
    key, direction = selection.order.key, _direction(selection)
    sql = f"SELECT {key}, id FROM ({inner}) AS whole ORDER BY {key} {direction}, id {direction} LIMIT 1 OFFSET ?"  # noqa: S608
    return Query(sql, (*(value for query in entries for value in query.values), size - 1))


def page(
    selection: Selection, after: ListPosition | None, until: ListPosition | None, limit: int, dialect: Dialect
) -> Query:
    """Return the query for one page of conversations: columns RECORD, system prompt and profile.

    The page begins after the position `after` and ends at `until`, inclusive; None means that there is no such bound.
    """
    where = [*_scope(selection), clause_of(selection.where, dialect), *_between(selection, after, until)]
    wanted = joined(" AND ", "TRUE", where)
    order = _ordered(selection)
    if not _has_index(selection):  # Sort only the ids and not whole rows.
        index = dialect.unsettled_index if _unsettled(selection) else ""
        ids = f"SELECT id FROM conversations {index} WHERE {wanted.sql} {order} LIMIT ?"  # noqa: S608 -- only constant names
        wanted = Clause(f"id IN ({ids})", (*wanted.values, limit))
    sql = f"""
        SELECT {dialect.records}, text, profile FROM conversations
        LEFT JOIN prompts ON prompts.conversation_id = conversations.id
        LEFT JOIN profiles ON profiles.conversation_id = conversations.id
        WHERE {wanted.sql} {order} LIMIT ?
    """  # noqa: S608 -- only constant names
    return Query(sql, (*wanted.values, limit))


def place_of(row: rows.Row, selection: Selection) -> ListPosition:
    """Return the position of a row in the list; the next page continues after it."""
    return ListPosition(row[rows.RECORD.index(selection.order.key)], row[rows.RECORD.index("id")])


def refuse_broken_texts(row: rows.Row) -> None:
    """Raise UnicodeEncodeError if a text of the row contains surrogates, because the stored text is not valid UTF-8."""
    for value in row:
        if isinstance(value, str):
            value.encode()


def _has_index(selection: Selection) -> bool:
    """Return whether the list can be read in the order of an index.

    False for lists of sub-agents and of unsettled conversations: other indexes find their few rows sooner.
    """
    return (
        selection.order.key in _ORDERED_BY_INDEX
        and selection.parent is None
        and not selection.sub_agents
        and not _unsettled(selection)
    )


def _unsettled(selection: Selection) -> bool:
    """Return whether all matches are in the small index of conversations that a restarted server must recover."""
    return any(isinstance(part, StateIs) and not part.kinds & _SETTLED for part in conjuncts(selection.where))


def _in_index(condition: Condition, key: OrderKey) -> bool:
    """Return whether the index that is ordered by `key` contains the column that a condition tests."""
    match condition:
        case TimeCompares(field):
            return field == {OrderKey.UPDATED: TimeField.UPDATED, OrderKey.CREATED: TimeField.CREATED}.get(key)
        case IsArchived() | TextEquals(TextField.DIRECTORY):
            return key is OrderKey.UPDATED
        case _:
            return False


def _halves(selection: Selection, indexed: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    """Split a list into parts that are each sorted in the index; return the additional condition of each part.

    The index on update times begins with the column `archived`. So it contains first all conversations that are not
    archived, sorted by time, and then all archived ones, sorted by time. Returns `[()]`, one part without an additional
    condition, if the list need not be split.
    """
    if selection.order.key is OrderKey.CREATED or any(isinstance(part, IsArchived) for part in indexed):
        return [()]
    return [(IsArchived(archived=False),), (IsArchived(archived=True),)]


def _entries(
    selection: Selection, indexed: Sequence[Condition], after: ListPosition | None, limit: int, dialect: Dialect
) -> Query:
    """Return the query for the next `limit` entries of the index that satisfy the conditions `indexed`."""
    known = [clause_of(each, dialect) for each in indexed]
    wanted = joined(" AND ", "TRUE", [*_scope(selection), *known, *_between(selection, after, None)])
    key = selection.order.key
    sql = f"SELECT {key}, id FROM conversations WHERE {wanted.sql} {_ordered(selection)} LIMIT ?"  # noqa: S608
    return Query(sql, (*wanted.values, limit))


def _scope(selection: Selection) -> list[Clause]:
    clauses = [Clause("principal = ?", (selection.principal,)), Clause(NOT_DELETED)]
    if selection.parent is not None:
        clauses.append(Clause("parent_conversation_id = ?", (selection.parent,)))
    elif not selection.sub_agents:
        clauses.append(Clause("parent_conversation_id IS NULL"))
    if _unsettled(selection):
        clauses.append(Clause(f"({UNSETTLED})"))
    elif _has_index(selection) and selection.order.key is OrderKey.UPDATED:
        clauses.append(Clause("archived IN (0, 1)"))  # always true; lets the index on `archived` be used
    return clauses


def _between(selection: Selection, after: ListPosition | None, until: ListPosition | None) -> list[Clause]:
    key = selection.order.key
    beyond, up_to = ("<", ">=") if selection.order.descending else (">", "<=")
    clauses: list[Clause] = []
    if after is not None:
        clauses.append(Clause(f"({key}, id) {beyond} (?, ?)", (after.key, after.id)))
    if until is not None:
        clauses.append(Clause(f"({key}, id) {up_to} (?, ?)", (until.key, until.id)))
    return clauses


def _direction(selection: Selection) -> str:
    return "DESC" if selection.order.descending else "ASC"


def _ordered(selection: Selection) -> str:
    direction = _direction(selection)
    return f"ORDER BY {selection.order.key} {direction}, id {direction}"
