"""What a list of conversations can be narrowed to and ordered by.

A condition is data: the SQLite store translates it to SQL, `matches` judges a record by it, and both select the same.
"""

from __future__ import annotations

import operator
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from actors.core.states import name_of
from actors.ports.store.records import ConversationRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TextField(StrEnum):
    """A field of a record that holds a text, by its name there, or in its profile."""

    MODE = "mode"
    MODEL = "model"
    TITLE = "title"
    SLUG = "slug"
    DIRECTORY = "cwd"
    PARENT = "parent_conversation_id"
    FORKED_FROM = "forked_from"
    """The conversation that a fork comes from, in its profile; all others are columns."""


class TimeField(StrEnum):
    """A field of a record that holds a time, by its name there, which is also that of its column."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    ARCHIVED = "archived_at"


class Comparison(StrEnum):
    """How a time is compared."""

    EQUAL = "="
    BEFORE = "<"
    UP_TO = "<="
    AFTER = ">"
    FROM = ">="


class Every(Struct, frozen=True):
    """All of the conditions hold; without any, this is true."""

    parts: tuple[Condition, ...] = ()


class AnyOf(Struct, frozen=True):
    """At least one of the conditions holds."""

    parts: tuple[Condition, ...]


class Negation(Struct, frozen=True):
    """The condition does not hold."""

    part: Condition


class StateIs(Struct, frozen=True):
    """The state is one of these kinds, named as by `name_of`."""

    kinds: frozenset[str]


class IsArchived(Struct, frozen=True):
    """Whether the conversation is archived is as wanted."""

    archived: bool


class TextEquals(Struct, frozen=True):
    """The text is this one; an unset text is ""."""

    field: TextField
    value: str


class TextContains(Struct, frozen=True):
    """The text contains this one, regardless of case."""

    field: TextField
    folded: str
    """What to look for, as `str.casefold` makes it."""


class IsWithin(Struct, frozen=True):
    """The working directory is this one, or one beneath it."""

    directory: str


class TimeCompares(Struct, frozen=True):
    """The time compares like this with one in milliseconds since the epoch; never true of a time that is not set."""

    field: TimeField
    comparison: Comparison
    ms: int


class HasLabel(Struct, frozen=True):
    """There is a label with this key and, unless None, this value."""

    key: str
    value: str | None = None


Condition: TypeAlias = (
    Every | AnyOf | Negation | StateIs | IsArchived | TextEquals | TextContains | IsWithin | TimeCompares | HasLabel
)

EVERYTHING = Every()
UNARCHIVED = IsArchived(archived=False)


class OrderKey(StrEnum):
    """What a list is ordered by, by its name in the record, which is also that of its column."""

    UPDATED = "updated_at"
    CREATED = "created_at"
    TITLE = "title"
    STATE_ENTERED = "state_updated_at"


class Order(Struct, frozen=True):
    """The order of a list; conversations with the same key are ordered by their ids, in the same direction."""

    key: OrderKey = OrderKey.UPDATED
    descending: bool = True


LATEST_FIRST = Order()


class Selection(Struct, frozen=True):
    """Which conversations a list has, and in which order."""

    principal: str
    where: Condition = EVERYTHING
    order: Order = LATEST_FIRST
    parent: str | None = None
    """Only sub-agents of this conversation; None: conversations that are no sub-agents."""
    sub_agents: bool = False
    """Whether sub-agents of all conversations are listed among the others; then `parent` is None."""


class ListPosition(Struct, frozen=True):
    """A position in an ordered list: after the conversation with this key and id."""

    key: int | str
    id: str


class Listed(Struct, frozen=True):
    """A part of a list."""

    records: tuple[ConversationRecord, ...]
    more: ListPosition | None
    """Where the list goes on; None at its end."""


_COMPARE: dict[Comparison, Callable[[int, int], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.BEFORE: operator.lt,
    Comparison.UP_TO: operator.le,
    Comparison.AFTER: operator.gt,
    Comparison.FROM: operator.ge,
}


def matches(condition: Condition, record: ConversationRecord) -> bool:
    """Return whether a record meets a condition."""
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


def selects(selection: Selection, record: ConversationRecord) -> bool:
    """Return whether a list has a record."""
    return (
        record.principal == selection.principal
        and (selection.sub_agents or record.parent_conversation_id == selection.parent)
        and matches(selection.where, record)
    )


def place_of(record: ConversationRecord, order: Order) -> ListPosition:
    """Return the position of a record in a list of this order."""
    return ListPosition(getattr(record, order.key), record.id)


def rewritten(condition: Condition, change: Callable[[Condition], Condition]) -> Condition:
    """Return a condition with `change` applied to each part that has no parts itself."""
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
    """Yield the parts of a condition that have no parts themselves."""
    match condition:
        case Every(parts) | AnyOf(parts):
            for part in parts:
                yield from leaves(part)
        case Negation(part):
            yield from leaves(part)
        case _:
            yield condition


def conjuncts(condition: Condition) -> tuple[Condition, ...]:
    """Return the conditions that must all hold."""
    if isinstance(condition, Every):
        return tuple(part for each in condition.parts for part in conjuncts(each))
    return (condition,)


def beneath(directory: str) -> str:
    """Return what the paths beneath a directory begin with."""
    return directory.rstrip("/") + "/"


def _text(record: ConversationRecord, field: TextField) -> str:
    return getattr(record.profile if field is TextField.FORKED_FROM else record, field) or ""
