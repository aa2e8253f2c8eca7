"""Tools that clients run: what a model is offered of them, and whether its calls fit them. Any thread."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from actors.core.content import ToolUse
from actors.core.context import Mode
from actors.ports import InvalidToolInputError, ToolSpec
from actors.ports.json_schema import JsonSchema
from actors.ports.tools import input_misfit, parse_arguments

if TYPE_CHECKING:
    from actors.core.content import Content
    from actors.core.profile import ClientTool

SCHEMAS = 256
"""Number of compiled schemas that are kept."""


@lru_cache(maxsize=SCHEMAS)
def compiled(schema: str) -> JsonSchema:
    """Return a schema, given as JSON text. Raises InvalidSchemaError."""
    return JsonSchema(msgspec.json.decode(schema, type=dict))


@lru_cache(maxsize=SCHEMAS)
def spec_of(tool: ClientTool) -> ToolSpec:
    """Return a tool as a model is offered it. Lean models are offered it, too: its conversation is made for it."""
    return ToolSpec(tool.description, msgspec.json.decode(tool.input_schema), tool.traits, essential=True)


def offered_in(mode: Mode | None, spec: ToolSpec) -> bool:
    """Return whether a run that began in this mode offers a tool: in Restricted only clients' tools that read."""
    return mode is not Mode.RESTRICTED or not spec.traits.client or not spec.traits.writes


def judged(content: tuple[Content, ...], tools: tuple[ClientTool, ...]) -> tuple[Content, ...]:
    """Return an answer whose calls of clients' tools have their group, and say what of their input does not fit."""
    by_name = {tool.name: tool for tool in tools}
    if not by_name:
        return content
    return tuple(
        _judged(block, by_name[block.name]) if isinstance(block, ToolUse) and block.name in by_name else block
        for block in content
    )


def _judged(call: ToolUse, tool: ClientTool) -> ToolUse:
    try:
        arguments = parse_arguments(call.name, call.input)
        problem = compiled(tool.input_schema).problem(arguments)
        bad = input_misfit(call.name, problem) if problem else ""
    except InvalidToolInputError as invalid:
        bad = str(invalid)
    return msgspec.structs.replace(call, group=tool.group, bad_input=bad)
