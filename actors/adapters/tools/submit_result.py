"""The tools submit_result and submit_error, with which a sub-agent reports its result or its failure, and ends.

Only their specifications are here, because the state machine (actors.core) handles the calls.
"""

from __future__ import annotations

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import ToolSpec

RESULT_SPEC = ToolSpec(
    description=(
        "Give your final result to the agent that started you, and end. It must be the only call in the response. "
        "With success=false it counts as a failure, with the result as its reason."
    ),
    input_schema={
        "type": "object",
        "required": ["result"],
        "properties": {
            "result": {"type": "string", "description": "Final result to return to parent conversation"},
            "success": {"type": "boolean", "description": "Whether the task completed successfully"},
        },
    },
    traits=ToolTraits("submit_result", ToolGroup.OTHER),
    essential=True,
)

ERROR_SPEC = ToolSpec(
    description=(
        "Tell the agent that started you that the task cannot be done, and end. It must be the only call in the "
        "response."
    ),
    input_schema={
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "Why the task cannot be done, and what you tried."}},
    },
    traits=ToolTraits("submit_error", ToolGroup.OTHER),
    essential=True,
)
