"""bash: which arguments go together, and what the model reads when they do not."""

import json
from typing import Any

import pytest

from actors.adapters.tools.bash.tool import KillJob, PeekJob, Request, SpawnJob, WaitForJob, request
from actors.adapters.tools.program_launch import ToolRefusedError


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"cmd": "ls"}, SpawnJob("ls", 30)),
        ({"cmd": "ls", "wait_seconds": 0}, SpawnJob("ls", 0)),
        ({"cmd": "ls", "wait_seconds": 900.0}, SpawnJob("ls", 900)),
        ({"peek": "b-1"}, PeekJob("b-1", 200)),
        ({"peek": "b-1", "lines": 5}, PeekJob("b-1", 5)),
        ({"peek": "b-1", "since": 0}, PeekJob("b-1", since=0)),
        ({"wait": "b-1"}, WaitForJob("b-1", 30)),
        ({"wait": "b-1", "wait_seconds": 7}, WaitForJob("b-1", 7)),
        ({"kill": "b-1"}, KillJob("b-1", 15)),
        ({"kill": "b-1", "signal": "KILL"}, KillJob("b-1", 9)),
    ],
)
def test_one_call_asks_for_one_thing(arguments: dict[str, Any], asked: Request) -> None:
    assert request(arguments) == asked


@pytest.mark.parametrize(
    ("arguments", "conflicting"),
    [
        ({}, []),
        ({"wait_seconds": 3}, []),
        ({"cmd": "ls", "wait": "b-1"}, ["cmd", "wait"]),
        ({"kill": "b-1", "wait": "b-1", "peek": "b-1"}, ["peek", "wait", "kill"]),
        ({"cmd": "ls", "signal": "KILL"}, ["cmd", "signal"]),
        ({"peek": "b-1", "wait_seconds": 3}, ["peek", "wait_seconds"]),
        ({"wait": "b-1", "lines": 3}, ["wait", "lines"]),
        ({"kill": "b-1", "since": 3}, ["kill", "since"]),
    ],
)
def test_arguments_that_contradict_each_other_are_named(arguments: dict[str, Any], conflicting: list[str]) -> None:
    with pytest.raises(ToolRefusedError) as refused:
        request(arguments)
    assert str(refused.value).startswith("mutually_exclusive_modes: ")
    assert refused.value.details["conflicting_args"] == conflicting
    assert all(f"`{name}`" in str(refused.value) for name in conflicting)
    assert json.loads(refused.value.output().display)["error"] == "mutually_exclusive_modes"


@pytest.mark.parametrize("seconds", [-1, 901, 10**30])
@pytest.mark.parametrize("what", ["cmd", "wait"])
def test_a_wait_has_bounds(what: str, seconds: int) -> None:
    with pytest.raises(ToolRefusedError, match=r"wait_seconds_out_of_range: .* between 0 and 900"):
        request({what: "b-1", "wait_seconds": seconds})


def test_lines_and_since_exclude_each_other() -> None:
    with pytest.raises(ToolRefusedError, match="peek_args_mutually_exclusive: "):
        request({"peek": "b-1", "lines": 3, "since": 3})
