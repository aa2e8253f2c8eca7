"""What providers take of the input schema of a tool. One that they do not take fails the requests of every run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from actors.ports import ToolSpec

NOT_AT_THE_TOP = ("oneOf", "anyOf", "allOf", "not", "enum")
"""Keywords that providers refuse at the top of a schema, and take inside of it."""


def for_providers(tool: ToolSpec) -> ToolSpec:
    """Return a tool whose description says what cannot be at the top of its schema; most are returned as they are.

    Nothing is lost by that: whoever runs the tool compares its input with the whole schema.
    """
    moved = {key: tool.input_schema[key] for key in NOT_AT_THE_TOP if key in tool.input_schema}
    if not moved:
        return tool
    kept = {key: value for key, value in tool.input_schema.items() if key not in moved}
    words = f"The input must also fit this JSON Schema: {json.dumps(moved, ensure_ascii=False)}"
    return replace(tool, description=f"{tool.description}\n\n{words}".lstrip(), input_schema=kept)
