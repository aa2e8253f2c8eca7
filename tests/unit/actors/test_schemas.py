"""JSON Schemas: of tools, of answers, and those of older drafts."""

import importlib
import itertools
import json
from typing import Any

import pytest

from actors.adapters.llm.demo import sample
from actors.adapters.mcp.tools import lifted
from actors.common import json_schema
from actors.core.content import Text, ToolUse
from actors.ports import ModelAnswer, ModelInfo
from actors.runtime.offered_tools import output_form, output_of

# JSON Schemas and values as models and clients write them.


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_value_that_fits_has_no_problem() -> None:
    assert json_schema.JsonSchema(PERSON).problem({"name": "Ada", "tags": ["a", "b"]}) == ""


def test_each_fault_is_named_with_its_place() -> None:
    problem = json_schema.JsonSchema(PERSON).problem({"tags": ["a", "long"], "age": 3})
    assert '"name" is a required property' in problem
    assert "`tags[1]`: " in problem
    assert "'age'" in problem


def test_three_faults_are_named_and_the_others_counted() -> None:
    problem = json_schema.JsonSchema(PERSON).problem({"name": "Ada", "tags": ["long"] * 9})
    assert problem.count("`tags[") == 3
    assert problem.endswith("; and 6 more")


def test_all_that_is_allowed_is_named() -> None:
    assert json_schema.JsonSchema({"enum": ["a", "b", 1, "d"]}).problem("x") == '"x" is not one of "a", "b", 1, "d"'


def test_a_long_fault_is_cut() -> None:
    assert (
        len(json_schema.JsonSchema({"type": "integer"}).problem("x" * 10_000)) <= json_schema.MAX_FAULT_CHARACTERS + 1
    )


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "text"}}}, "`properties.a.type`"),
        ({"pattern": "("}, "`pattern`"),
        ({"pattern": "(?=a)b"}, "`pattern`"),
        ({"pattern": r"(a)\1"}, "`pattern`"),
        ({"$ref": "#/$defs/nothing"}, "nothing"),
        ({"minLength": -1}, "`minLength`"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(json_schema.InvalidSchemaError) as refused:
        json_schema.JsonSchema(schema)
    assert place in str(refused.value)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/schema.json", "https://example.com/x", "file:///etc/passwd"])
def test_nothing_is_fetched_for_a_schema(uri: str) -> None:
    with pytest.raises(json_schema.InvalidSchemaError, match="in the schema itself"):
        json_schema.JsonSchema({"$ref": uri})


def test_a_pattern_takes_linear_time() -> None:
    """With a backtracking engine this pattern takes longer than the universe has existed."""
    assert json_schema.JsonSchema({"pattern": "^(a+)+$"}).problem("a" * 10_000 + "b")


def test_a_schema_that_names_itself_ends() -> None:
    assert json_schema.JsonSchema({"items": {"$ref": "#"}}).problem([[[]]]) == ""


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_value_is_checked_up_to_a_hundred_levels_and_never_overflows_the_stack() -> None:
    schema = json_schema.JsonSchema({"items": {"$ref": "#"}})
    assert schema.problem(nested(json_schema.MAX_DEPTH)) == ""
    assert "nested" in schema.problem(nested(json_schema.MAX_DEPTH + 1))
    assert "nested" in schema.problem(nested(100_000))


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(json_schema.InvalidSchemaError, match="nested"):
        json_schema.JsonSchema({"enum": nested(100_000)})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1", "Expecting"),
        ("NaN", "NaN is not a valid JSON number"),
        ('"\\ud800"', "surrogate"),
        ("[" * 100_000, "nested"),
        ("[" * 101 + "]" * 101, "nested"),
        ("", "Expecting value"),
    ],
)
def test_what_is_not_json_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        json_schema.parse_json(text)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 309, "-" + "9" * 5000])
def test_a_number_that_cannot_be_sent_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="number"):
        json_schema.parse_json(f'{{"a": [{number}]}}')
    assert json_schema.parse_json("[1.5e308, -7, 0]") == [1.5e308, -7, 0]


