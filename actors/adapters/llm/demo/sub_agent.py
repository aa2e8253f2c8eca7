"""The script of the demo model as a sub-agent: it does the task with a tool, then submits the result.

Pure functions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from actors.adapters.llm.demo.script import Scene, bash_input, said_in, shortened, using
from actors.adapters.llm.protocols.rendering import is_failed
from actors.core.content import ToolResult, ToolUse, is_tool_result

if TYPE_CHECKING:
    from actors.ports import ModelRequest

_RUN = re.compile(r"(?:^|:)\s*run\s+(.+)", re.IGNORECASE)
_READ = re.compile(r"(?:^|:)\s*read\s+(\S+)", re.IGNORECASE)
_COUNT = re.compile(r"^\s*count\b", re.IGNORECASE)
_SUBMITTED_LINES = 5
_WENT_WELL = "[exit code 0]"
"""The line that bash appends to the output of a successful command."""


def sub_agent_scene(request: ModelRequest) -> Scene:
    """Return the demo model's answer as a sub-agent; the same request always gets the same answer."""
    task = next((text for turn in request.turns for text in said_in(turn)), "")
    last = request.turns[-1].content if request.turns else ()
    results = [block for block in last if is_tool_result(block) and not _is_submission(block, request)]
    if results:
        return _submit(results[-1], request)
    if any(turn.role == "assistant" for turn in request.turns):
        return using("submit_result", {"result": f"Done, by script: {shortened(task)}"}, "I am done.", request)
    return _begin(task, request)


def _begin(task: str, request: ModelRequest) -> Scene:
    if found := _RUN.search(task):
        return using("bash", bash_input(request, found[1].strip()), "I will run that.", request)
    if found := _READ.search(task):
        return using("read_file", {"path": found[1]}, f"I will read {found[1]}.", request)
    if _COUNT.search(task):
        return Scene("I count, slowly. Cancel me: " + " ".join(map(str, range(1, 61))), tempo=10)
    if any(tool.name == "think" for tool in request.tools):
        return using("think", {"thoughts": f"My task: {shortened(task)}"}, "I have a task.", request)
    return using("submit_result", {"result": f"Done, by script: {shortened(task)}"}, "I am done.", request)


def _submit(result: ToolResult, request: ModelRequest) -> Scene:
    lines = [line for line in result.output.strip().splitlines() if line != _WENT_WELL]
    said = "\n".join(lines[:_SUBMITTED_LINES]) or "nothing"
    if is_failed(result):
        return using("submit_error", {"error": said}, "That did not work.", request)
    return using("submit_result", {"result": said}, "I am done.", request)


def _is_submission(result: ToolResult, request: ModelRequest) -> bool:
    """Return whether `result` is the error of a refused `submit_…` call; an accepted call would end the sub-agent."""
    blocks = (block for turn in request.turns for block in turn.content)
    return any(
        isinstance(block, ToolUse) and block.id == result.tool_use_id and block.name.startswith("submit_")
        for block in blocks
    )
