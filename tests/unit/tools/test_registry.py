"""The toolbox: what is offered, and how a call that does not fit is answered."""

import json
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from actors.adapters.tools.registry import StandardToolbox, ThinkTool
from actors.core.context import ToolGroup
from actors.ports import InvalidToolInputError

toolbox = StandardToolbox()

BOTH = ["bash", "read_file", "read_image", "search", "keyword_search", "patch", "think"]
"""What people's conversations and sub-agents are both offered."""


def names(*, sub_agent: bool) -> list[str]:
    return [spec.name for spec in toolbox.specs(sub_agent=sub_agent)]


def test_people_s_conversations_are_offered_what_can_be_executed() -> None:
    assert names(sub_agent=False) == [*BOTH, "spawn_sub_agent", "request_mode_upgrade"]
    assert all(toolbox.get(name) for name in names(sub_agent=False))


def test_sub_agents_are_offered_the_same_and_the_two_ways_to_end() -> None:
    assert names(sub_agent=True) == [*BOTH, "submit_result", "submit_error"]
    assert toolbox.get("submit_result") is None, "the machine judges it"
    assert not {"spawn_sub_agent", "request_mode_upgrade"} & set(names(sub_agent=True))


def test_what_is_essential_is_to_run_and_to_read_and_for_sub_agents_to_end() -> None:
    essential = {spec.name for spec in toolbox.specs(sub_agent=False) if spec.essential}
    assert essential == {"bash", "read_file"}
    ending = {spec.name for spec in toolbox.specs(sub_agent=True) if spec.essential}
    assert ending == essential | {"submit_result", "submit_error"}


def test_submit_result_has_the_seed_s_schema() -> None:
    (spec,) = (spec for spec in toolbox.specs(sub_agent=True) if spec.name == "submit_result")
    assert spec.input_schema == {
        "type": "object",
        "required": ["result"],
        "properties": {
            "result": {"type": "string", "description": "Final result to return to parent conversation"},
            "success": {"type": "boolean", "description": "Whether the task completed successfully"},
        },
    }


@pytest.mark.parametrize("spec", toolbox.specs(sub_agent=True), ids=lambda spec: spec.name)
def test_schemas_are_valid_and_have_no_alternatives_at_the_top(spec: Any) -> None:
    Draft202012Validator(spec.input_schema)
    assert spec.input_schema["type"] == "object"
    assert not {"oneOf", "anyOf", "allOf"} & set(spec.input_schema)


def test_traits_say_what_the_machine_must_know() -> None:
    traits = {spec.name: spec.traits for spec in toolbox.specs(sub_agent=True)}
    told = {name: (trait.group, trait.retry_safe, trait.writes, trait.always_asks) for name, trait in traits.items()}
    assert told == {
        "bash": (ToolGroup.BASH, False, True, False),
        "read_file": (ToolGroup.READ, True, False, False),
        "read_image": (ToolGroup.READ, True, False, False),
        "search": (ToolGroup.READ, True, False, False),
        "keyword_search": (ToolGroup.READ, True, False, False),
        "patch": (ToolGroup.WRITE, False, True, False),
        "think": (ToolGroup.OTHER, True, False, False),
        "submit_result": (ToolGroup.OTHER, False, False, False),
        "submit_error": (ToolGroup.OTHER, False, False, False),
    }


@pytest.mark.parametrize(
    ("name", "raw", "arguments"),
    [
        ("bash", '{"cmd": "ls", "wait_seconds": 900}', {"cmd": "ls", "wait_seconds": 900}),
        ("bash", '{"command": "ls"}', {"cmd": "ls"}),
        ("think", '{"thoughts": ""}', {"thoughts": ""}),
        ("read_file", '{"path": "\\u00e4"}', {"path": "ä"}),
        ("read_file", '{"file_path": "x"}', {"path": "x"}),
        ("search", '{"query": "x", "glob": "*.py"}', {"pattern": "x", "include": "*.py"}),
        ("keyword_search", '{"query": "q", "terms": ["t"]}', {"query": "q", "search_terms": ["t"]}),
        ("submit_result", '{"result": "r", "success": false}', {"result": "r", "success": False}),
        ("submit_error", '{"error": "e"}', {"error": "e"}),
    ],
)
def test_fitting_input_is_parsed(name: str, raw: str, arguments: dict[str, Any]) -> None:
    assert toolbox.parse(name, raw) == arguments