DOUBLING = {
    "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": False},
    "$ref": "#/$defs/d0",
}
NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "c": {"items": {"$ref": "#/$defs/node"}}}}
TREE = {"$defs": {"node": NODE}, "$ref": "#/$defs/node"}
KINDS = [{"properties": {"kind": {"const": kind}, "of": {"$ref": "#/$defs/any"}}} for kind in "abcd"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (DOUBLING, "more than 10000 subschemas"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"anyOf": [{"type": "null"}, {"not": {"$ref": "#"}}]}, "refers to itself"),
        ({"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}, r"\$dynamicRef"),
        ({"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, "a path within the schema itself"),
        ({"patternProperties": {f"^k{n}[a-z]*$": {"type": "integer"} for n in range(1_000)}}, "more than 100 patterns"),
        ({"properties": {f"p{n}": {"pattern": "a"} for n in range(101)}}, "more than 100 patterns"),
        (
            {"properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(501)}, "$defs": {"a": {}}},
            "more than 500 references",
        ),
        ({"properties": {"a": {"$id": "http://other/", "$ref": "#"}}}, "\\$id below"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "a path within the schema itself"),
        ({"properties": {f"p{n}": {"pattern": "\\w{1000}"} for n in range(100)}}, "regex"),
    ],
)
def test_a_schema_that_could_take_any_time_or_memory_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(json_schema.InvalidSchemaError, match=why):
        json_schema.JsonSchema(schema)


def test_a_schema_may_contain_itself_and_a_value_that_multiplies_its_branches_is_refused_unseen() -> None:
    tree: dict[str, Any] = {"v": 1, "c": []}
    chain: dict[str, Any] = {"kind": "a"}
    for _ in range(5):
        tree, chain = {"v": 1, "c": [tree, tree, tree]}, {"kind": "a", "of": chain}
    assert json_schema.JsonSchema(TREE).problem(tree) == ""
    assert "`c[0].v`" in json_schema.JsonSchema(TREE).problem({"c": [{"v": "x"}]})
    kinds = json_schema.JsonSchema({"$defs": {"any": {"anyOf": KINDS}}, "$ref": "#/$defs/any"})
    assert kinds.problem(chain) == ""
    for _ in range(40):
        chain = {"kind": "z", "of": chain}
    assert kinds.problem(chain) == json_schema.TOO_MUCH


def test_the_names_of_properties_count_for_each_pattern() -> None:
    patterns = json_schema.JsonSchema({"patternProperties": {f"^k{n}[a-z]*$": {"type": "integer"} for n in range(100)}})
    assert patterns.problem({f"k{n}{'a' * 200}": 1 for n in range(1_400)}) == json_schema.TOO_MUCH
    assert patterns.problem({f"k{n}{'a' * 200}": 1 for n in range(500)}) == ""


def test_faults_without_number_are_not_collected() -> None:
    assert json_schema.JsonSchema({"items": {"allOf": [False] * 5000}}).problem([1] * 20_000) == json_schema.TOO_MUCH
    assert json_schema.JsonSchema({"allOf": [False] * 500}).problem("x" * 1_000_000) == json_schema.TOO_MUCH
    assert json_schema.JsonSchema({"items": {"type": "number"}}).problem(list(range(100_000))) == ""


# In which form a model is asked for an output, and what of its answer is one.


POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
}
TREE_OF_OBJECTS: dict[str, Any] = {
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
    native = json_schema.native_output(POINT)
    assert native is not None
    assert native.schema == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert not native.strict, "not every property is required"


def test_a_value_that_is_no_object_is_sent_in_one() -> None:
    native = json_schema.native_output(TREE_OF_OBJECTS)
    assert native is not None
    assert native.strict
    assert native.schema["properties"] == {"value": {"$ref": "#/$defs/node"}}
    assert native.schema["$defs"]["node"]["additionalProperties"] is False
    assert json_schema.object_schema(POINT) is POINT


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
    assert json_schema.native_output(schema) is None
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
    assert json_schema.validate_output(json.dumps(schema), text) == (value, "")


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        (POINT, "Here it is: {}", "it is not valid JSON"),
        (POINT, "{}", '"x" is a required property'),
        (POINT, '{"x": -1}', "`x`: -1 is less than the minimum of 0"),
        (POINT, '{"x": NaN}', "NaN is not a valid JSON number"),
        ({}, "[" * 25 + "]" * 25, "nested more than 24 levels"),
    ],
)
def test_what_does_not_fit_is_named(schema: dict[str, Any], text: str, problem: str) -> None:
    value, found = json_schema.validate_output(json.dumps(schema), text)
    assert value == ""
    assert problem in found


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.com/s"}, {"pattern": "("}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(json_schema.InvalidSchemaError):
        json_schema.compiled(json.dumps(schema))


def test_a_schema_has_24_levels_at_most() -> None:
    nested: dict[str, Any] = {}
    for _ in range(24):
        nested = {"not": nested}
    with pytest.raises(json_schema.InvalidSchemaError, match="24 levels"):
        json_schema.compiled(json.dumps(nested))


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
        TREE_OF_OBJECTS,
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
    assert json_schema.compiled(json.dumps(schema)).problem(sample(schema)) == ""


# Schemas of older drafts: in terms of the newest draft they accept and refuse the same values.


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
    assert json_schema.is_schema(found)
    newest, older = json_schema.JsonSchema(found), draft(schema)
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
