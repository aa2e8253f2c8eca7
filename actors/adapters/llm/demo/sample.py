"""Makes values that fit a JSON Schema, for the demo model's tool calls and outputs. Pure functions.

The usual keywords are supported. If a schema has `default`, `examples`, `const` or `enum`, the value is taken from
there, so that the author of a schema can choose the demo's values.
"""

from __future__ import annotations

from typing import Any

_DEPTH = 24
_WIDE = 6
"""From this nesting depth on, lists have only the items that `minItems` requires: recursive schemas stay finite."""


def sample(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Return a value that fits a schema, as far as its keywords are supported.

    Returns None for a schema that is nested too deeply, or is not an object. `root` is the schema to which the
    references ($ref) in `schema` refer; None for `schema` itself. `depth` is the nesting depth of `schema` in `root`.
    """
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _DEPTH:
        return None
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    for choices in ("examples", "enum"):
        if schema.get(choices):
            return schema[choices][0]
    if "$ref" in schema:
        return sample(_definition(root, schema["$ref"]), root, depth + 1)
    for choices in ("anyOf", "oneOf", "allOf"):
        if schema.get(choices):
            return sample(schema | schema[choices][0] | {choices: []}, root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            wanted = schema.get("properties", {})
            return {name: sample(wanted.get(name, {}), root, depth + 1) for name in schema.get("required", wanted)}
        case "array":
            usual = 1 if depth < _WIDE else 0
            return [sample(schema.get("items", {}), root, depth + 1)] * max(schema.get("minItems", usual), usual)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            words = "A text by script."
            return words.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength", len(words) + 10**6)]


def _number(schema: dict[str, Any]) -> int:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    step = schema.get("multipleOf", 1)
    number = -(-least // step) * step
    return int(number) if number == int(number) else number


def _definition(root: Any, reference: str) -> Any:
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return found
