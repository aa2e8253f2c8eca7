"""In which form a model is asked for an output, and what of its answer is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.adapters.llm.demo import sample
from actors.core.content import Text, ToolUse
from actors.ports import ModelAnswer, ModelInfo
from actors.ports.json_schema import InvalidSchemaError, compiled, native_output, object_schema, validate_output
from actors.runtime.offered_tools import output_form, output_of

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "inner": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["name", "inner"],
        }
    },
}


def model(*, keeps: bool) -> ModelInfo:
    return ModelInfo("m", "M", "p", "anthropic", 1_000, 100, 900, structured_output=keeps)


def test_a_provider_gets_closed_objects_without_the_keywords_that_it_may_not_know() -> None:
    native = native_output(POINT)
    assert native is not None
    assert native.schema == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert not native.strict, "not every property is required"


def test_a_value_that_is_no_object_is_sent_in_one() -> None:
    native = native_output(TREE)
    assert native is not None
    assert native.strict
    assert native.schema["properties"] == {"value": {"$ref": "#/$defs/node"}}
    assert native.schema["$defs"]["node"]["additionalProperties"] is False
    assert object_schema(POINT) is POINT


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
        {"oneOf": [{"type": "string"}]},
        {"type": "array"},
        {"type": ["object", "null"], "properties": {"a": {"type": "null"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}],
        },
    ],
    ids=json.dumps,
)
def test_what_no_provider_keeps_is_asked_for_by_a_tool(schema: dict[str, Any]) -> None:
    assert native_output(schema) is None
    native, (tool,) = output_form(json.dumps(schema), model(keeps=True))
    assert native is None
    assert tool.name == "submit_output"
    assert tool.input_schema["type"] == "object"


def test_the_provider_keeps_the_schema_where_it_can() -> None:
    native, tools = output_form(json.dumps(POINT), model(keeps=True))
    assert native is not None
    assert tools == ()
    native, (tool,) = output_form(json.dumps(POINT), model(keeps=False))
    assert native is None
    assert tool.input_schema == POINT


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (POINT, '{"x": 1}', '{"x":1}'),
        (POINT, ' {"tags": ["é"], "x": 0}\n', '{"tags":["é"],"x":0}'),
        (POINT, '```json\n{"x": 1}\n```', '{"x":1}'),
        ({"type": "string"}, '{"value": "a"}', '"a"'),
        ({"type": "string"}, '"a"', '"a"'),
        ({"type": "null"}, "null", "null"),
        ({}, '{"value": 1, "more": 2}', '{"more":2,"value":1}'),
    ],
)
def test_a_value_that_fits_is_kept_as_canonical_json(schema: dict[str, Any], text: str, value: str) -> None:
    assert validate_output(json.dumps(schema), text) == (value, "")


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        (POINT, "Here it is: {}", "it is not JSON"),
        (POINT, "{}", '"x" is a required property'),
        (POINT, '{"x": -1}', "`x`: -1 is less than the minimum of 0"),
        (POINT, '{"x": NaN}', "NaN is not a number in JSON"),
        ({}, "[" * 25 + "]" * 25, "nested more than 24 levels"),
    ],
)
def test_what_does_not_fit_is_named(schema: dict[str, Any], text: str, problem: str) -> None:
    value, found = validate_output(json.dumps(schema), text)
    assert value == ""
    assert problem in found


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.com/s"}, {"pattern": "("}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchemaError):
        compiled(json.dumps(schema))


def test_a_schema_has_24_levels_at_most() -> None:
    nested: dict[str, Any] = {}
    for _ in range(24):
        nested = {"not": nested}
    with pytest.raises(InvalidSchemaError, match="24 levels"):
        compiled(json.dumps(nested))


def test_the_value_is_that_of_the_only_call_or_of_an_answer_without_calls() -> None:
    schema, good = json.dumps(POINT), '{"x":1}'
    call, other = ToolUse("t1", "submit_output", good), ToolUse("t2", "bash", good)
    assert output_of(schema, ModelAnswer((call,), end_turn=False)) == (good, "")
    assert output_of(schema, ModelAnswer((Text(good),), end_turn=True)) == (good, "")
    for goes_on in ((call, other), (other,), ()):
        assert output_of(schema, ModelAnswer(goes_on, end_turn=False)) == ("", "")
    assert output_of(schema, ModelAnswer((call,), end_turn=False, truncated=True)) == ("", "")


@pytest.mark.parametrize(
    "schema",
    [
        POINT,
        TREE,
        {"type": "array", "items": {"enum": ["b", "a"]}, "minItems": 2},
        {"type": "number", "exclusiveMinimum": 4, "multipleOf": 3},
        {"type": "string", "minLength": 30, "maxLength": 40},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": "object", "properties": {"when": {"type": "string", "examples": ["today"]}}, "required": ["when"]},
        {"const": 5},
    ],
    ids=json.dumps,
)
def test_the_demo_model_makes_up_a_value_that_fits(schema: dict[str, Any]) -> None:
    assert compiled(json.dumps(schema)).problem(sample(schema)) == ""
