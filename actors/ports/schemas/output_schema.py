"""Output schemas: asks a model for a value that matches a JSON Schema, and checks its answer.

Providers can enforce only a part of JSON Schema, and only for objects. A schema within that part is sent to them, in a
form that forbids properties which it does not name. For any other schema, the model is asked to pass the value to a
tool. In both cases the answer is checked against the whole schema.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from actors.ports.schemas.json_schema import InvalidSchemaError, JsonSchema, is_too_deep, parse_json

MAX_SCHEMA_BYTES = 64 * 1024
"""The maximum size of an output schema as JSON, in bytes."""
MAX_OUTPUT_DEPTH = 24
"""The maximum nesting of output schemas and outputs. A level takes several of the 100 levels that gRPC allows."""

WRAPPER = "value"
"""Name of the only property of the object that wraps a value whose schema also allows values other than objects."""

_KEPT = frozenset({"type", "enum", "const", "title", "description", "required", "$ref"})
"""The JSON Schema keywords that providers enforce and whose values contain no subschemas."""
_NARROWING = frozenset({
    "$schema", "$id", "$comment", "default", "examples", "format", "pattern", "minLength", "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
"""Keywords that not every provider enforces: they are left out of requests, and enforced by checking the answer."""

_WITH_SCHEMAS = frozenset({"properties", "$defs", "items", "anyOf"})
_KNOWN = _KEPT | _NARROWING | _WITH_SCHEMAS | {"additionalProperties"}

_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class NativeOutput(Struct, frozen=True):
    """A schema for a provider that enforces schemas itself."""

    schema: dict[str, Any]
    strict: bool
    """Whether all properties of all objects are required, which some providers demand for strict enforcement."""


class _NotKeptError(Exception):
    """The schema needs something that providers cannot enforce."""


@lru_cache(maxsize=64)
def compiled(schema: str) -> JsonSchema:
    """Compile an output schema, given as JSON text. Raises InvalidSchemaError."""
    value = json.loads(schema)
    if is_too_deep(value, MAX_OUTPUT_DEPTH):
        raise InvalidSchemaError(_TOO_DEEP)
    return JsonSchema(value)


def is_wrapped(schema: dict[str, Any]) -> bool:
    """Return whether values of this schema are wrapped in an object, because the schema also allows other values."""
    return schema.get("type") != "object"


def object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool input that contains the value: `schema`, or if needed that of an object around it."""
    if not is_wrapped(schema):
        return schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER], "additionalProperties": False}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def native_output(schema: dict[str, Any]) -> NativeOutput | None:
    """Return the schema in the form in which providers enforce it; None if they cannot enforce it."""
    if "anyOf" in schema and not is_wrapped(schema):
        return None  # no provider accepts anyOf at the top level
    try:
        kept = _kept(object_schema(schema))
    except _NotKeptError:
        return None
    return NativeOutput(kept, strict=_all_required(kept))


def judged_output(schema: str, text: str) -> tuple[str, str]:
    """Check an output that a model wrote against a schema; return (value, "") if it is valid, else ("", problem).

    `value` is the output as canonical JSON; `problem` says why it is invalid. `text` is the input of a tool call, or a
    whole answer; a Markdown code fence around it is removed.
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
    """Return a copy of a schema with only the keywords that providers enforce, and with no properties but those named.

    Raises _NotKeptError if providers cannot enforce the schema.
    """
    if not isinstance(schema, dict) or schema.keys() - _KNOWN:
        raise _NotKeptError
    kept = {key: _kept_keyword(key, value) for key, value in schema.items() if key in _KEPT or key in _WITH_SCHEMAS}
    kind = schema.get("type", "")
    if kind == "object":
        if not schema.get("properties") or schema.get("additionalProperties", False) is not False:
            raise _NotKeptError  # the schema allows objects with any properties
        return kept | {"additionalProperties": False}
    if "properties" in kept or ("array" in kind and "items" not in kept) or "object" in kind:
        raise _NotKeptError  # the schema allows objects, or arrays of anything
    if not kept.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        raise _NotKeptError  # the schema allows any value
    return kept


def _kept_keyword(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _kept(each) for name, each in value.items()}
    if key == "anyOf":
        return [_kept(each) for each in value]
    if key == "$ref" and not value.startswith("#/$defs/"):
        raise _NotKeptError
    return _kept(value) if key == "items" else value


def _all_required(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_all_required, schema))
    if not isinstance(schema, dict):
        return True
    named = schema.get("properties")
    if isinstance(named, dict) and schema.get("type") == "object" and set(named) != set(schema.get("required", ())):
        return False
    return all(map(_all_required, schema.values()))


_TOO_DEEP = f"it is nested more than {MAX_OUTPUT_DEPTH} levels deep"
