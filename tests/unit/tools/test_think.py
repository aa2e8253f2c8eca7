"""think: acknowledged, and nothing else."""

from typing import Any

from actors.adapters.tools.registry import ThinkTool


def test_thoughts_are_noted_and_nothing_runs(call: Any) -> None:
    output = ThinkTool().run({"thoughts": ""}, call.context)
    assert (output.text, output.is_error) == ("Noted.", False)
    assert not call.sandbox.launches
