"""The fields that filters of conversations can use, such as `title`, and their conversion to the store's conditions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, get_args

from actors.core.context import Mode
from actors.core.states import QUIET, State
from actors.ports.conditions import (
    Comparison,
    Condition,
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
)
from server.contract.filters.syntax import FilterError, Restriction, Value
from server.contract.resource_names import parse_conversation, parse_model

if TYPE_CHECKING:
    from collections.abc import Callable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")
_NANOS_PER_MS = 1_000_000
_NEVER = -1
"""A time in milliseconds that no conversation has. A comparison with this time is never true."""


def _kind(state: type) -> str:
    return str(state.__struct_config__.tag)  # type: ignore[attr-defined]


_KINDS = tuple(map(_kind, get_args(State)))
_BUSY = frozenset(_KINDS) - frozenset(map(_kind, QUIET))


def meaning(restriction: Restriction) -> Condition:
    """Convert a restriction, such as `title:"draft"`, to a condition that the store evaluates.

    Raises FilterError if the field, the operator or the value is invalid.
    """
    name, *keys = restriction.path
    if name == "labels":
        return _label(restriction)
    make = FIELDS.get(name)
    if make is None:
        known = ", ".join((*FIELDS, "labels"))
        raise FilterError(restriction.at, f"there is no field {name[:20]!r}; there are {known}")
    if keys:
        raise FilterError(restriction.at, f"{name} has no fields of its own")
    return make(restriction)


# --- kinds of fields --------------------------------------------------------------------------------------------------


def _operator(restriction: Restriction, *allowed: str) -> str:
    """Return the operator of a restriction. Raises FilterError if the operator is not among the allowed ones."""
    if restriction.operator not in allowed:
        name = ".".join(restriction.path)
        raise FilterError(restriction.at, f"{name[:30]} can be compared with {' '.join(allowed)}")
    return restriction.operator


def _wanted(condition: Condition, operator: str) -> Condition:
    return Negation(condition) if operator == "!=" else condition


def _is_any(value: Value) -> bool:
    return value.text == "*" and not value.quoted


def _choice(value: Value, choices: tuple[str, ...], prefix: str) -> str:
    """Return the one of `choices` that a value names, with or without the prefix that the API's enum values have.

    Raises FilterError if the value names none of them.
    """
    chosen = value.text.lower().removeprefix(prefix)
    if chosen not in choices:
        raise FilterError(value.at, f"must be one of {', '.join(choices)}")
    return chosen


def _flag(restriction: Restriction) -> bool:
    """Return the boolean that the field must have. Raises FilterError if the operator or the value is invalid."""
    operator, value = _operator(restriction, "=", "!="), restriction.value
    return (_choice(value, ("true", "false"), "") == "true") == (operator == "=")


def _state(restriction: Restriction) -> Condition:
    operator = _operator(restriction, "=", "!=")
    return _wanted(StateIs(frozenset({_choice(restriction.value, _KINDS, "state_kind_")})), operator)


def _busy(restriction: Restriction) -> Condition:
    return StateIs(_BUSY if _flag(restriction) else frozenset(_KINDS) - _BUSY)


def _archived(restriction: Restriction) -> Condition:
    return IsArchived(_flag(restriction))


def _mode(restriction: Restriction) -> Condition:
    operator = _operator(restriction, "=", "!=")
    mode = _choice(restriction.value, tuple(mode.value for mode in Mode), "mode_")
    return _wanted(TextEquals(TextField.MODE, mode), operator)


def _text(field: TextField) -> Callable[[Restriction], Condition]:
    """Return the function that converts restrictions on a text field.

    The operator `:` means "contains, ignoring case".
    """

    def make(restriction: Restriction) -> Condition:
        operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
        if operator != ":":
            return _wanted(TextEquals(field, value.text), operator)
        return _set(field) if _is_any(value) else TextContains(field, value.text.casefold())

    return make


def _set(field: TextField) -> Condition:
    return Negation(TextEquals(field, ""))


def _model(restriction: Restriction) -> Condition:
    value = restriction.value
    named = restriction._replace(value=value._replace(text=parse_model(value.text) or value.text))
    return _text(TextField.MODEL)(named)


def _directory(restriction: Restriction) -> Condition:
    operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
    if not value.text.startswith("/"):
        raise FilterError(value.at, "must be an absolute path on the server")
    return IsWithin(value.text) if operator == ":" else _wanted(TextEquals(TextField.DIRECTORY, value.text), operator)


def _conversation(field: TextField) -> Callable[[Restriction], Condition]:
    """Return the function that converts restrictions on a field whose value is the name of a conversation.

    The returned function raises FilterError for an invalid name.
    """

    def make(restriction: Restriction) -> Condition:
        operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
        if operator == ":" and _is_any(value):
            return _set(field)
        conversation = parse_conversation(value.text)
        if conversation is None:
            raise FilterError(value.at, "must be conversations/{conversation}")
        return _wanted(TextEquals(field, conversation), operator)

    return make


def _time(field: TimeField) -> Callable[[Restriction], Condition]:
    def make(restriction: Restriction) -> Condition:
        operator = _operator(restriction, "=", "!=", "<", "<=", ">", ">=", ":")
        if operator == ":":
            if not _is_any(restriction.value):
                raise FilterError(restriction.value.at, "after : a time can only be *, which means that it is set")
            return TimeCompares(field, Comparison.FROM, 0)
        comparison = Comparison.EQUAL if operator == "!=" else Comparison(operator)
        return _wanted(TimeCompares(field, comparison, _milliseconds(restriction.value, comparison)), operator)

    return make


def _milliseconds(value: Value, comparison: Comparison) -> int:
    """Return the time in a filter as whole milliseconds since 1970, with fractions rounded to suit this comparison.

    Stored times are whole milliseconds, so a fraction is rounded in the direction that does not change which of them
    match. With `=`, a time with a fraction matches none, and the result is _NEVER. Raises FilterError if the value is
    not a time.
    """
    found = _TIME.fullmatch(value.text)
    try:
        if found is None:
            raise ValueError
        date, clock, fraction, offset = found.groups()
        seconds = (datetime.fromisoformat(f"{date}T{clock}{offset.upper()}") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        raise FilterError(value.at, "must be a time as in 2026-01-31T12:00:00Z, with Z or an offset") from None
    ms, rest = divmod(int((fraction or "").ljust(9, "0")), _NANOS_PER_MS)
    if rest and comparison is Comparison.EQUAL:
        return _NEVER
    up = rest and comparison in (Comparison.BEFORE, Comparison.FROM)
    return seconds * 1000 + ms + bool(up)


def _label(restriction: Restriction) -> Condition:
    """Convert a restriction on labels: `labels:key`, `labels.key:*`, `labels.key = "value"` or `labels.key != "value"`.

    Raises FilterError for any other form.
    """
    _, *keys = restriction.path
    operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
    if not keys and operator == ":" and not _is_any(value):
        return HasLabel(value.text)
    if len(keys) != 1:
        raise FilterError(restriction.at, 'write labels:key or labels.key = "value"; quote a key with dots or spaces')
    if operator == ":" and _is_any(value):
        return HasLabel(keys[0])
    return _wanted(HasLabel(keys[0], value.text), operator)


FIELDS: dict[str, Callable[[Restriction], Condition]] = {
    "state": _state,
    "busy": _busy,
    "mode": _mode,
    "model": _model,
    "title": _text(TextField.TITLE),
    "slug": _text(TextField.SLUG),
    "working_directory": _directory,
    "create_time": _time(TimeField.CREATED),
    "update_time": _time(TimeField.UPDATED),
    "archive_time": _time(TimeField.ARCHIVED),
    "archived": _archived,
    "parent": _conversation(TextField.PARENT),
    "forked_from": _conversation(TextField.FORKED_FROM),
}
"""For each field except labels, the function that converts restrictions on the field to conditions."""
