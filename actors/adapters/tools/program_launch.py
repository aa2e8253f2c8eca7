"""Runs a program or a worker process for a tool, and registers it so that cancelling the tool call kills it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actors.adapters.tools import workers
from actors.ports import (
    Launch,
    ProcessEnd,
    ProcessLimits,
    ProcessStartError,
    RunningProcess,
    ToolContext,
    ToolOutput,
    ToolTransientError,
)

# Variables that every process gets, with the values for those that are not set. Some of these values turn off colours
# and pagers.
DEFAULTS = {"PATH": os.defpath, "HOME": "/", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}

# Variables that are passed on if they are set, in addition to LC_*.
PASSED = ("USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONDONTWRITEBYTECODE", *DEFAULTS)


def tool_environment(server: Mapping[str, str] | None = None) -> dict[str, str]:
    """The complete environment of a tool's process, selected from `server` (os.environ).

    HOME is kept, because git and shells have their configuration there; TERM is "dumb", because there is no terminal.
    """
    server = os.environ if server is None else server
    passed = {name: value for name, value in server.items() if name in PASSED or name.startswith("LC_")}
    return DEFAULTS | passed | {"TERM": "dumb"}


class ToolRefusedError(Exception):
    """The call was refused and nothing was done. The message says what to do instead; `details` is for users."""

    def __init__(self, error: str, text: str, **details: Any) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error
        self.details = details

    def output(self) -> ToolOutput:
        display = json.dumps({"status": "refused", "error": self.error, **self.details})
        return ToolOutput(str(self), is_error=True, display=display)


WORKER_SECONDS = 60
WORKER_OUTPUT_BYTES = 256 * 1024

WORKER_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from {package} import {name}; {name}.main(sys.argv[1:])"


class WorkingDirectoryMissingError(Exception):
    """The conversation's directory no longer exists; the message is for the model."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The working directory {path} no longer exists, so no tool can run. Tell the user.")


def run_program(launch: Launch, context: ToolContext, on_output: Callable[[bytes], None]) -> ProcessEnd:
    """Run a program to its end on the tool's thread; a cancel kills its tree. Raises what `start_program` raises."""
    running = start_program(launch, context, on_output)
    context.track(running)
    end = running.wait()
    context.reaped(end.reaped)
    return end


def start_program(launch: Launch, context: ToolContext, on_output: Callable[[bytes], None]) -> RunningProcess:
    """Start a program on the tool's thread; the caller registers it for cancellation and waits for it.

    If the program did not start, raises WorkingDirectoryMissingError, ToolTransientError (begun=False) or
    SandboxUnavailableError.
    """
    if not os.path.isdir(launch.cwd):
        raise WorkingDirectoryMissingError(launch.cwd)
    try:
        return context.sandbox.start(launch, on_output)
    except ProcessStartError as failed:
        if not os.path.isdir(launch.cwd):
            raise WorkingDirectoryMissingError(launch.cwd) from failed
        raise ToolTransientError(f"The tool's process could not be started: {failed}.", begun=False) from failed


def run_worker(worker: str, arguments: tuple[str, ...], context: ToolContext, **more: Any) -> ToolOutput:
    """Like `worker_answer`, but return the worker's output as text."""
    answer = worker_answer(worker, arguments, context, **more)
    return answer if isinstance(answer, ToolOutput) else ToolOutput(answer.decode(errors="replace"))


def worker_answer(
    worker: str,
    arguments: tuple[str, ...],
    context: ToolContext,
    *,
    what: str,
    stdin: bytes = b"",
    hint: str = "",
    output_bytes: int = WORKER_OUTPUT_BYTES,
) -> bytes | ToolOutput:
    """Run a worker (a module in actors.adapters.tools.workers); return its output, or the error for the model.

    It runs in a process of its own. Only this process imports the module, which saves memory in a server without
    agents. `what` names the activity for users ("Reading a.txt"); `hint` tells the model what to change if a limit is
    exceeded. Raises ToolTransientError or SandboxUnavailableError.
    """
    launch = Launch(
        argv=(worker_source(worker), *arguments),
        python=True,
        cwd=context.working_directory,
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        mode=context.mode,
        limits=ProcessLimits(wall_seconds=WORKER_SECONDS),
        stdin=stdin,
        output_bytes=output_bytes,
    )
    try:
        end = run_program(launch, context, lambda _data: None)
    except WorkingDirectoryMissingError as missing:
        return ToolOutput(str(missing), is_error=True)
    return _answer(end, what, hint)


def worker_source(worker: str) -> str:
    """The Python source that runs the module `worker`."""
    return WORKER_PROGRAM.format(root=str(Path(__file__).parents[3]), package=workers.__name__, name=worker)


def _answer(end: ProcessEnd, what: str, hint: str) -> bytes | ToolOutput:
    if end.limit == "wall":
        said = f"{what} took longer than {WORKER_SECONDS} s and was killed. {hint}"
        return ToolOutput(said.rstrip(), is_error=True)
    if end.limit == "lease":
        raise ToolTransientError(f"{what} was killed: the cluster's database did not respond.", begun=True)
    if end.limit:
        return ToolOutput(
            f"{what} used more {end.limit} than a call is allowed and was killed. {hint}".rstrip(), is_error=True
        )
    if end.killed:
        return ToolOutput(f"{what} was cancelled.", is_error=True)
    if end.leaked:
        return ToolOutput(f"{what} failed: some of its processes might still be running.", is_error=True)
    verdict, _, text = end.head.partition(b"\n")
    if end.exit_code != 0 or verdict not in {b"ok", b"error"}:
        raise ToolTransientError(f"{what} failed: its process was lost.", begun=True)
    return ToolOutput(text.decode(errors="replace"), is_error=True) if verdict == b"error" else text
