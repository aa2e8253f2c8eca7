"""spawn_sub_agent: what a call must look like, and what it asks to be started."""

import json
from typing import Any

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator

from actors.adapters.tools.registry import StandardToolbox
from actors.adapters.tools.sub_agent_tools import SPEC, SpawnSubAgentTool
from actors.core.states import AgentTask
from actors.ports import InvalidToolInputError, SubAgentsRefusedError, ToolContext

toolbox = StandardToolbox()


def planned(call: Any, *tasks: dict[str, Any]) -> tuple[AgentTask, ...]:
    """What the server is asked to plan, which answers with it."""
    asked: list[tuple[AgentTask, ...]] = []

    def plan(wanted: tuple[AgentTask, ...], context: ToolContext) -> tuple[AgentTask, ...]:
        asked.append(wanted)
        return wanted

    context = msgspec.structs.replace(call.context, plan_agents=plan)
    output = SpawnSubAgentTool().run(toolbox.parse(SPEC.name, json.dumps({"tasks": tasks})), context)
    assert not output.is_error, output.text
    assert output.agents == asked[0]
    return output.agents


def test_the_schema_is_valid() -> None:
    Draft202012Validator(SPEC.input_schema)
    assert SPEC.traits.retry_safe, "it starts nothing itself"


def test_what_is_left_out_is_left_open(call: Any) -> None:
    assert planned(call, {"task": "look"}) == (AgentTask("", "look", "", "", 0, 0),)


def test_what_is_said_is_handed_on(call: Any) -> None:
    said = {
        "task": "look", "cwd": "below", "mode": "restricted", "model": "small", "max_turns": 3, "timeout_seconds": 9,
        "read_first": ["a", "b"],
    }  # fmt: skip
    below = str(call.directory / "below")
    assert planned(call, said, {"task": "too", "cwd": "/srv"}) == (
        AgentTask("", "look", below, "small", 3, 9_000, ("a", "b")),
        AgentTask("", "too", "/srv", "", 0, 0),
    )


def test_a_wider_mode_is_refused_politely(call: Any) -> None:
    output = SpawnSubAgentTool().run({"tasks": [{"task": "a"}, {"task": "b", "mode": "unrestricted"}]}, call.context)
    assert output.is_error
    assert output.text == (
        "No sub-agent was started. `tasks[1].mode`: sub-agents are always restricted; omit this, and do what needs "
        "a wider mode yourself"
    )


def test_a_refusal_names_the_field_as_the_model_knows_it(call: Any) -> None:
    def refuse(wanted: tuple[AgentTask, ...], context: ToolContext) -> tuple[AgentTask, ...]:
        raise SubAgentsRefusedError(0, "timeout_ms", "it must be less")

    context = msgspec.structs.replace(call.context, plan_agents=refuse)
    output = SpawnSubAgentTool().run({"tasks": [{"task": "a"}]}, context)
    assert (output.is_error, output.agents) == (True, ())
    assert output.text == "No sub-agent was started. `tasks[0].timeout_seconds`: it must be less"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({}, '"tasks" is a required property'),
        ({"tasks": []}, "`tasks`: [] has less than 1 item"),
        ({"tasks": [{"task": "x"}] * 11}, "`tasks`"),
        ({"tasks": [{}]}, '`tasks[0]`: "task" is a required property'),
        ({"tasks": [{"task": ""}]}, "`tasks[0].task`"),
        ({"tasks": [{"task": "x", "prompt": "y"}]}, "'prompt' was unexpected"),
        ({"tasks": [{"task": "x", "max_turns": 0}]}, "`tasks[0].max_turns`: 0 is less than the minimum of 1"),
        ({"tasks": [{"task": "x", "read_first": ["a"] * 11}]}, "`tasks[0].read_first`"),
    ],
)
def test_unfitting_tasks_are_answered_with_what_to_change(arguments: Any, hint: str) -> None:
    with pytest.raises(InvalidToolInputError) as refused:
        toolbox.parse(SPEC.name, json.dumps(arguments))
    assert hint in str(refused.value)
