"""Estimates how much work it is to validate a value against a JSON Schema. References can make it grow without limit.

Safe to call from any thread.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_SCHEMAS = 10_000
"""The maximum number of subschemas that are evaluated for one part of a value, such as one item of a list."""

MAX_WORK = 20_000_000
"""The maximum work of one validation: characters and values, multiplied by the subschemas that check them.

This much work takes about a second.
"""

MAX_STEPS = 200_000
"""The maximum number of steps of one estimate. A step looks at one object or list and one subschema for it."""

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef")
_INSIDE = ("additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains", "unevaluatedItems")
_INSIDE_MAPS = ("properties", "patternProperties")


class UnboundedSchemaError(ValueError):
    """Validation against this schema could take unbounded time; the text says why."""


class _TooMuchError(Exception):
    """The estimate exceeds MAX_WORK, or needs more than MAX_STEPS steps."""


class Comparisons:
    """Estimates the work of validating values against one schema, which must be a valid JSON Schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Analyse the whole schema. Raises UnboundedSchemaError if validation against it could take unbounded time."""
        self._root = schema
        self._anchors = _anchors(schema)
        self._at_one_place: dict[int, int] = {}
        """The work of checking one part of a value, by the id() of the subschema; 0 while it is being computed."""
        try:
            for each in self._reachable():
                if each is not schema and isinstance(each.get("$id"), str):
                    raise UnboundedSchemaError("an $id can only be at the top of a schema")
                self._work_at_one_place(each)
            self._most = self._unfolded(schema, {})
        except RecursionError:
            raise UnboundedSchemaError("its references lead through too many others") from None

    def take_too_long(self, value: Any) -> bool:
        """Return whether validating this value would be more work than MAX_WORK.

        The caller must have checked that the value is not nested too deeply.
        """
        walk = _Walk(self)
        if self._most * walk.size(value) <= MAX_WORK:
            return False
        try:
            walk.work(self._root, value)
        except (_TooMuchError, RecursionError):
            return True
        return False

    def at_one_place(self, schema: Any) -> int:
        """Return the work of checking one part of a value against a subschema, without what is nested in that part."""
        return self._at_one_place[id(schema)] if isinstance(schema, dict) else 1

    def same_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the subschemas that check the same value as `schema` itself, such as those in `allOf` or a `$ref`."""
        for key in _LISTS:
            yield from _listed(schema.get(key))
        yield from (schema[key] for key in _SINGLE if key in schema)
        for key in _MAPS:
            yield from _mapped(schema.get(key)).values()
        yield from (self._target(schema[key]) for key in _REFERENCES if key in schema)

    def _reachable(self) -> Iterator[Mapping[str, Any]]:
        """Yield the whole schema and all subschemas that validation can reach from it, each once."""
        seen, waiting = set[int](), [self._root]
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            waiting += self.same_place(schema)
            waiting += _inside(schema)

    def _unfolded(self, schema: Any, found: dict[int, float]) -> float:
        """Return the work of a subschema and all subschemas that it reaches, per unit of a value's size.

        The result is infinite if a subschema reaches itself. `found` caches results by the id() of the subschema.
        """
        if not isinstance(schema, dict):
            return 1
        if id(schema) not in found:
            found[id(schema)] = math.inf
            parts = sum(self._unfolded(each, found) for each in (*self.same_place(schema), *_inside(schema)))
            found[id(schema)] = _weight(schema) + parts * _times(schema)
        return found[id(schema)]

    def _work_at_one_place(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        known = self._at_one_place.get(id(schema))
        if known == 0:
            raise UnboundedSchemaError("a part of it refers to itself without going deeper into the value")
        if known is None:
            self._at_one_place[id(schema)] = 0
            parts = sum(self._work_at_one_place(each) for each in self.same_place(schema))
            known = _weight(schema) + parts * _times(schema)
            if known > MAX_SCHEMAS + _weight(schema):
                raise UnboundedSchemaError(f"it compares one place of a value with more than {MAX_SCHEMAS} schemas")
            self._at_one_place[id(schema)] = known
        return known

    def _target(self, reference: Any) -> Any:
        """Return the subschema to which a reference points; for an unknown anchor True (which allows any value).

        Raises UnboundedSchemaError.
        """
        pointer = unquote(reference.removeprefix("#")) if isinstance(reference, str) else ""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnboundedSchemaError("a $ref can only name a place in the schema itself, with # at its beginning")
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer, True)
        found: Any = self._root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found


