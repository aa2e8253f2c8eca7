"""How a tool runs a program: started, tracked for cancel, waited for, accounted for."""

from __future__ import annotations

import os
from collections.abc import Callable

from actors.ports import Launch, ProcessEnd, ProcessStartFailed, ToolContext, ToolTransientError


class WorkingDirectoryGone(Exception):
    """The conversation's directory no longer exists (C40); the text is for the model."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The working directory {path} no longer exists, so no tool can run. Tell the person.")


def run_program(launch: Launch, context: ToolContext, on_output: Callable[[bytes], None]) -> ProcessEnd:
    """Run it to its end (tool thread); a cancel kills its tree meanwhile.

    Raises WorkingDirectoryGone, ToolTransientError (begun=False) or SandboxUnavailable; then it did not begin.
    """
    if not os.path.isdir(launch.cwd):
        raise WorkingDirectoryGone(launch.cwd)
    try:
        running = context.sandbox.start(launch, on_output)
    except ProcessStartFailed as failed:
        if not os.path.isdir(launch.cwd):
            raise WorkingDirectoryGone(launch.cwd) from failed
        raise ToolTransientError(f"The tool's process could not be started: {failed}.", begun=False) from failed
    context.track(running)
    end = running.wait()
    context.reaped(end.reaped)
    return end
