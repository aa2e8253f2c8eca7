"""Adapts the input schemas of tools to what providers accept.

If a provider refused one of the schemas, the requests of every run would fail.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from actors.ports import ToolSpec

NOT_AT_THE_TOP = ("oneOf", "anyOf", "allOf", "not", "enum")
"""Keywords that providers refuse at the top level of a schema, but accept inside it."""


def for_providers(tool: ToolSpec) -> ToolSpec:
    """Return a tool that providers accept: keywords not allowed at the top of its schema go into its description.

    Most tools are returned unchanged. No check is lost, because Bedrock or the client that runs the tool validates the
    input by the whole schema.
    """
    moved = {key: tool.input_schema[key] for key in NOT_AT_THE_TOP if key in tool.input_schema}
    if not moved:
        return tool
    kept = {key: value for key, value in tool.input_schema.items() if key not in moved}
    words = f"The input must also fit this JSON Schema: {json.dumps(moved, ensure_ascii=False)}"
    return replace(tool, description=f"{tool.description}\n\n{words}".lstrip(), input_schema=kept)
