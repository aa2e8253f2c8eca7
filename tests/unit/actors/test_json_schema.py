"""JSON Schemas and values as models and clients write them."""

from __future__ import annotations

from typing import Any

import pytest

from actors.ports.json_schema import (
    MAX_DEPTH,
    MAX_FAULT_CHARACTERS,
    TOO_MUCH,
    InvalidSchemaError,
    JsonSchema,
    parse_json,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_value_that_fits_has_no_problem() -> None:
    assert JsonSchema(PERSON).problem({"name": "Ada", "tags": ["a", "b"]}) == ""


def test_each_fault_is_named_with_its_place() -> None:
    problem = JsonSchema(PERSON).problem({"tags": ["a", "long"], "age": 3})
    assert '"name" is a required property' in problem
    assert "`tags[1]`: " in problem
    assert "'age'" in problem


def test_three_faults_are_named_and_the_others_counted() -> None:
    problem = JsonSchema(PERSON).problem({"name": "Ada", "tags": ["long"] * 9})
    assert problem.count("`tags[") == 3
    assert problem.endswith("; and 6 more")


def test_all_that_is_allowed_is_named() -> None:
    assert JsonSchema({"enum": ["a", "b", 1, "d"]}).problem("x") == '"x" is not one of "a", "b", 1, "d"'


def test_a_long_fault_is_cut() -> None:
    assert len(JsonSchema({"type": "integer"}).problem("x" * 10_000)) <= MAX_FAULT_CHARACTERS + 1


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
    with pytest.raises(InvalidSchemaError) as refused:
        JsonSchema(schema)
    assert place in str(refused.value)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/schema.json", "https://example.com/x", "file:///etc/passwd"])
def test_nothing_is_fetched_for_a_schema(uri: str) -> None:
    with pytest.raises(InvalidSchemaError, match="in the schema itself"):
        JsonSchema({"$ref": uri})


def test_a_pattern_takes_linear_time() -> None:
    """With a backtracking engine this pattern takes longer than the universe has existed."""
    assert JsonSchema({"pattern": "^(a+)+$"}).problem("a" * 10_000 + "b")


def test_a_schema_that_names_itself_ends() -> None:
    assert JsonSchema({"items": {"$ref": "#"}}).problem([[[]]]) == ""


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_value_is_checked_up_to_a_hundred_levels_and_never_overflows_the_stack() -> None:
    schema = JsonSchema({"items": {"$ref": "#"}})
    assert schema.problem(nested(MAX_DEPTH)) == ""
    assert "nested" in schema.problem(nested(MAX_DEPTH + 1))
    assert "nested" in schema.problem(nested(100_000))


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="nested"):
        JsonSchema({"enum": nested(100_000)})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1", "Expecting"),
        ("NaN", "NaN is not a number"),
        ('"\\ud800"', "surrogate"),
        ("[" * 100_000, "nested"),
        ("[" * 101 + "]" * 101, "nested"),
        ("", "Expecting value"),
    ],
)
def test_what_is_not_json_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_json(text)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 309, "-" + "9" * 5000])
def test_a_number_that_cannot_be_sent_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_json(f'{{"a": [{number}]}}')
    assert parse_json("[1.5e308, -7, 0]") == [1.5e308, -7, 0]


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
        (DOUBLING, "more than 10000 schemas"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"anyOf": [{"type": "null"}, {"not": {"$ref": "#"}}]}, "refers to itself"),
        ({"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}, r"\$dynamicRef"),
        ({"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, "a path in the schema itself"),
        ({"patternProperties": {f"^k{n}[a-z]*$": {"type": "integer"} for n in range(1_000)}}, "more than 100 patterns"),
        ({"properties": {f"p{n}": {"pattern": "a"} for n in range(101)}}, "more than 100 patterns"),
        (
            {"properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(501)}, "$defs": {"a": {}}},
            "more than 500 references",
        ),
        ({"properties": {"a": {"$id": "http://other/", "$ref": "#"}}}, "\\$id below"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "a path in the schema itself"),
        ({"properties": {f"p{n}": {"pattern": "\\w{1000}"} for n in range(100)}}, "regex"),
    ],
)
def test_a_schema_that_could_take_any_time_or_memory_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSchemaError, match=why):
        JsonSchema(schema)


def test_a_schema_may_contain_itself_and_a_value_that_multiplies_its_branches_is_refused_unseen() -> None:
    tree: dict[str, Any] = {"v": 1, "c": []}
    chain: dict[str, Any] = {"kind": "a"}
    for _ in range(5):
        tree, chain = {"v": 1, "c": [tree, tree, tree]}, {"kind": "a", "of": chain}
    assert JsonSchema(TREE).problem(tree) == ""
    assert "`c[0].v`" in JsonSchema(TREE).problem({"c": [{"v": "x"}]})
    kinds = JsonSchema({"$defs": {"any": {"anyOf": KINDS}}, "$ref": "#/$defs/any"})
    assert kinds.problem(chain) == ""
    for _ in range(40):
        chain = {"kind": "z", "of": chain}
    assert kinds.problem(chain) == TOO_MUCH


def test_the_names_of_properties_count_for_each_pattern() -> None:
    patterns = JsonSchema({"patternProperties": {f"^k{n}[a-z]*$": {"type": "integer"} for n in range(100)}})
    assert patterns.problem({f"k{n}{'a' * 200}": 1 for n in range(1_400)}) == TOO_MUCH
    assert patterns.problem({f"k{n}{'a' * 200}": 1 for n in range(500)}) == ""


def test_faults_without_number_are_not_collected() -> None:
    assert JsonSchema({"items": {"allOf": [False] * 5000}}).problem([1] * 20_000) == TOO_MUCH
    assert JsonSchema({"allOf": [False] * 500}).problem("x" * 1_000_000) == TOO_MUCH
    assert JsonSchema({"items": {"type": "number"}}).problem(list(range(100_000))) == ""