class _Walk:
    def __init__(self, comparisons: Comparisons) -> None:
        self._of = comparisons
        self._found: dict[tuple[int, int], int] = {}
        self._sizes: dict[int, int] = {}

    def work(self, schema: Any, value: Any) -> int:
        """Return how many comparisons it takes at most to validate a value and everything inside it against a schema.

        Raises _TooMuchError if these are more than MAX_STEPS.
        """
        if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
            return self._bounded(self._of.at_one_place(schema) * self.size(value))
        key = id(schema), id(value)
        if key not in self._found:
            if len(self._found) > MAX_STEPS:
                raise _TooMuchError
            parts = sum(self.work(each, value) for each in self._of.same_place(schema))
            inside = sum(self.work(each, inner) for each, inner in _pairs(schema, value))
            self._found[key] = self._bounded(_weight(schema) + self.size(value) + (parts + inside) * _times(schema))
        return self._found[key]

    def size(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value)
        if not isinstance(value, (dict, list)):
            return 1
        if id(value) not in self._sizes:
            inner: Iterable[Any] = (*value, *value.values()) if isinstance(value, dict) else value
            self._sizes[id(value)] = 1 + sum(map(self.size, inner))
        return self._sizes[id(value)]

    @staticmethod
    def _bounded(work: int) -> int:
        if work > MAX_WORK:
            raise _TooMuchError
        return work


def _inside(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the subschemas that check the items or properties of a value, not the value itself."""
    yield from (schema[key] for key in _INSIDE if key in schema)
    yield from _listed(schema.get("prefixItems"))
    for key in _INSIDE_MAPS:
        yield from _mapped(schema.get(key)).values()


def _pairs(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each subschema that checks an item or a property of the value, together with that item or property."""
    if isinstance(value, list):
        first = _listed(schema.get("prefixItems"))
        yield from zip(first, value, strict=False)
        if "items" in schema:
            yield from ((schema["items"], inner) for inner in value[len(first) :])
        every = [schema[key] for key in ("contains", "unevaluatedItems") if key in schema]
        yield from ((each, inner) for each in every for inner in value)
        return
    named = _mapped(schema.get("properties"))
    every = [*_mapped(schema.get("patternProperties")).values()]
    every += (schema[key] for key in ("additionalProperties", "unevaluatedProperties") if key in schema)
    for name, inner in value.items():
        if "propertyNames" in schema:
            yield schema["propertyNames"], name
        if name in named:
            yield named[name], inner
        yield from ((each, inner) for each in every)


def _weight(schema: Mapping[str, Any]) -> int:
    return 1 + len(_listed(schema.get("enum"))) + len(_listed(schema.get("required")))


def _times(schema: Mapping[str, Any]) -> int:
    """Return how often validation evaluates a schema's parts: twice with an `unevaluated…` keyword, otherwise once."""
    return 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1


def _anchors(schema: Any) -> dict[str, Any]:
    """Return the parts of a schema that have an anchor, by the anchor's name.

    Raises UnboundedSchemaError if two parts have the same name.
    """
    found: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            for key in ("$anchor", "$dynamicAnchor"):
                name = each.get(key)
                if isinstance(name, str) and found.setdefault(name, each) is not each:
                    raise UnboundedSchemaError(f"two parts of it have the name {name[:100]!r}")
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapped(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
