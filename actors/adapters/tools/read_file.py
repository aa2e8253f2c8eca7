"""The tool read_file: shows numbered lines of a text file, read by a worker process that can be killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.adapters.tools.program_launch import run_worker
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import ToolContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LIMIT = 2000

ALIASES = {"file_path": "path", "filename": "path"}
"""Wrong argument names that models often use, each with the right name."""

SPEC = ToolSpec(
    description=(
        "Read a UTF-8 text file. Lines come with their numbers; a last line in brackets says how many were not shown. "
        "Relative paths start at the working directory. For binary files and directories use bash."
    ),
    input_schema={
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path of the file."},
            "offset": {
                "type": "integer",
                "minimum": 1,
                "description": "First line to show, from 1; default 1.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "description": f"How many lines to show at most; default {DEFAULT_LIMIT}.",
            },
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    essential=True,
)


class ReadFileTool:
    """The tool that shows text files (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's specification."""
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Show the requested lines. Raises ToolTransientError if the worker is lost."""
        path = arguments["path"]
        if "\0" in path:
            return ToolOutput("Cannot read it: the path contains a NUL character.", is_error=True)
        offset, limit = int(arguments.get("offset", 1)), int(arguments.get("limit", DEFAULT_LIMIT))
        return run_worker("read_file", (path, str(offset), str(limit)), context, what=f"Reading {path}")
