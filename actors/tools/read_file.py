"""read_file: numbered lines of a text file, read by a worker process that can be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import Launch, ProcessEnd, ProcessLimits, ToolContext, ToolOutput, ToolSpec, ToolTransientError
from actors.tools import read_file_worker
from actors.tools.launching import WorkingDirectoryGone, run_program

DEFAULT_LIMIT = 2000
TIMEOUT_SECONDS = 60
WORKER_OUTPUT_BYTES = 256 * 1024
"""More than the worker ever writes."""

SPEC = ToolSpec(
    name="read_file",
    description=(
        "Read a UTF-8 text file. Lines come with their numbers; a last line in brackets says how many were not shown. "
        "Relative paths start at the working directory. For binary files and directories use bash."
    ),
    input_schema={
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "Path of the file."},
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
)


class ReadFileTool:
    """Reads text files (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Show the lines asked for; raises ToolTransientError if the worker is lost."""
        path = arguments["path"]
        if "\0" in path:
            return ToolOutput("Cannot read it: the path contains a NUL character.", is_error=True)
        offset, limit = int(arguments.get("offset", 1)), int(arguments.get("limit", DEFAULT_LIMIT))
        launch = Launch(
            argv=(sys.executable, "-I", "-S", str(read_file_worker.__file__), path, str(offset), str(limit)),
            cwd=context.working_directory,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            mode=context.mode,
            limits=ProcessLimits(wall_seconds=TIMEOUT_SECONDS),
            output_bytes=WORKER_OUTPUT_BYTES,
        )
        try:
            end = run_program(launch, context, lambda data: None)
        except WorkingDirectoryGone as gone:
            return ToolOutput(str(gone), is_error=True)
        return _output(end, path)


def _output(end: ProcessEnd, path: str) -> ToolOutput:
    if end.limit == "wall":
        return ToolOutput(f"Cannot read {path}: it took longer than {TIMEOUT_SECONDS} s.", is_error=True)
    if end.killed:
        return ToolOutput(f"Reading {path} was cancelled.", is_error=True)
    verdict, _, text = end.head.partition(b"\n")
    if end.exit_code != 0 or verdict not in {b"ok", b"error"}:
        raise ToolTransientError("The process that reads files was lost.", begun=True)
    return ToolOutput(text.decode(errors="replace"), is_error=verdict == b"error")
