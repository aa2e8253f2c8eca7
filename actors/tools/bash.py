"""bash: run one command in the conversation's working directory. What it leaves behind ends with the call (C46)."""

from __future__ import annotations

import codecs
import json
import signal
from collections.abc import Callable, Mapping
from typing import Any

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import Launch, ProcessEnd, ProcessLimits, ToolContext, ToolOutput, ToolSpec
from actors.tools.environment import tool_environment
from actors.tools.launching import WorkingDirectoryGone, run_program

DEFAULT_TIMEOUT_SECONDS = 300
MAX_TIMEOUT_SECONDS = 900
MAX_COMMAND_BYTES = 128 * 1024 - 1
"""The kernel takes no longer argument."""

ALIASES = {"command": "cmd"}
"""Names that models use for an argument from habit."""

SPEC = ToolSpec(
    name="bash",
    description=(
        "Run a shell command with `bash -c` in the conversation's working directory and return its output (stdout and "
        "stderr merged) and exit code. Every call is a new shell: `cd` and variables do not persist, so chain with "
        "`&&`. There is no terminal and stdin is empty: commands that ask questions get no answer. The call ends when "
        "the command ends; background processes that it leaves behind are killed then, so start a server and use it in "
        "one call. Output beyond 128 KiB is cut in the middle. A command that runs longer than timeout_seconds is "
        "killed with everything it started."
    ),
    input_schema={
        "type": "object",
        "required": ["cmd"],
        "properties": {
            "cmd": {"type": "string", "minLength": 1, "description": "The command, as after `bash -c`."},
            "timeout_seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_SECONDS,
                "description": f"Kill the command after this many seconds; {DEFAULT_TIMEOUT_SECONDS} if left out.",
            },
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("bash", ToolGroup.BASH, writes=True),
)


class BashTool:
    """Runs shell commands (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run `cmd` to its end; a non-zero exit is a result like any other, running out of time is an error."""
        command = arguments["cmd"]
        if "\0" in command:
            return ToolOutput("Not run: `cmd` contains a NUL character; write it as an escape instead.", is_error=True)
        if len(command.encode()) > MAX_COMMAND_BYTES:
            text = f"Not run: `cmd` is longer than {MAX_COMMAND_BYTES} bytes; write the text to a file in pieces first."
            return ToolOutput(text, is_error=True)
        seconds = int(arguments.get("timeout_seconds", DEFAULT_TIMEOUT_SECONDS))
        launch = Launch(
            argv=("bash", "-c", command),
            cwd=context.working_directory,
            env=tool_environment(),
            mode=context.mode,
            limits=ProcessLimits(wall_seconds=seconds),
        )
        live = LiveText(context.on_output)
        try:
            end = run_program(launch, context, live.feed)
        except WorkingDirectoryGone as gone:
            return ToolOutput(str(gone), is_error=True)
        live.finish()
        return ToolOutput(_text(end, seconds), is_error=end.killed, display=_display(end))


class LiveText:
    """Turns pieces of bytes into pieces of text, never splitting a character. One thread at a time."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        self._pass_on(self._decoder.decode(data))

    def finish(self) -> None:
        """Show what an incomplete last character left."""
        self._pass_on(self._decoder.decode(b"", final=True))

    def _pass_on(self, text: str) -> None:
        if text:
            self._show(text)


def _text(end: ProcessEnd, seconds: int) -> str:
    """What the model reads: the output, then a line on how it ended."""
    output = _output(end)
    separator = "" if not output or output.endswith("\n") else "\n"
    lines = [_verdict(end, seconds)]
    if end.reaped and not end.killed:
        lines.append(f"{_count(len(end.reaped))} it left running: killed")
    if end.leaked:
        lines.append("not all of its processes could be confirmed dead")
    return output + separator + "\n".join(f"[{line}]" for line in lines)


def _output(end: ProcessEnd) -> str:
    if not end.cut_bytes:
        return end.head.decode(errors="replace")
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(end.head)
    tail = end.tail
    while tail and tail[0] & 0xC0 == 0x80 and len(end.tail) - len(tail) < 3:
        tail = tail[1:]
    return f"{head}\n[{end.cut_bytes} bytes cut here]\n{tail.decode(errors='replace')}"


def _verdict(end: ProcessEnd, seconds: int) -> str:
    if end.limit == "wall":
        return f"timed out after {seconds} s; the command and all it started were killed"
    if end.killed:
        return "cancelled; the command and all it started were killed"
    if end.exit_code is None:
        return f"killed by signal {_signal_name(end.signal or 0)}"
    name = _signal_name(end.exit_code - 128) if end.exit_code > 128 else ""
    return f"exit code {end.exit_code}" + (f", as after signal {name}" if name else "")


def _signal_name(number: int) -> str:
    """E.g. "9 (SIGKILL)"; "" if there is no such signal."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _display(end: ProcessEnd) -> str:
    return json.dumps(
        {
            "exit_code": end.exit_code,
            "signal": end.signal,
            "duration_ms": end.duration_ms,
            "timed_out": end.limit == "wall",
            "cut_bytes": end.cut_bytes,
            "killed_processes": len(end.reaped),
        }
    )
