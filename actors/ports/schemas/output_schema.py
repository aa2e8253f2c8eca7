"""Output schemas: in which form a model is asked for a value that fits a JSON Schema, and whether its answer does.

Providers keep part of JSON Schema by themselves, and only for objects. A schema that they can keep is sent to them, in
a form that allows nothing more; otherwise the model calls a tool with the value. What comes back is compared with the
whole schema in either case.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from actors.ports.schemas.json_schema import InvalidSchemaError, JsonSchema, is_too_deep, parse_json

MAX_SCHEMA_BYTES = 64 * 1024
"""Maximum size of an output schema as JSON."""
MAX_OUTPUT_DEPTH = 24
"""Maximum nesting of output schemas and outputs: each level takes several of the 100 levels of a message to clients."""

WRAPPER = "value"
"""The name of the only property of the object that a value which is no object is sent in."""

_KEPT = frozenset({"type", "enum", "const", "title", "description", "required", "$ref"})
"""Keywords that providers keep, and whose values contain no schemas."""
_NARROWING = frozenset({
    "$schema", "$id", "$comment", "default", "examples", "format", "pattern", "minLength", "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
"""Keywords without schemas that not every provider keeps: they are left out, and checked afterwards."""

_WITH_SCHEMAS = frozenset({"properties", "$defs", "items", "anyOf"})
_KNOWN = _KEPT | _NARROWING | _WITH_SCHEMAS | {"additionalProperties"}

_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class NativeOutput(Struct, frozen=True):
    """A schema for a provider that keeps schemas by itself."""

    schema: dict[str, Any]
    strict: bool
    """Whether all properties of all objects are required, which some providers demand for a promise."""


class _NotKeptError(Exception):
    """Providers cannot keep this schema."""


@lru_cache(maxsize=64)
def compiled(schema: str) -> JsonSchema:
    """Return the compiled schema of a JSON text. Raises InvalidSchemaError."""
    value = json.loads(schema)
    if is_too_deep(value, MAX_OUTPUT_DEPTH):
        raise InvalidSchemaError(_TOO_DEEP)
    return JsonSchema(value)


def is_wrapped(schema: dict[str, Any]) -> bool:
    """Return whether values of this schema are sent as the property of an object: those that need not be objects."""
    return schema.get("type") != "object"


def object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of objects for the input of a tool: the schema itself, or one of an object with the value."""
    if not is_wrapped(schema):
        return schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER], "additionalProperties": False}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def native_output(schema: dict[str, Any]) -> NativeOutput | None:
    """Return the schema as a provider can keep it; None if it has keywords that providers do not know."""
    try:
        kept = _kept(object_schema(schema))
    except _NotKeptError:
        return None
    return NativeOutput(kept, strict=_all_required(kept))


def judged_output(schema: str, text: str) -> tuple[str, str]:
    """Return the value that a model wrote, as canonical JSON, and what of it does not fit: one of them is empty.

    `text` is the input of a tool call, or a whole answer; a fence of Markdown around it is taken away.
    """
    fenced = _FENCE.fullmatch(text.strip())
    try:
        value = parse_json(fenced[1] if fenced else text)
    except ValueError as error:
        return "", f"it is not JSON: {error}"
    if is_wrapped(json.loads(schema)) and isinstance(value, dict) and value.keys() == {WRAPPER}:
        value = value[WRAPPER]
    problem = _TOO_DEEP if is_too_deep(value, MAX_OUTPUT_DEPTH) else compiled(schema).problem(value)
    if problem:
        return "", problem
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True), ""


def _kept(schema: Any) -> dict[str, Any]:
    """Return a schema with only the keywords that providers keep, whose objects are closed. Raises _NotKeptError."""
    if not isinstance(schema, dict) or schema.keys() - _KNOWN:
        raise _NotKeptError
    kept = {key: _kept_keyword(key, value) for key, value in schema.items() if key in _KEPT or key in _WITH_SCHEMAS}
    kind = schema.get("type", "")
    if kind == "object":
        if not schema.get("properties") or schema.get("additionalProperties", False) is not False:
            raise _NotKeptError  # an object of any properties
        return kept | {"additionalProperties": False}
    if "properties" in kept or ("array" in kind and "items" not in kept) or "object" in kind:
        raise _NotKeptError  # perhaps an object, or an array of anything
    if not kept.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        raise _NotKeptError  # any value
    return kept


def _kept_keyword(key: str, value: Any) -> Any:
    """Return the value of a keyword that providers keep. Raises _NotKeptError."""
    if key in ("properties", "$defs"):
        return {name: _kept(each) for name, each in value.items()}
    if key == "anyOf":
        return [_kept(each) for each in value]
    if key == "$ref" and not value.startswith("#/$defs/"):
        raise _NotKeptError
    return _kept(value) if key == "items" else value


def _all_required(schema: Any) -> bool:
    """Return whether every object in a schema that providers keep requires all of its properties."""
    if isinstance(schema, list):
        return all(map(_all_required, schema))
    if not isinstance(schema, dict):
        return True
    named = schema.get("properties")
    if isinstance(named, dict) and schema.get("type") == "object" and set(named) != set(schema.get("required", ())):
        return False
    return all(map(_all_required, schema.values()))


_TOO_DEEP = f"it is nested more than {MAX_OUTPUT_DEPTH} levels deep"
