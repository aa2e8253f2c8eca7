"""Conversion of JSON Schemas of drafts 4 to 7 and 2019-09 to draft 2020-12, the only one that all providers accept."""

from __future__ import annotations

import re
from typing import Any

_SCHEMAS = frozenset({
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
"""Keywords whose value is a schema."""
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value maps names to schemas."""
_VALUES = frozenset({"const", "default"})
"""Keywords whose value may be null."""
_ITEM = re.compile(r"/items/(?=[0-9]+(/|$))")
"""Matches, in a reference, the keyword that names the schemas of a tuple in older drafts."""


def lifted(schema: Any) -> Any:
    """Return a schema of an older draft in terms of draft 2020-12. A schema of this draft is returned unchanged.

    The schema must not be nested too deeply (see `is_too_deep`). A keyword whose value is null counts as absent, as
    the libraries of some languages write empty values so. What is no schema is returned unchanged.
    """
    if not isinstance(schema, dict):
        return schema
    found = {key: _inner(key, value) for key, value in schema.items() if value is not None or key in _VALUES}
    found.pop("$schema", None)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and limit in found:
            found[exclusive] = found.pop(limit)
    others = found.pop("additionalItems", None)
    if isinstance(found.get("items"), list):
        places = found.pop("items")
        found |= {"prefixItems": places} if places else {}
        found |= {} if others is None else {"items": others}
    if isinstance(dependencies := found.pop("dependencies", None), dict):
        needed = {name: each for name, each in dependencies.items() if isinstance(each, list)}
        other = {name: each for name, each in dependencies.items() if name not in needed}
        found |= {"dependentRequired": needed} if needed else {}
        found |= {"dependentSchemas": other} if other else {}
    if found.pop("$recursiveRef", None) == "#":
        found["$ref"] = "#"
    if isinstance(reference := found.get("$ref"), str):
        found["$ref"] = _ITEM.sub("/prefixItems/", reference)
    return found


def _inner(keyword: str, value: Any) -> Any:
    if keyword in _MAPS and value == []:  # PHP writes an empty object so
        return {}
    if keyword in _MAPS and isinstance(value, dict):
        return {name: lifted(each) for name, each in value.items()}
    if keyword in _LISTS and isinstance(value, list):
        return [lifted(each) for each in value]
    return lifted(value) if keyword in _SCHEMAS else value
