"""Schemas of older drafts: in terms of the newest draft they accept and refuse the same values."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest

from actors.adapters.mcp.tools import lifted
from actors.ports.json_schema import JsonSchema, is_schema

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types
D4, D7, D2019 = jsonschema.Draft4Validator, jsonschema.Draft7Validator, jsonschema.Draft201909Validator
SCALARS: list[Any] = [None, True, 0, 1, 2, 3, 10, "", "a"]
VALUES: list[Any] = [
    *SCALARS,
    *([*items] for size in range(4) for items in itertools.product((0, "a", None), repeat=size)),
    *({"a": one, "b": other} for one in SCALARS for other in SCALARS),
    *({"a": {"b": each}} for each in SCALARS),
    *({"a": [each, "a"]} for each in SCALARS),
    {},
    {"a": 1},
    {"b": 1},
    {"c": [[1, ["a"]]], "b": "x"},
    {"a": [1, "a", 3], "b": ["a", 1]},
]


@pytest.mark.parametrize(
    ("draft", "schema"),
    [
        (D4, {"minimum": 1, "exclusiveMinimum": True}),
        (D4, {"minimum": 1, "exclusiveMinimum": False, "maximum": 3, "exclusiveMaximum": True}),
        (D4, {"properties": {"a": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}}),
        (D4, {"id": "http://example.com/x", "type": "object"}),
        (D4, {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}),
        (D7, {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": {"type": "null"}}),
        (D7, {"items": [], "additionalItems": {"type": "integer"}}),
        (D7, {"items": {"type": "integer"}, "additionalItems": False}),
        (D7, {"items": [{}, {"$ref": "#/items/0"}, False]}),
        (D7, {"items": [{"type": "integer"}, {"$ref": "#/items/0"}]}),
        (D7, {"properties": {"a": {"items": [{"type": "integer"}]}, "b": {"$ref": "#/properties/a/items/0"}}}),
        (D7, {"properties": {"items": {"type": "integer"}, "a": {"$ref": "#/properties/items"}}}),
        (D7, {"definitions": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/definitions/n"}}}),
        (D7, {"definitions": {"items": {"0": {}}}, "items": {"items": [{"type": "string"}]}}),
        (D7, {"dependencies": {"a": ["b"], "b": {"properties": {"a": {"type": "integer"}}}}}),
        (D7, {"anyOf": [{"items": [{"type": "string"}]}, {"not": {"minimum": 2}}]}),
        (D7, {"if": {"items": [{"type": "string"}]}, "then": {"maxItems": 1}, "else": {"type": "object"}}),
        (D7, {"enum": [{"items": [1]}, None, {"a": 1}], "default": {"items": [{}]}}),
        (D7, {"const": None}),
        (D7, {"const": {"a": {"b": 1}}}),
        (D2019, {"properties": {"a": {"$recursiveRef": "#"}}, "type": ["object", "null"]}),
        (D2019, {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": {"required": ["a"]}}}),
    ],
)
def test_a_lifted_schema_accepts_what_the_older_one_does(draft: Any, schema: dict[str, Any]) -> None:
    found = lifted({"$schema": draft.META_SCHEMA["$schema"], **schema})
    assert is_schema(found)
    newest, older = JsonSchema(found), draft(schema)
    assert [value for value in VALUES if (newest.problem(value) == "") != older.is_valid(value)] == []
    assert lifted(found) == found


def test_empty_values_of_other_languages_count_as_absent() -> None:
    assert lifted({"type": "object", "properties": None, "required": None}) == {"type": "object"}
    assert lifted({"properties": []}) == {"properties": {}}
    assert lifted({"a": {}, "enum": None, "default": None, "const": None}) == {"a": {}, "default": None, "const": None}


def test_a_schema_of_the_newest_draft_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "prefixItems": [{"minimum": 1}], "items": False}, "$ref": {}},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": {"exclusiveMinimum": 3},
        "unknown": {"items": [1]},
    }
    assert lifted(schema) == schema