@pytest.mark.parametrize(
    ("name", "raw", "hint"),
    [
        ("nope", "{}", "There is no tool 'nope'. The tools are: bash, read_file, read_image, search, keyword_search, "),
        ("n" * 9999, "{}", "…"),
        ("bash", "{", "not valid JSON"),
        ("bash", "[]", "must be a JSON object"),
        ("bash", '"ls"', "must be a JSON object"),
        ("bash", '{"cmd": NaN}', "NaN is not a valid JSON number"),
        ("bash", "[" * 100_000, "not valid JSON"),
        ("bash", '{"cmd": ' + "1" * 5000 + "}", "not valid JSON"),
        ("bash", '{"cmd": "\\ud800"}', "surrogate"),
        ("bash", '{"cmd": "ls", "command": "ls"}', "'command' was unexpected"),
        ("bash", '{"cmd": "ls", "timeout": 5}', "'timeout' was unexpected"),
        ("bash", '{"cmd": ""}', "`cmd`"),
        ("bash", '{"cmd": ["ls"]}', '`cmd`: ["ls"] is not of type "string"'),
        ("bash", '{"peek": "b-1", "lines": 0}', "`lines`: 0 is less than the minimum of 1"),
        ("bash", '{"cmd": "ls", "wait_seconds": 1.5}', '`wait_seconds`: 1.5 is not of type "integer"'),
        ("bash", '{"cmd": "ls", "wait_seconds": true}', 'is not of type "integer"'),
        ("read_file", '{"path": "x", "offset": 0}', "`offset`: 0 is less than the minimum of 1"),
        ("search", '{"pattern": ""}', "`pattern`"),
        ("keyword_search", '{"query": "q", "search_terms": []}', "`search_terms`"),
        ("think", "{}", '"thoughts" is a required property'),
    ],
)
def test_unfitting_input_is_answered_with_what_to_change(name: str, raw: str, hint: str) -> None:
    with pytest.raises(InvalidToolInputError) as refused:
        toolbox.parse(name, raw)
    assert hint in str(refused.value)
    assert len(str(refused.value)) < 1500


def test_several_faults_are_reported_at_once_and_long_ones_truncated() -> None:
    raw = json.dumps({"cmd": ["x" * 10_000], "wait_seconds": "0", "other": 1})
    with pytest.raises(InvalidToolInputError) as refused:
        toolbox.parse("bash", raw)
    text = str(refused.value)
    assert "`cmd`" in text
    assert "`wait_seconds`" in text
    assert "'other' was unexpected" in text
    assert len(text) < 1500


@pytest.mark.parametrize("tool", ["read_file", "read_image", "search", "patch"])
def test_a_path_that_no_system_takes_is_refused_before_anything_is_started(tool: str) -> None:
    beside: dict[str, dict[str, Any]] = {
        "search": {"pattern": "x"},
        "patch": {"patches": [{"operation": "overwrite", "newText": ""}]},
    }
    with pytest.raises(InvalidToolInputError, match="`path`") as refused:
        toolbox.parse(tool, json.dumps({"path": "x" * 4097} | beside.get(tool, {})))
    assert len(str(refused.value)) < 1000


# think: acknowledged, and nothing else.


def test_thoughts_are_noted_and_nothing_runs(call: Any) -> None:
    output = ThinkTool().run({"thoughts": ""}, call.context)
    assert (output.text, output.is_error) == ("Noted.", False)
    assert not call.sandbox.launches
