"""The tool think: lets the model write down its reasoning; it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import ToolContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

SPEC = ToolSpec(
    description=(
        "Write down reasoning that you want to keep in the conversation: a plan, what you learned, what to check next. "
        "It has no effect and returns nothing new."
    ),
    input_schema={
        "type": "object",
        "required": ["thoughts"],
        "properties": {"thoughts": {"type": "string", "description": "What you think."}},
        "additionalProperties": False,
    },
    traits=ToolTraits("think", ToolGroup.OTHER, retry_safe=True),
    instant=True,
)


class ThinkTool:
    """The tool that acknowledges the model's thoughts (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's specification."""
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return an acknowledgement."""
        return ToolOutput("Noted.")
