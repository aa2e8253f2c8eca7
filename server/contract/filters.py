"""Filters and orders for lists of conversations, in a subset of the filter language of Google's AIP-160 and AIP-132.

A filter consists of restrictions such as `title:"draft"`, connected by AND, OR, NOT and parentheses. As in AIP-160, OR
binds tighter than AND, and two restrictions side by side are connected by AND. Each restriction is converted to a
condition that the store evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn, get_args

from actors.core.context import Mode
from actors.core.states import INACTIVE, State
from actors.ports import store
from server.contract.resource_names import parse_conversation, parse_model

_KEYS = {"update_time": store.OrderKey.UPDATED, "create_time": store.OrderKey.CREATED, "title": store.OrderKey.TITLE}


def order_of(text: str) -> store.Order:
    """The sort order for a validated string such as `create_time desc`; the default order for ""."""
    name, _, direction = text.strip().partition(" ")
    return store.Order(_KEYS[name], direction.strip() == "desc") if name else store.LATEST_FIRST


MAX_DEPTH = 32
MAX_RESTRICTIONS = 100

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\s()\"'.,=<>!:]+")
_OPERATOR = re.compile(r"!=|<=|>=|[=<>:]")
# Matches an unquoted value. It may contain dots and colons, so that times, paths and model names need no quotes.
_VALUE = re.compile(r"[^\s()\"'=<>!,]+")
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WORDS = frozenset({"AND", "OR", "NOT"})


class FilterError(Exception):
    def __init__(self, at: int, text: str) -> None:
        super().__init__(f"at character {at + 1}: {text}")


class Value(NamedTuple):
    text: str
    at: int
    quoted: bool = False


class Restriction(NamedTuple):
    path: tuple[str, ...]
    """The name of the field; for a map, followed by the key."""
    at: int
    operator: str
    value: Value


def parse(text: str, meaning: Callable[[Restriction], store.Condition]) -> store.Condition:
    """Parse a filter; `meaning` converts each restriction. An empty filter matches everything. Raises FilterError."""
    parser = _Parser(text, meaning)
    if parser.at_end():
        return store.Every()
    condition = parser.expression(0)
    if not parser.at_end():
        parser.fail("expected AND, OR or the end of the filter")
    return condition


class _Parser:
    """A recursive descent parser over the characters of a filter. Its methods raise FilterError."""

    def __init__(self, text: str, meaning: Callable[[Restriction], store.Condition]) -> None:
        self._text = text
        self._meaning = meaning
        self._at = 0
        self._restrictions = 0
        self._skip()

    def at_end(self) -> bool:
        return self._at == len(self._text)

    def fail(self, text: str, at: int | None = None) -> NoReturn:
        raise FilterError(self._at if at is None else at, text)

    def expression(self, depth: int) -> store.Condition:
        parts = [self._alternatives(depth)]
        while not self.at_end() and not self._sees(")"):
            self._word("AND")
            parts.append(self._alternatives(depth))
        return parts[0] if len(parts) == 1 else store.Every(tuple(parts))

    def _alternatives(self, depth: int) -> store.Condition:
        parts = [self._term(depth)]
        while self._word("OR"):
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else store.AnyOf(tuple(parts))

    def _term(self, depth: int) -> store.Condition:
        negated = self._word("NOT") or self._takes("-")
        if not self._takes("("):
            part = self._restriction()
        elif depth == MAX_DEPTH:
            self.fail(f"parentheses may be nested at most {MAX_DEPTH} deep", self._at - 1)
        else:
            part = self.expression(depth + 1)
            if not self._takes(")"):
                self.fail("expected a closing parenthesis")
        return store.Negation(part) if negated else part

    def _restriction(self) -> store.Condition:
        self._restrictions += 1
        if self._restrictions > MAX_RESTRICTIONS:
            self.fail(f"a filter may have at most {MAX_RESTRICTIONS} restrictions")
        at, path = self._at, [self._name()]
        while self._takes("."):
            path.append(self._string() or self._name())
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            self.fail("expected one of = != < <= > >= : after the field name")
        self._go_to(operator.end())
        return self._meaning(Restriction(tuple(path), at, operator.group(), self._value()))

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None or found.group() in _WORDS:
            self.fail("expected a field name")
        self._go_to(found.end())
        return found.group()

    def _value(self) -> Value:
        at = self._at
        if (text := self._string()) is not None:
            return Value(text, at, quoted=True)
        found = _VALUE.match(self._text, at)
        if found is None:
            self.fail("expected a value; put strings in quotes")
        self._go_to(found.end())
        return Value(found.group(), at)

    def _string(self) -> str | None:
        if not self._text.startswith(('"', "'"), self._at):
            return None
        found = _STRING.match(self._text, self._at)
        if found is None:
            self.fail("the closing quote is missing")
        self._go_to(found.end())
        return _ESCAPED.sub(r"\1", found.group(1) if found.group(2) is None else found.group(2))

    def _sees(self, character: str) -> bool:
        return self._text.startswith(character, self._at)

    def _takes(self, character: str) -> bool:
        found = self._sees(character)
        if found:
            self._go_to(self._at + 1)
        return found

    def _word(self, word: str) -> bool:
        found = _NAME.match(self._text, self._at)
        if found is None or found.group() != word:
            return False
        self._go_to(found.end())
        return True

    def _go_to(self, at: int) -> None:
        self._at = at
        self._skip()

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None  # noqa: S101 -- the pattern matches the empty string
        self._at = space.end()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")
_NANOS_PER_MS = 1_000_000
# A time in milliseconds that no conversation has. A comparison with this time is never true.
_NEVER = -1


def _kind(state: type) -> str:
    return str(state.__struct_config__.tag)  # type: ignore[attr-defined]


_KINDS = tuple(map(_kind, get_args(State)))
_BUSY = frozenset(_KINDS) - frozenset(map(_kind, INACTIVE))


def meaning(restriction: Restriction) -> store.Condition:
    """Convert a restriction, such as `title:"draft"`. Raises FilterError for an invalid field, operator or value."""
    name, *keys = restriction.path
    if name == "labels":
        return _label(restriction)
    make = FIELDS.get(name)
    if make is None:
        known = ", ".join((*FIELDS, "labels"))
        raise FilterError(restriction.at, f"unknown field {name[:20]!r}; known fields: {known}")
    if keys:
        raise FilterError(restriction.at, f"{name} has no fields")
    return make(restriction)


# --- kinds of fields --------------------------------------------------------------------------------------------------


def _operator(restriction: Restriction, *allowed: str) -> str:
    if restriction.operator not in allowed:
        name = ".".join(restriction.path)
        raise FilterError(restriction.at, f"{name[:30]} supports only {' '.join(allowed)}")
    return restriction.operator


def _wanted(condition: store.Condition, operator: str) -> store.Condition:
    return store.Negation(condition) if operator == "!=" else condition


def _is_any(value: Value) -> bool:
    return value.text == "*" and not value.quoted


def _choice(value: Value, choices: tuple[str, ...], prefix: str) -> str:
    chosen = value.text.lower().removeprefix(prefix)
    if chosen not in choices:
        raise FilterError(value.at, f"must be one of {', '.join(choices)}")
    return chosen


def _flag(restriction: Restriction) -> bool:
    operator, value = _operator(restriction, "=", "!="), restriction.value
    return (_choice(value, ("true", "false"), "") == "true") == (operator == "=")


def _state(restriction: Restriction) -> store.Condition:
    operator = _operator(restriction, "=", "!=")
    return _wanted(store.StateIs(frozenset({_choice(restriction.value, _KINDS, "state_kind_")})), operator)


def _busy(restriction: Restriction) -> store.Condition:
    return store.StateIs(_BUSY if _flag(restriction) else frozenset(_KINDS) - _BUSY)


def _archived(restriction: Restriction) -> store.Condition:
    return store.IsArchived(_flag(restriction))


def _mode(restriction: Restriction) -> store.Condition:
    operator = _operator(restriction, "=", "!=")
    mode = _choice(restriction.value, tuple(mode.value for mode in Mode), "mode_")
    return _wanted(store.TextEquals(store.TextField.MODE, mode), operator)


def _text(field: store.TextField) -> Callable[[Restriction], store.Condition]:
    """Make the function that converts restrictions on a text field; `:` means "contains, ignoring case"."""

    def make(restriction: Restriction) -> store.Condition:
        operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
        if operator != ":":
            return _wanted(store.TextEquals(field, value.text), operator)
        return _set(field) if _is_any(value) else store.TextContains(field, value.text.casefold())

    return make


def _set(field: store.TextField) -> store.Condition:
    return store.Negation(store.TextEquals(field, ""))


def _model(restriction: Restriction) -> store.Condition:
    value = restriction.value
    named = restriction._replace(value=value._replace(text=parse_model(value.text) or value.text))
    return _text(store.TextField.MODEL)(named)


def _directory(restriction: Restriction) -> store.Condition:
    operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
    if not value.text.startswith("/"):
        raise FilterError(value.at, "must be an absolute path on the server")
    return (
        store.IsWithin(value.text)
        if operator == ":"
        else _wanted(store.TextEquals(store.TextField.DIRECTORY, value.text), operator)
    )


def _conversation(field: store.TextField) -> Callable[[Restriction], store.Condition]:
    """Make the function that converts restrictions on a conversation's name.

    It raises FilterError for an invalid name.
    """

    def make(restriction: Restriction) -> store.Condition:
        operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
        if operator == ":" and _is_any(value):
            return _set(field)
        conversation = parse_conversation(value.text)
        if conversation is None:
            raise FilterError(value.at, "must be conversations/{conversation}")
        return _wanted(store.TextEquals(field, conversation), operator)

    return make


def _time(field: store.TimeField) -> Callable[[Restriction], store.Condition]:
    def make(restriction: Restriction) -> store.Condition:
        operator = _operator(restriction, "=", "!=", "<", "<=", ">", ">=", ":")
        if operator == ":":
            if not _is_any(restriction.value):
                raise FilterError(restriction.value.at, "a time field supports only :*, which means that it is set")
            return store.TimeCompares(field, store.Comparison.FROM, 0)
        comparison = store.Comparison.EQUAL if operator == "!=" else store.Comparison(operator)
        return _wanted(store.TimeCompares(field, comparison, _milliseconds(restriction.value, comparison)), operator)

    return make


def _milliseconds(value: Value, comparison: store.Comparison) -> int:
    """A filter's time in whole milliseconds since 1970. Raises FilterError.

    A fraction of a millisecond is rounded so that the comparison matches the same stored times. No stored time has such
    a fraction, so the result for `=` is _NEVER.
    """
    found = _TIME.fullmatch(value.text)
    try:
        if found is None:
            raise ValueError
        date, clock, fraction, offset = found.groups()
        seconds = (datetime.fromisoformat(f"{date}T{clock}{offset.upper()}") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        raise FilterError(value.at, "must be a time such as 2026-01-31T12:00:00Z, with Z or an offset") from None
    ms, rest = divmod(int((fraction or "").ljust(9, "0")), _NANOS_PER_MS)
    if rest and comparison is store.Comparison.EQUAL:
        return _NEVER
    up = rest and comparison in (store.Comparison.BEFORE, store.Comparison.FROM)
    return seconds * 1000 + ms + bool(up)


def _label(restriction: Restriction) -> store.Condition:
    """Convert `labels:key`, `labels.key:*`, `labels.key = "value"` or `labels.key != "value"`.

    Raises FilterError for any other form.
    """
    _, *keys = restriction.path
    operator, value = _operator(restriction, "=", "!=", ":"), restriction.value
    if not keys and operator == ":" and not _is_any(value):
        return store.HasLabel(value.text)
    if len(keys) != 1:
        raise FilterError(restriction.at, 'write labels:key or labels.key = "value"; quote a key with dots or spaces')
    if operator == ":" and _is_any(value):
        return store.HasLabel(keys[0])
    return _wanted(store.HasLabel(keys[0], value.text), operator)


FIELDS: dict[str, Callable[[Restriction], store.Condition]] = {
    "state": _state,
    "busy": _busy,
    "mode": _mode,
    "model": _model,
    "title": _text(store.TextField.TITLE),
    "slug": _text(store.TextField.SLUG),
    "working_directory": _directory,
    "create_time": _time(store.TimeField.CREATED),
    "update_time": _time(store.TimeField.UPDATED),
    "archive_time": _time(store.TimeField.ARCHIVED),
    "archived": _archived,
    "parent": _conversation(store.TextField.PARENT),
    "forked_from": _conversation(store.TextField.FORKED_FROM),
}
