"""Parses filters of lists: restrictions such as `title:"draft"`, connected by AND, OR, NOT and parentheses.

As in Google's AIP-160, OR binds tighter than AND, and two restrictions side by side are connected by AND.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from actors.ports.conditions import LATEST_FIRST, AnyOf, Condition, Every, Negation, Order, OrderKey

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = {"update_time": OrderKey.UPDATED, "create_time": OrderKey.CREATED, "title": OrderKey.TITLE}


def order_of(text: str) -> Order:
    """Return the order that a text such as `title` or `create_time desc` names; the default order for an empty text.

    The contract has a rule for this text, by which the request was checked.
    """
    name, _, direction = text.strip().partition(" ")
    return Order(_KEYS[name], direction.strip() == "desc") if name else LATEST_FIRST


MAX_DEPTH = 32
"""How deep parentheses may be nested."""
MAX_RESTRICTIONS = 100

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\s()\"'.,=<>!:]+")
_OPERATOR = re.compile(r"!=|<=|>=|[=<>:]")
_VALUE = re.compile(r"[^\s()\"'=<>!,]+")
"""Matches a value without quotes.

It may contain dots and colons, so that times, paths and names of models need no quotes.
"""
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WORDS = frozenset({"AND", "OR", "NOT"})


class FilterError(Exception):
    """The filter is invalid. The text says at which character, and why."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(f"at character {at + 1}: {text}")


class Value(NamedTuple):
    """The value on the right side of a restriction."""

    text: str
    at: int
    """The index of the value's first character in the filter."""
    quoted: bool = False


class Restriction(NamedTuple):
    """One comparison in a filter: a field, an operator and a value."""

    path: tuple[str, ...]
    """The name of the field; for a field that is a map, followed by the key."""
    at: int
    """The index of the restriction's first character in the filter."""
    operator: str
    """`=`, `!=`, `<`, `<=`, `>`, `>=` or `:`."""
    value: Value


def parse(text: str, meaning: Callable[[Restriction], Condition]) -> Condition:
    """Parse a filter into a condition that the store evaluates; `meaning` converts each restriction to a condition.

    An empty filter becomes a condition that is always true. Raises FilterError if the filter is invalid.
    """
    parser = _Parser(text, meaning)
    if parser.at_end():
        return Every()
    condition = parser.expression(0)
    if not parser.at_end():
        parser.fail("expected AND, OR or the end of the filter")
    return condition


class _Parser:
    """A recursive descent parser over the characters of a filter. Its methods raise FilterError."""

    def __init__(self, text: str, meaning: Callable[[Restriction], Condition]) -> None:
        self._text = text
        self._meaning = meaning
        self._at = 0
        self._restrictions = 0
        self._skip()

    def at_end(self) -> bool:
        return self._at == len(self._text)

    def fail(self, text: str, at: int | None = None) -> NoReturn:
        raise FilterError(self._at if at is None else at, text)

    def expression(self, depth: int) -> Condition:
        """Parse a sequence such as `a b AND c`, up to a closing parenthesis or the end of the filter."""
        parts = [self._alternatives(depth)]
        while not self.at_end() and not self._sees(")"):
            self._word("AND")
            parts.append(self._alternatives(depth))
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _alternatives(self, depth: int) -> Condition:
        parts = [self._term(depth)]
        while self._word("OR"):
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _term(self, depth: int) -> Condition:
        """Parse `a`, `NOT a` or `-a`, where `a` is a restriction or an expression in parentheses."""
        negated = self._word("NOT") or self._takes("-")
        if not self._takes("("):
            part = self._restriction()
        elif depth == MAX_DEPTH:
            self.fail(f"parentheses may be nested {MAX_DEPTH} deep at most", self._at - 1)
        else:
            part = self.expression(depth + 1)
            if not self._takes(")"):
                self.fail("expected a closing parenthesis")
        return Negation(part) if negated else part

    def _restriction(self) -> Condition:
        self._restrictions += 1
        if self._restrictions > MAX_RESTRICTIONS:
            self.fail(f"a filter may have {MAX_RESTRICTIONS} restrictions at most")
        at, path = self._at, [self._name()]
        while self._takes("."):
            path.append(self._string() or self._name())
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            self.fail("expected one of = != < <= > >= : after the name of a field")
        self._go_to(operator.end())
        return self._meaning(Restriction(tuple(path), at, operator.group(), self._value()))

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None or found.group() in _WORDS:
            self.fail("expected the name of a field")
        self._go_to(found.end())
        return found.group()

    def _value(self) -> Value:
        at = self._at
        if (text := self._string()) is not None:
            return Value(text, at, quoted=True)
        found = _VALUE.match(self._text, at)
        if found is None:
            self.fail("expected a value; write texts in quotes")
        self._go_to(found.end())
        return Value(found.group(), at)

    def _string(self) -> str | None:
        if not self._text.startswith(('"', "'"), self._at):
            return None
        found = _STRING.match(self._text, self._at)
        if found is None:
            self.fail("the quote is not closed")
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
        assert space is not None  # noqa: S101 -- the pattern matches the empty text
        self._at = space.end()
