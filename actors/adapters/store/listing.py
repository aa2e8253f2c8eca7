"""Builds the queries for lists of conversations and audit entries from filters (see `matches` in the port).

If there is an index in the order of the list, the list is read in windows, each with a fixed number of successive index
entries. One query finds where the next window ends; a second query searches the rows in the window. The cost of a call
is therefore bounded even if no row matches. Every condition is true or false, never NULL, so that its negation is its
exact opposite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_, ge, gt, le, lt, or_
from typing import Any

from msgspec import json
from peewee import JOIN, SQL, Case, Join, Select, Tuple, fn

from actors.adapters.store.models import (
    FORKED_FROM,
    IS_UNSETTLED,
    LOG_PRINCIPAL,
    Audit,
    Log,
    Profiles,
    Prompts,
    Records,
)
from actors.adapters.store.query import PerDatabase, Statement, exists, undeleted
from actors.adapters.store.rows import RECORD, Row
from actors.ports import store as port
from actors.ports.records import AuditFilter, AuditPlace, Outcome

WINDOW = 2_000  # number of index entries that one query searches if matching needs columns outside the index
CONTAINS = "contains_folded"  # a function added to SQLite, whose own functions fold the case of ASCII letters only
FOLD = "bedrock_fold"  # a function in PostgreSQL's schema; PostgreSQL's `lower` depends on the locale

# States in which a conversation needs no recovery after a restart, except that idle sub-agents need it, too.
_SETTLED = frozenset({"idle", "context_exhausted", "completed", "failed"})
_ORDERED_BY_INDEX = frozenset({port.OrderKey.UPDATED, port.OrderKey.CREATED})
_NULLABLE_TEXT = frozenset({port.TextField.SLUG, port.TextField.PARENT})
_TRUE, _FALSE = SQL("(1 = 1)"), SQL("(1 = 0)")

# The state is read as bytes from SQLite, because a damaged state may not be valid UTF-8.
_STATE_DATA = PerDatabase(Records.state_data.cast("BLOB"), Records.state_data)
RECORD_COLUMNS = [_STATE_DATA if name == "state_data" else getattr(Records, name) for name in RECORD]
# The query for conversations, with the columns in RECORD, the system prompt and the profile.
RECORDS = (
    Records.select(*RECORD_COLUMNS, Prompts.text, Profiles.profile)
    .join(Prompts, JOIN.LEFT_OUTER, on=Prompts.conversation_id == Records.id)
    .switch(Records)
    .join(Profiles, JOIN.LEFT_OUTER, on=Profiles.conversation_id == Records.id)
)

# SQLite would prefer any other index to the small index of unsettled conversations, but it does not reorder a cross
# join.
_UNSETTLED = Records.select(Records.id).where(IS_UNSETTLED).alias("unsettled")

# Checks that the profile is valid JSON, because invalid JSON would make the whole list fail.
_SQLITE_ORIGIN = Case(None, [(fn.json_valid(Profiles.profile), fn.json_extract(Profiles.profile, "$.forked_from"))])
_PROFILE = (Profiles.conversation_id == Records.id,)
_FORKED_FROM = fn.coalesce(
    PerDatabase(Profiles.select(_SQLITE_ORIGIN).where(*_PROFILE), Profiles.select(FORKED_FROM).where(*_PROFILE)), ""
)


def condition_of(condition: port.Condition) -> Any:
    """The SQL expression for a condition on a row of the `conversations` table."""
    match condition:
        case port.Every(parts):
            return reduce(and_, map(condition_of, parts), _TRUE)
        case port.AnyOf(parts):
            return reduce(or_, map(condition_of, parts), _FALSE)
        case port.Negation(part):
            return ~condition_of(part)
        case port.StateIs(kinds):
            return Records.state.in_(sorted(kinds)) if kinds else _FALSE
        case port.IsArchived(archived):
            return Records.archived == int(archived)
        case port.TextEquals(field, value):
            return _text(field) == value
        case port.TextContains(field, folded):
            text = _text(field)
            return PerDatabase(
                getattr(fn, CONTAINS)(text.cast("BLOB"), folded), fn.strpos(getattr(fn, FOLD)(text), folded) > 0
            )
        case port.IsWithin(directory):
            start = port.beneath(directory)
            return (Records.cwd == directory) | (fn.substr(Records.cwd, 1, len(start)) == start)
        case port.TimeCompares(field, comparison, ms):
            column = getattr(Records, field)
            compared = port.COMPARE[comparison](column, ms)
            return column.is_null(False) & compared if field is port.TimeField.ARCHIVED else compared
        case port.HasLabel(key, value):
            return PerDatabase(_sqlite_label(key, value), _postgres_label(key, value))


def _text(field: port.TextField) -> Any:
    if field is port.TextField.FORKED_FROM:
        return _FORKED_FROM
    column = getattr(Records, field)
    return fn.coalesce(column, "") if field in _NULLABLE_TEXT else column


def _sqlite_label(key: str, value: str | None) -> Any:
    labels = fn.json_each(Records.labels)
    same = SQL("key = ?", [key]) if value is None else SQL("key = ? AND value = ?", [key, value])
    found = exists(Select([labels], [SQL("1")]).where(same))
    valid = (Records.labels != "{}") & fn.json_valid(Records.labels)
    return Case(None, [(valid, found)], 0)


def _postgres_label(key: str, value: str | None) -> Any:
    """Search for the encoded pair. This is exact, because a string has only one encoding in the JSON of labels."""
    pair = json.encode(key).decode() + ":" + ("" if value is None else json.encode(value).decode())
    labels = Records.labels
    return (fn.strpos(labels, "{" + pair) == 1) | (fn.strpos(labels, "," + pair) > 0)


def window_end(selection: port.Selection, after: port.ListPosition | None, limit: int) -> Statement | None:
    """The query for the (key, id) at which the next window of index entries ends; None if the list has no windows.

    The query finds no row if the next window is the last one. `limit` is the page size.
    """
    if not _has_index(selection):
        return None
    parts = port.conjuncts(selection.where)
    indexed = [part for part in parts if _in_index(part, selection.order.key)]
    size = limit if len(indexed) == len(parts) else WINDOW
    halves = [_entries(selection, [*indexed, *more], after, size) for more in _halves(selection, indexed)]
    wrapped = [Select([half.alias("half")], [SQL("*")]) for half in halves]  # SQLite has no UNION of ordered queries
    whole = (wrapped[0] if len(wrapped) == 1 else wrapped[0].union_all(wrapped[1])).alias("whole")
    place = whole.c[selection.order.key.value], whole.c["id"]
    ordered = [each.desc() if selection.order.descending else each.asc() for each in place]
    return Statement(Select([whole], place).order_by(*ordered).limit(1).offset(size - 1))


def page(
    selection: port.Selection, after: port.ListPosition | None, until: port.ListPosition | None, limit: int
) -> Statement:
    """The query for one page of the list, after the position `after` and up to `until`; None means no bound."""
    wanted = [*_scope(selection), condition_of(selection.where), *_between(selection, after, until)]
    order = _ordered(selection)
    if not _has_index(selection):  # sorts only the ids, not whole rows
        source = Join(_UNSETTLED, Records, JOIN.CROSS) if _unsettled(selection) else Records
        ids = Select([source], [Records.id]).where(*wanted).order_by(*order).limit(limit).alias("ids")
        wanted = [Records.id.in_(Select([ids], [ids.c["id"]]))]
    return Statement(RECORDS.where(*wanted).order_by(*order).limit(limit))


def place_of(row: Row, selection: port.Selection) -> port.ListPosition:
    """The position of a row in the list; the next page continues after it."""
    return port.ListPosition(row[RECORD.index(selection.order.key)], row[RECORD.index("id")])


def refuse_broken_texts(row: Row) -> None:
    """Raise UnicodeEncodeError if a string in the row has surrogates, which means that invalid UTF-8 was stored."""
    for value in row:
        if isinstance(value, str):
            value.encode()


def _has_index(selection: port.Selection) -> bool:
    """Whether the list is read in the order of an index.

    Sub-agents and unsettled conversations are found sooner through other indexes.
    """
    return (
        selection.order.key in _ORDERED_BY_INDEX
        and selection.parent is None
        and not selection.sub_agents
        and not _unsettled(selection)
    )


def _unsettled(selection: port.Selection) -> bool:
    """Whether all matches are in the small index of conversations that a restarted server must recover."""
    return any(isinstance(part, port.StateIs) and not part.kinds & _SETTLED for part in port.conjuncts(selection.where))


def _in_index(condition: port.Condition, key: port.OrderKey) -> bool:
    match condition:
        case port.TimeCompares(field):
            return field.value == key.value
        case port.IsArchived() | port.TextEquals(port.TextField.DIRECTORY):
            return key is port.OrderKey.UPDATED
        case _:
            return False


def _halves(selection: port.Selection, indexed: Sequence[port.Condition]) -> list[tuple[port.Condition, ...]]:
    """Split a list into parts that are each sorted in the index; return the additional condition for each part.

    The index on update times begins with `archived`: first all conversations that are not archived, by time, then the
    archived ones. Returns `[()]` if there is nothing to split.
    """
    if selection.order.key is port.OrderKey.CREATED or any(isinstance(part, port.IsArchived) for part in indexed):
        return [()]
    return [(port.IsArchived(archived=False),), (port.IsArchived(archived=True),)]


def _entries(
    selection: port.Selection, indexed: Iterable[port.Condition], after: port.ListPosition | None, limit: int
) -> Any:
    wanted = [*_scope(selection), *map(condition_of, indexed), *_between(selection, after, None)]
    return Records.select(*_place(selection)).where(*wanted).order_by(*_ordered(selection)).limit(limit)


def _scope(selection: port.Selection) -> list[Any]:
    conditions = [Records.principal == selection.principal, undeleted(Records.id)]
    if selection.parent is not None:
        conditions.append(Records.parent_conversation_id == selection.parent)
    elif not selection.sub_agents:
        conditions.append(Records.parent_conversation_id.is_null())
    if _unsettled(selection):
        conditions.append(Records.id == _UNSETTLED.c["id"])
    elif _has_index(selection) and selection.order.key is port.OrderKey.UPDATED:
        conditions.append(SQL("archived IN (0, 1)"))  # always true, but makes the index on `archived` usable
    return conditions


def _between(selection: port.Selection, after: port.ListPosition | None, until: port.ListPosition | None) -> list[Any]:
    place = Tuple(*_place(selection))
    beyond, up_to = (lt, ge) if selection.order.descending else (gt, le)
    conditions: list[Any] = []
    if after is not None:
        conditions.append(beyond(place, Tuple(after.key, after.id)))
    if until is not None:
        conditions.append(up_to(place, Tuple(until.key, until.id)))
    return conditions


def _place(selection: port.Selection) -> tuple[Any, Any]:
    return getattr(Records, selection.order.key), Records.id


def _ordered(selection: port.Selection) -> list[Any]:
    return [each.desc() if selection.order.descending else each.asc() for each in _place(selection)]


# --- the audit trail


def logged_query(wanted: AuditFilter, after: AuditPlace | None, limit: int) -> Statement | None:
    """The query for the matching log rows, oldest first, with the parameters of `logged_entry` as columns.

    None if `wanted` selects only refused calls.
    """
    if wanted.outcome is Outcome.REFUSED:
        return None
    place = Log.at, Log.conversation_id, Log.step
    where = [Log.audit.is_null(False), undeleted(Log.conversation_id), *_bounds(Log, wanted)]
    if wanted.principal is not None:
        where.append(_sent_by(wanted.principal))
    if after is not None:
        beyond = Tuple(*place) > Tuple(after.at, after.id, after.number)
        where.append(Log.at > after.at if after.source else beyond)
    return Statement(Log.select(*place, Log.audit).where(*where).order_by(*place).limit(limit))


def unlogged_query(wanted: AuditFilter, after: AuditPlace | None, limit: int) -> Statement:
    """The query for the rows of the `audit` table that match `wanted`, oldest first."""
    where = _bounds(Audit, wanted)
    if wanted.principal is not None:
        where.append(Audit.principal == wanted.principal)
    if wanted.outcome is not None:
        where.append(Audit.outcome == wanted.outcome.value)
    place = Audit.at, Audit.id
    if after is not None:
        where.append(Tuple(*place) > Tuple(after.at, after.number if after.source else -1))
    return Statement(Audit.select().where(*where).order_by(*place).limit(limit))


def _sent_by(principal: str) -> Any:
    """The condition that a log row's command was sent by `principal` ("" for a command without a sender)."""
    found = Case(None, [(fn.json_valid(Log.audit), fn.json_extract(Log.audit, "$.origin.principal"))])
    return PerDatabase(found == principal if principal else found.is_null(), principal == LOG_PRINCIPAL)


def _bounds(table: Any, wanted: AuditFilter) -> list[Any]:
    where = [table.at >= wanted.since]
    if wanted.until is not None:
        where.append(table.at < wanted.until)
    if wanted.conversation is not None:
        where.append(table.conversation_id == wanted.conversation)
    return where
