"""Calls that a model wrote differently from the tools that it was offered: corrected if they have one meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.adapters.tools.registry import StandardToolbox
from actors.conversation.system_prompt import system_prompt
from actors.core.content import Text, ToolUse
from actors.core.context import ClientTool, Mode, ToolGroup, ToolTraits
from actors.core.thresholds import tokens_of, utf8_size
from actors.ports import ModelInfo, ToolSpec, WorkspaceContext
from actors.ports.models import SMALL_WINDOW
from actors.runtime.offered_tools import brief, checked_calls, for_model, spec_of

PROPERTIES: dict[str, Any] = {
    "command": {"type": "string"},
    "wait": {"type": "integer", "minimum": 0},
    "ratio": {"type": "number"},
    "deep": {"type": "boolean"},
    "either": {"type": ["string", "integer"]},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "level": {"enum": [1, 2]},
    "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "any": {},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "additionalProperties": False}


def spec(name: str) -> ToolSpec:
    return ToolSpec("Works.", SCHEMA, ToolTraits(name, ToolGroup.OTHER))


OFFERED = tuple(map(spec, ("bash", "mcp__files__read", "mcp__a__bash", "a__b", "b")))


def test_a_small_window_gets_half_of_what_system_prompt_and_tools_take() -> None:
    place = WorkspaceContext("/srv/work")

    def cost(window: int) -> int:
        model = ModelInfo("m", "m", "p", "openai-chat", window, 2_048, window - 2_048)
        tools = for_model(model, StandardToolbox().specs(sub_agent=False), None)
        return sum(tool.tokens for tool in tools) + tokens_of(
            utf8_size(system_prompt(place, Mode.RESTRICTED, 0, small=model.small))
        )

    assert cost(SMALL_WINDOW - 1) <= cost(SMALL_WINDOW) / 2


def test_a_brief_tool_is_described_in_two_sentences_and_its_values_are_kept() -> None:
    schema = {
        "type": "object",
        "description": "All. Of it.",
        "additionalProperties": False,
        "required": ["minimum"],
        "properties": {
            "minimum": {"type": "integer", "minimum": 3, "description": "The least; 3 if left out."},
            "description": {"type": "string", "enum": ["a. b", "c"], "default": "a. b"},
            "many": {"type": "array", "items": {"type": "string", "maxLength": 9, "description": "One (of many)."}},
        },
    }
    told = brief(ToolSpec("First. Second, e.g. so. Third.\nMore.", schema, ToolTraits("t", ToolGroup.OTHER)))
    assert told.description == "First. Second, e.g. so."
    assert told.input_schema == {
        "type": "object",
        "description": "All",
        "required": ["minimum"],
        "properties": {
            "minimum": {"type": "integer", "description": "The least"},
            "description": {"type": "string", "enum": ["a. b", "c"], "default": "a. b"},
            "many": {"type": "array", "items": {"type": "string", "description": "One"}},
        },
    }


def test_tools_of_clients_are_described_in_full_in_a_small_window() -> None:
    tool = spec_of(ClientTool("t", "One. Two. Three.", '{"type": "object"}'))
    model = ModelInfo("m", "m", "p", "openai-chat", 8_192, 2_048, 6_144)
    assert for_model(model, (tool,), None) == (tool,)


def read(name: str, given: Any = None, *tools: ClientTool) -> ToolUse:
    """Return the call that a model means by this name and these arguments."""
    raw = given if isinstance(given, str) else json.dumps(given or {})
    said, call = checked_calls((Text("I run:"), ToolUse("t1", name, raw)), OFFERED, tools)
    assert said == Text("I run:")
    assert isinstance(call, ToolUse)
    return call


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (" bash ", "bash"),
        ("functions.bash", "bash"),
        ("default_api:bash", "bash"),
        ("tools/functions.bash\n", "bash"),
        ("functions . bash", "bash"),
        ("functions.mcp__files__read", "mcp__files__read"),
        ("mcp.files.read", "mcp__files__read"),
        ("files.read", "mcp__files__read"),
        ("mcp.a.bash", "mcp__a__bash"),
    ],
)
def test_a_name_with_a_namespace_or_blanks_is_that_of_the_offered_tool(name: str, meant: str) -> None:
    call = read(name)
    assert (call.name, call.input) == (meant, "{}")
    assert call.corrected == f"Note: this call was corrected before it ran: the name {json.dumps(name)} to {meant}."


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Bash",
        "bash2",
        "ba sh",
        "functions.",
        "functions.Bash",
        "read",
        "a.b",
        "bash.functions",
        "bash()",
        "a.bash",
        "mcp.x.bash",
    ],
)
def test_every_other_name_stays(name: str) -> None:
    """Of "a.b" it is open whether "b" or "a__b" is meant, of "a.bash" whether "bash" or "mcp__a__bash"."""
    assert read(name) == ToolUse("t1", name, "{}")


@pytest.mark.parametrize("name", ["bash", "mcp__a__bash", "a__b", "b"])
def test_a_call_as_it_was_offered_stays_byte_for_byte(name: str) -> None:
    raw = '{ "command":"5",  "either":"7", "any": "true", "wait": 5.0 }'
    assert read(name, raw) == ToolUse("t1", name, raw)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"wait": "5"}, {"wait": 5}),
        ({"wait": " 5 ", "command": "5"}, {"wait": 5, "command": "5"}),
        ({"ratio": "-2.5e1"}, {"ratio": -25.0}),
        ({"deep": "true"}, {"deep": True}),
        ({"deep": "False"}, {"deep": False}),
        ({"maybe": "3"}, {"maybe": 3}),
        ({"level": "2"}, {"level": 2}),
        ({"items": [{"n": 1}, {"n": "2"}]}, {"items": [{"n": 1}, {"n": 2}]}),
        ({"either": "7", "wait": "1"}, {"either": "7", "wait": 1}),
    ],
)
def test_a_number_or_boolean_as_a_text_is_read_where_no_text_fits(given: Any, meant: Any) -> None:
    call = read("bash", given)
    assert json.loads(call.input) == meant
    assert {type(value) for value in json.loads(call.input).values()} == {type(value) for value in meant.values()}
    assert "without quotes" in call.corrected


@pytest.mark.parametrize(
    "given",
    [
        {"wait": "five"},
        {"wait": ""},
        {"wait": "-5"},
        {"wait": "2.5"},
        {"wait": "0x5"},
        {"wait": "05"},
        {"wait": "1" * 400},
        {"deep": "yes"},
        {"deep": "1"},
        {"deep": 1},
        {"level": "3"},
        {"items": '[{"n": 1}]'},
        {"wait": "5", "deep": "no"},
        {"wait": "5", "unknown": 1},
        {"maybe": "null"},
        '{"wait": "5"',
        '["5"]',
    ],
)
def test_every_other_value_stays(given: Any) -> None:
    raw = given if isinstance(given, str) else json.dumps(given)
    assert read("bash", given) == ToolUse("t1", "bash", raw)


def test_name_and_values_are_corrected_together_before_a_client_tool_is_checked_calls() -> None:
    tool = ClientTool("bash", "Works.", json.dumps(SCHEMA), ToolGroup.READ, 60_000)
    call = read("functions.bash", {"wait": "5"}, tool)
    assert (call.name, call.input, call.group, call.bad_input) == ("bash", '{"wait": 5}', ToolGroup.READ, "")
    changes = 'the name "functions.bash" to bash; wait to 5 without quotes'
    assert call.corrected == f"Note: this call was corrected before it ran: {changes}."
    assert "does not fit" in read(" bash", {"wait": "five"}, tool).bad_input


def test_the_note_of_many_corrections_is_short() -> None:
    call = read("bash", {"items": [{"n": "1"}] * 1_000})
    assert json.loads(call.input) == {"items": [{"n": 1}] * 1_000}
    assert call.corrected.endswith("; and 997 more.")
    assert len(call.corrected) < 200


def test_a_tool_whose_schema_cannot_be_used_keeps_its_calls() -> None:
    odd = ToolSpec("Works.", {"type": "object", "pattern": "(?=x)"}, ToolTraits("odd", ToolGroup.OTHER))
    call = ToolUse("t1", "odd", '{"n": "5"}')
    assert checked_calls((call,), (odd,), ()) == (call,)
