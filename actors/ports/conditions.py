"""Filters and orders for lists of conversations.

A filter is data: the SQL stores translate it to SQL, `matches` applies it to a record, and both give the same result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from actors.core.states import name_of
from actors.ports.records import ConversationRecord


class TextField(StrEnum):
    """The fields of a record, or of its profile, that contain text and can be filtered."""

    MODE = "mode"
    MODEL = "model"
    TITLE = "title"
    SLUG = "slug"
    DIRECTORY = "cwd"
    PARENT = "parent_conversation_id"
    FORKED_FROM = "forked_from"
    """Stored in the record's profile; the other fields are columns of the conversations' table."""


class TimeField(StrEnum):
    """The fields of a record that contain a time. The database columns have the same names."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    ARCHIVED = "archived_at"


class Comparison(StrEnum):
    EQUAL = "="
    BEFORE = "<"
    UP_TO = "<="
    AFTER = ">"
    FROM = ">="


class Every(Struct, frozen=True):
    """A condition that holds if all of `parts` hold, also if there are no parts."""

    parts: tuple[Condition, ...] = ()


class AnyOf(Struct, frozen=True):
    """A condition that holds if at least one of `parts` holds."""

    parts: tuple[Condition, ...]


class Negation(Struct, frozen=True):
    """A condition that holds if `part` does not hold."""

    part: Condition


class StateIs(Struct, frozen=True):
    """A condition on the conversation's state: it has one of these names, as returned by `core.states.name_of`."""

    kinds: frozenset[str]


class IsArchived(Struct, frozen=True):
    """A condition: the conversation is archived or, if `archived` is False, is not archived."""

    archived: bool


class TextEquals(Struct, frozen=True):
    """A condition: the text field equals this value; an unset field counts as ""."""

    field: TextField
    value: str


class TextContains(Struct, frozen=True):
    """A condition: the text field contains this text, regardless of case."""

    field: TextField
    folded: str
    """The text to look for, already folded with `str.casefold`."""


class IsWithin(Struct, frozen=True):
    """A condition: the conversation's working directory is this directory, or is beneath it."""

    directory: str


class TimeCompares(Struct, frozen=True):
    """A condition: the time field is set, and `comparison` holds between it and `ms` (milliseconds since the epoch)."""

    field: TimeField
    comparison: Comparison
    ms: int


class HasLabel(Struct, frozen=True):
    """A condition: the conversation has a label with this key and, unless `value` is None, with this value."""

    key: str
    value: str | None = None


Condition: TypeAlias = (
    Every | AnyOf | Negation | StateIs | IsArchived | TextEquals | TextContains | IsWithin | TimeCompares | HasLabel
)

EVERYTHING = Every()
UNARCHIVED = IsArchived(archived=False)


class OrderKey(StrEnum):
    """The fields of a record by which a list can be ordered. The database columns have the same names."""

    UPDATED = "updated_at"
    CREATED = "created_at"
    TITLE = "title"
    STATE_ENTERED = "state_updated_at"


class Order(Struct, frozen=True):
    """The order of a list. Conversations with equal keys are ordered by their ids, in the same direction."""

    key: OrderKey = OrderKey.UPDATED
    descending: bool = True


LATEST_FIRST = Order()


class Selection(Struct, frozen=True):
    """Which conversations a list contains, and in which order."""

    principal: str
    where: Condition = EVERYTHING
    order: Order = LATEST_FIRST
    parent: str | None = None
    """Only sub-agents of this conversation; None: only conversations that are no sub-agents."""
    sub_agents: bool = False
    """Whether the list contains the sub-agents of all conversations as well; then `parent` is None."""


class ListPosition(Struct, frozen=True):
    """A position in an ordered list: directly after the conversation with this key and id."""

    key: int | str
    id: str


class Listed(Struct, frozen=True):
    """A page of a list of conversations."""

    records: tuple[ConversationRecord, ...]
    more: ListPosition | None
    """The position at which the next page begins; None at the end of the list."""


_COMPARE: dict[Comparison, Callable[[int, int], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.BEFORE: operator.lt,
    Comparison.UP_TO: operator.le,
    Comparison.AFTER: operator.gt,
    Comparison.FROM: operator.ge,
}


def matches(condition: Condition, record: ConversationRecord) -> bool:
    match condition:
        case Every(parts):
            return all(matches(part, record) for part in parts)
        case AnyOf(parts):
            return any(matches(part, record) for part in parts)
        case Negation(part):
            return not matches(part, record)
        case StateIs(kinds):
            return name_of(record.state) in kinds
        case IsArchived(archived):
            return (record.archived_at is not None) == archived
        case TextEquals(field, value):
            return _text(record, field) == value
        case TextContains(field, folded):
            return folded in _text(record, field).casefold()
        case IsWithin(directory):
            return record.cwd == directory or record.cwd.startswith(beneath(directory))
        case TimeCompares(field, comparison, ms):
            at: int | None = getattr(record, field)
            return at is not None and _COMPARE[comparison](at, ms)
        case HasLabel(key, value):
            return key in record.labels if value is None else record.labels.get(key) == value


def place_of(record: ConversationRecord, order: Order) -> ListPosition:
    return ListPosition(getattr(record, order.key), record.id)


def rewritten(condition: Condition, change: Callable[[Condition], Condition]) -> Condition:
    """The condition with each leaf replaced by the result of `change`."""
    match condition:
        case Every(parts):
            return Every(tuple(rewritten(part, change) for part in parts))
        case AnyOf(parts):
            return AnyOf(tuple(rewritten(part, change) for part in parts))
        case Negation(part):
            return Negation(rewritten(part, change))
        case _:
            return change(condition)


def leaves(condition: Condition) -> Iterator[Condition]:
    """Yield the leaves of a condition: those conditions in it that have no parts."""
    match condition:
        case Every(parts) | AnyOf(parts):
            for part in parts:
                yield from leaves(part)
        case Negation(part):
            yield from leaves(part)
        case _:
            yield condition


def conjuncts(condition: Condition) -> tuple[Condition, ...]:
    """The conditions of which all must hold, from nested `Every` conditions too; otherwise the condition alone."""
    if isinstance(condition, Every):
        return tuple(part for each in condition.parts for part in conjuncts(each))
    return (condition,)


def beneath(directory: str) -> str:
    """The text with which all paths beneath a directory begin: the directory and a slash."""
    return directory.rstrip("/") + "/"


def _text(record: ConversationRecord, field: TextField) -> str:
    return getattr(record.profile if field is TextField.FORKED_FROM else record, field) or ""
