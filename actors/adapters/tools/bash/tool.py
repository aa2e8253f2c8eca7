"""The bash tool: runs a command in the conversation's working directory, and manages long-running commands as jobs.

A command is never killed for taking long: when the wait is over, the call returns and the command continues as a job. A
cancel kills only the current call's command. When a command ends, the background processes that it started are killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from actors.adapters.tools.bash import output_text
from actors.adapters.tools.bash.job import MAX_LIVE, Job, JobRegistry
from actors.adapters.tools.bash.shell_guard import check_command
from actors.adapters.tools.program_launch import (
    ToolRefusedError,
    WorkingDirectoryMissingError,
    start_program,
    tool_environment,
)
from actors.adapters.tools.request_mode_upgrade import hint
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import Launch, ProcessLimits, ToolContext, ToolOutput, ToolSpec, ToolTransientError
from actors.ports.tools import object_schema

DEFAULT_WAIT_SECONDS = 30
MAX_WAIT_SECONDS = 900
# Maximum bytes of a command. It is passed to bash as a single argument, and the kernel limits an argument's length.
MAX_COMMAND_BYTES = 128 * 1024 - 1

PEEK_LINES = 200

ONE_OF = ("cmd", "peek", "wait", "kill")
BELONGS_TO = {"wait_seconds": ("cmd", "wait"), "signal": ("kill",), "lines": ("peek",), "since": ("peek",)}


class JobRequest(Struct, frozen=True):
    """What a call requests: an action, and the command or job to which it applies."""

    action: str
    subject: str
    wait_seconds: int = DEFAULT_WAIT_SECONDS
    signal: int = signal.SIGTERM
    lines: int = PEEK_LINES
    since: int | None = None


def request(arguments: Mapping[str, Any]) -> JobRequest:
    """Parse arguments. Raises ToolRefusedError if they contradict each other, exceed a limit, or contain NUL."""
    chosen = _the_one_of(arguments)
    _check_company(chosen, arguments)
    if chosen == "cmd":
        _check_command(arguments["cmd"])
    return JobRequest(
        chosen,
        arguments[chosen],
        _wait_seconds(arguments),
        signal.Signals[f"SIG{arguments.get('signal', 'TERM')}"],
        int(arguments.get("lines", PEEK_LINES)),
        int(arguments["since"]) if "since" in arguments else None,
    )


def _the_one_of(arguments: Mapping[str, Any]) -> str:
    given = [name for name in ONE_OF if name in arguments]
    if len(given) == 1:
        return given[0]
    problem = f"not {_listed(given)} together" if given else "none was given"
    raise _conflict(f"Give exactly one of {_listed(ONE_OF)}; {problem}.", given)


def _check_company(chosen: str, arguments: Mapping[str, Any]) -> None:
    for name, owners in BELONGS_TO.items():
        if name in arguments and chosen not in owners:
            text = f"`{name}` works only with {_listed(owners)}: omit it with `{chosen}`."
            raise _conflict(text, [chosen, name])
    if "lines" in arguments and "since" in arguments:
        raise ToolRefusedError(
            "peek_args_mutually_exclusive",
            "Pass `lines` (the last N lines) or `since` (everything from line N on), not both.",
            conflicting_args=["lines", "since"],
        )


def _check_command(command: str) -> None:
    if "\0" in command:
        raise ToolRefusedError(
            "command_cannot_be_passed_on",
            "`cmd` contains a NUL character; write it as an escape instead. Nothing was run.",
        )
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise ToolRefusedError(
            "command_too_long",
            f"`cmd` is longer than {MAX_COMMAND_BYTES} bytes; write the text to a file in pieces first. "
            "Nothing was run.",
        )


def _wait_seconds(arguments: Mapping[str, Any]) -> int:
    seconds = int(arguments.get("wait_seconds", DEFAULT_WAIT_SECONDS))
    if 0 <= seconds <= MAX_WAIT_SECONDS:
        return seconds
    raise ToolRefusedError(
        "wait_seconds_out_of_range",
        f"`wait_seconds` must be between 0 and {MAX_WAIT_SECONDS}. A command that takes longer continues as a job: "
        "call bash with `wait` and its handle, as often as needed.",
    )


def _conflict(text: str, given: list[str]) -> ToolRefusedError:
    return ToolRefusedError("mutually_exclusive_modes", f"{text} Nothing was done.", conflicting_args=given)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}" if most else last


KILL_SECONDS = 30

_HANDLE = {"type": "string", "minLength": 1}

SPEC = ToolSpec(
    description=(
        "Run a shell command with `bash -c` in the conversation's working directory and return its output (stdout and "
        "stderr merged) and exit code. Give exactly one of `cmd`, `peek`, `wait` and `kill`.\n"
        "Every `cmd` is a new shell: `cd` and variables do not persist, so chain with `&&`. There is no terminal and "
        "stdin is empty: commands that ask questions get no answer. Output beyond 128 KiB is cut in the middle. The "
        "call returns when the command ends, and background processes (`&`) that it leaves behind are killed then.\n"
        "A command that is still running after wait_seconds is not killed: it continues as a job, and the result has "
        "its handle (b-1, b-2, …). `peek` shows what the job has written, `wait` waits for its end, `kill` stops it: "
        "TERM asks it to end, KILL ends it and everything it started. To run a server, start it with wait_seconds 0, "
        f"use it, then kill it. At most {MAX_LIVE} jobs run at the same time; they end when the server does.\n"
        "In restricted and workspace mode, HOME and TMPDIR are a private directory that is emptied when the command "
        "ends. In restricted mode, the command can write nowhere else; in workspace mode, it can also write beneath "
        "the working directory."
    ),
    input_schema=object_schema(
        [],
        cmd={"type": "string", "minLength": 1, "description": "The command to pass to `bash -c`."},
        peek=_HANDLE | {"description": "Handle of the job whose output to show."},
        wait=_HANDLE | {"description": "Handle of the job to wait for."},
        kill=_HANDLE | {"description": "Handle of the job to send a signal to; waits for its end."},
        wait_seconds={
            "type": "integer",
            "description": f"With cmd and wait: seconds to wait for the end, 0 to {MAX_WAIT_SECONDS}; "
            f"default {DEFAULT_WAIT_SECONDS}. The command is not killed when this time is up.",
        },
        signal={
            "type": "string",
            "enum": ["TERM", "KILL"],
            "description": "With kill: the signal to send; default TERM.",
        },
        lines={
            "type": "integer",
            "minimum": 1,
            "description": f"With peek: how many of the last lines to show; default {PEEK_LINES}.",
        },
        since={
            "type": "integer",
            "minimum": 0,
            "description": "With peek, instead of lines: show all lines from this number on, counted from 0.",
        },
    ),
    traits=ToolTraits("bash", ToolGroup.BASH, writes=True),
    essential=True,
)


class BashTool:
    def __init__(self, jobs: JobRegistry) -> None:
        self._jobs = jobs

    spec = SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Perform the requested action. A non-zero exit code of a command is a normal result, not an error."""
        try:
            asked = request(arguments)
            act = {"cmd": self._spawn, "peek": self._peek, "wait": self._wait, "kill": self._kill}[asked.action]
            return act(asked, context)
        except ToolRefusedError as refused:
            return refused.output()

    # --- cmd --------------------------------------------------------------------------------------------------------

    def _spawn(self, asked: JobRequest, context: ToolContext) -> ToolOutput:
        check_command(asked.subject, context.working_directory)
        job = self._jobs.open(context.conversation_id, asked.subject, context.tool_use_id, context.mode, context.clock)
        job.watch(context.on_output)
        try:
            return self._run(job, asked, context)
        except WorkingDirectoryMissingError as missing:
            return ToolOutput(str(missing), is_error=True)
        finally:
            job.unwatch(context.on_output)
            if not job.background:
                self._jobs.drop(context.conversation_id, job)

    def _run(self, job: Job, asked: JobRequest, context: ToolContext) -> ToolOutput:
        launch = Launch(
            argv=("bash", "-c", asked.subject),
            cwd=context.working_directory,
            env=tool_environment() | ({"TRACEPARENT": context.trace_parent} if context.trace_parent else {}),
            mode=context.mode,
            limits=ProcessLimits(wall_seconds=0),
        )
        began = context.clock.monotonic()
        process = start_program(launch, context, job.feed)
        let_go = context.track(process)
        try:
            job.attend(process)
        except RuntimeError as error:
            context.reaped(job.wait_out().reaped)
            raise ToolTransientError(f"The command was killed: monitoring failed ({error}).", begun=True) from None
        end = job.wait(asked.wait_seconds, context.cancel)
        if end is None and self._goes_on(job, let_go, context):
            return output_text.still_running(
                job, job.tail(PEEK_LINES), context.working_directory, waited_ms=_milliseconds(context, began)
            )
        end = end or job.wait_out()
        context.reaped(end.reaped)
        return output_text.exited(
            job,
            end,
            context.working_directory,
            cancelled=end.killed and context.cancel.cancelled,
            hint=hint(context.mode, end),
            is_error=end.killed,
        )

    def _goes_on(self, job: Job, let_go: Callable[[], bool], context: ToolContext) -> bool:
        """Let the job outlive its call, unless a cancel is killing it; return whether it continues.

        The job is marked as a background job before `let_go` is called. A cancel ends the call's processes first and
        background jobs next, so that it cannot miss this one.
        """
        if context.cancel.cancelled:
            return False
        job.background = True
        job.background = let_go()
        if job.background:
            job.report(context.job_changed)
        return job.background

    # --- peek, wait, kill -------------------------------------------------------------------------------------------

    def _peek(self, asked: JobRequest, context: ToolContext) -> ToolOutput:
        job = self._jobs.find(context.conversation_id, asked.subject)
        end = job.end
        window = job.tail(asked.lines) if asked.since is None else job.since(asked.since)
        if end is None:
            return output_text.running(job, window, context.working_directory)
        return output_text.tombstoned(job, end, window, context.working_directory)

    def _wait(self, asked: JobRequest, context: ToolContext) -> ToolOutput:
        job, cwd = self._jobs.find(context.conversation_id, asked.subject), context.working_directory
        began = context.clock.monotonic()
        if job.end is not None:
            return output_text.tombstoned(job, job.end, job.tail(PEEK_LINES), cwd)
        job.watch(context.on_output)
        try:
            end = job.wait(asked.wait_seconds, context.cancel)
        finally:
            job.unwatch(context.on_output)
        if end is not None:
            return output_text.exited(job, end, cwd, hint=hint(context.mode, end))
        if context.cancel.cancelled:
            return output_text.stopped_waiting(job, cwd)
        return output_text.still_running(job, job.tail(PEEK_LINES), cwd, waited_ms=_milliseconds(context, began))

    def _kill(self, asked: JobRequest, context: ToolContext) -> ToolOutput:
        job, cwd = self._jobs.find(context.conversation_id, asked.subject), context.working_directory
        began = context.clock.monotonic()
        if job.end is not None:
            return output_text.tombstoned(job, job.end, job.tail(PEEK_LINES), cwd, unsent=True)
        job.signal(asked.signal)
        end = job.wait(KILL_SECONDS, context.cancel)
        if end is not None:
            return output_text.tombstoned(job, end, job.tail(PEEK_LINES), cwd)
        if context.cancel.cancelled:
            return output_text.stopped_waiting(job, cwd)
        job.kill_pending = True
        waited = _milliseconds(context, began)
        return output_text.kill_pending(job, job.tail(PEEK_LINES), cwd, number=asked.signal, waited_ms=waited)


def _milliseconds(context: ToolContext, since: float) -> int:
    return round((context.clock.monotonic() - since) * 1000)
