"""The tool search: finds lines of files that match a pattern, in a worker process that can be killed."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from typing import TYPE_CHECKING, Any

from actors.adapters.tools.environment import tool_environment
from actors.adapters.tools.program_launch import run_worker
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import ToolContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RESULTS = 50
MAX_RESULTS = 1000
MAX_PATTERN = 4_096
"""Maximum characters of a pattern: long ones take very long to compile."""

ALIASES = {"regex": "pattern", "query": "pattern", "glob": "include"}
"""Wrong argument names that models often use, each with the right name."""

SPEC = ToolSpec(
    description=(
        "Search files for lines that match a regular expression. Results look like `path:line: text`; long lines are "
        "cut around the match. Respects .gitignore and .git/info/exclude; hidden files are included; .git, binary "
        "files, files larger than 10 MiB and symbolic links are skipped. Lines are searched one by one. Case matters "
        "unless the pattern starts with (?i)."
    ),
    input_schema={
        "type": "object",
        "required": ["pattern"],
        "properties": {
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_PATTERN,
                "description": "A Rust regular expression: no look-around, no backreferences.",
            },
            "path": {
                "type": "string",
                "minLength": 1,
                "maxLength": 4096,
                "description": "Directory or file to search; the working directory if left out.",
            },
            "include": {
                "type": "string",
                "maxLength": MAX_PATTERN,
                "minLength": 1,
                "description": (
                    "Only files that fit this glob. Without a slash it is for the file's name (`*.py`, `*.{ts,tsx}`), "
                    "with one for its path from the directory that is searched (`src/**/*.py`), ignored files included."
                ),
            },
            "exclude": {
                "type": "string",
                "maxLength": MAX_PATTERN,
                "minLength": 1,
                "description": "No files and directories that fit this glob, which works as that of `include`.",
            },
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_RESULTS,
                "description": f"How many lines to show at most; default {DEFAULT_RESULTS}.",
            },
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("search", ToolGroup.READ, retry_safe=True),
)

MISSING = (
    "ripgrep is not installed on the server's machine. Tell the person to install it (package ripgrep), or use bash."
)

HINT = "Narrow `path` or `include`, or write a simpler pattern."


class SearchTool:
    """The tool that searches files (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's specification."""
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Show the matching lines. Raises ToolTransientError if the worker is lost, or SandboxUnavailableError."""
        asked = {
            "pattern": arguments["pattern"],
            "path": arguments.get("path", "."),
            "include": arguments.get("include", ""),
            "exclude": arguments.get("exclude", ""),
            "max_results": int(arguments.get("max_results", DEFAULT_RESULTS)),
        }
        if not (program := ripgrep()):
            return ToolOutput(MISSING, is_error=True)
        stdin = json.dumps(asked | {"ripgrep": program}).encode()
        return run_worker("search", (), context, what="The search", stdin=stdin, hint=HINT)


def ripgrep() -> str:
    """Return the absolute path of ripgrep, the one installed with the server first; "" if there is none.

    Relative entries of PATH are ignored, because they could lead to a program of another user.
    """
    path = os.pathsep.join((sysconfig.get_path("scripts"), tool_environment()["PATH"]))
    found = shutil.which("rg", path=path) or ""
    return found if found.startswith("/") else ""
