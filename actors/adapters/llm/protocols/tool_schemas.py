"""Changes the input schemas of tools so that all providers accept them.

If a provider refused one of the schemas, all requests that offer this tool would fail.
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
    """Return the tool as providers accept it: keywords that they refuse at the top of its schema go to its description.

    Most tools are returned unchanged. No check is lost, because Bedrock or the client that runs the tool validates the
    input by the whole schema.
    """
    moved = {key: tool.input_schema[key] for key in NOT_AT_THE_TOP if key in tool.input_schema}
    if not moved:
        return tool
    kept = {key: value for key, value in tool.input_schema.items() if key not in moved}
    words = f"The input must also fit this JSON Schema: {json.dumps(moved, ensure_ascii=False)}"
    return replace(tool, description=f"{tool.description}\n\n{words}".lstrip(), input_schema=kept)
