"""Formats the bash tool's results: text for the model, and JSON for display, whose `status` is the kind of result."""

from __future__ import annotations

import codecs
import json
import re
import signal
from typing import Any

from msgspec.structs import replace

from actors.adapters.tools.bash.job import Job
from actors.adapters.tools.bash.scrollback import LineWindow
from actors.adapters.tools.request_mode_upgrade import FOR_AGENT
from actors.common.terminal_text import rendered
from actors.ports import ProcessEnd, ToolOutput

PEEK_HINT = "call bash with `wait`, `peek` or `kill` and this handle"


def exited(
    job: Job, end: ProcessEnd, cwd: str, *, cancelled: bool = False, hint: str = "", is_error: bool = False
) -> ToolOutput:
    """The result of a command that ended during the call; `hint` advises the model to request a wider mode."""
    lines = ["cancelled; the command and everything it started were killed"] if cancelled else [_verdict(end)]
    if end.reaped and not end.killed:
        lines.append(f"killed {_count(len(end.reaped))} that it left running")
    if end.leaked:
        lines.append("leaked: not all of its processes could be confirmed dead; some might still be running")
    display = {"status": "cancelled" if cancelled else "exited", **_figures(job, end, cwd), "cut_bytes": end.cut_bytes}
    if end.leaked:
        display["leaked"] = True
    if hint:
        display |= FOR_AGENT
    answer = _answer(_output(end), [*lines, hint], display, is_error=is_error or end.leaked)
    return replace(answer, ended_job=job.handle if job.background else "")


def still_running(job: Job, window: LineWindow, cwd: str, *, waited_ms: int) -> ToolOutput:
    state = f"still running after a wait of {_seconds(waited_ms / 1000)}, as {job.handle}: {PEEK_HINT}"
    display = {"status": "still_running", **_running(job, cwd), "waited_ms": waited_ms, "window": _bounds(window)}
    return _answer(_text(window.text), [state, _extent(window)], display)


def stopped_waiting(job: Job, cwd: str) -> ToolOutput:
    display = {"status": "still_running", **_running(job, cwd)}
    return _answer("", [f"cancelled; {job.handle} continues"], display, is_error=True)


def kill_pending(job: Job, window: LineWindow, cwd: str, *, number: int, waited_ms: int) -> ToolOutput:
    advice = 'to force it, kill it with signal "KILL"' if number != signal.SIGKILL else "it is stuck in the kernel"
    waited = _seconds(waited_ms / 1000)
    state = f"kill_pending_kernel: {job.handle} is still running {waited} after signal {_signal_name(number)}; {advice}"
    display = {"status": "kill_pending_kernel", **_running(job, cwd), "waited_ms": waited_ms}
    return _answer(_text(window.text), [state, _extent(window)], display | {"window": _bounds(window)})


def running(job: Job, window: LineWindow, cwd: str) -> ToolOutput:
    state = f"{job.handle} has been running for {_seconds(job.age_seconds)}"
    if job.kill_pending:
        state += '; it was sent a signal but has not ended: kill it with signal "KILL"'
    display = {"status": "running", **_running(job, cwd), "kill_pending": job.kill_pending, "window": _bounds(window)}
    return _answer(_text(window.text), [state, _extent(window)], display)


def tombstoned(job: Job, end: ProcessEnd, window: LineWindow, cwd: str, *, unsent: bool = False) -> ToolOutput:
    """The result for a job that had already ended; `unsent` means that a signal was requested but not sent."""
    state = f"{job.handle} has ended: {_verdict(end)}" + ("; no signal was sent" if unsent else "")
    cause = "killed" if end.killed or end.signal or _shell_signal(end) else "exited"
    display = {"status": "tombstoned", **_figures(job, end, cwd), "final_cause": cause, "window": _bounds(window)}
    return replace(_answer(_text(window.text), [state, _extent(window)], display), ended_job=job.handle)


def display_command(command: str, cwd: str) -> str:
    """A command for display, without a leading `cd` to the directory in which the command runs anyway."""
    begun = re.match(r"""\s*cd\s+(?:--\s+)?('[^']*'|"[^"$`\\]*"|[^\s'"$`\\;&|<>()]+)\s*(?:&&|;(?!;))\s*""", command)
    if begun is None or begun.end() == len(command):
        return command
    directory = begun[1].strip("'\"")
    return command[begun.end() :] if directory.rstrip("/") == cwd.rstrip("/") else command


def _answer(output: str, lines: list[str], display: dict[str, Any], *, is_error: bool = False) -> ToolOutput:
    separator = "" if not output or output.endswith("\n") else "\n"
    footer = "\n".join(f"[{line}]" for line in lines if line)
    return ToolOutput(output + separator + footer, is_error=is_error, display=json.dumps(display))


def _figures(job: Job, end: ProcessEnd, cwd: str) -> dict[str, Any]:
    return {
        "handle": job.handle,
        "command": display_command(job.command, cwd),
        "exit_code": end.exit_code,
        "signal": end.signal or _shell_signal(end),
        "duration_ms": end.duration_ms,
        "killed_processes": len(end.reaped),
    }


def _running(job: Job, cwd: str) -> dict[str, Any]:
    return {
        "handle": job.handle,
        "command": display_command(job.command, cwd),
        "duration_ms": round(job.age_seconds * 1000),
    }


def _bounds(window: LineWindow) -> dict[str, Any]:
    return {"start_offset": window.start, "end_offset": window.end, "truncated_before": window.truncated_before}


def _extent(window: LineWindow) -> str:
    if window.end > window.start:
        extent = f"lines {window.start} to {window.end - 1}"
    elif window.open:
        extent = f"line {window.end}"
    else:
        extent = "no new output" if window.end else "no output yet"
    if window.open:
        extent += f"; line {window.end} is incomplete"
    if window.truncated_before:
        extent += "; earlier lines were discarded"
    if window.more:
        return f"{extent}; there is more: peek with since={window.end}"
    return f"{extent}; to continue, peek with since={window.end}"


def _output(end: ProcessEnd) -> str:
    if not end.cut_bytes:
        return _text(end.head)
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(end.head)
    tail = end.tail
    while tail and tail[0] & 0xC0 == 0x80 and len(end.tail) - len(tail) < 3:
        tail = tail[1:]
    return f"{rendered(head)}\n[{end.cut_bytes} bytes cut here]\n{_text(tail)}"


def _text(output: bytes) -> str:
    """Decode output as text, and render it as a terminal would, unless it is rendered already."""
    return rendered(output.decode(errors="replace"))


def _verdict(end: ProcessEnd) -> str:
    if end.limit == "processes":
        return "killed, with everything it started: it exceeded the limit of processes per call"
    if end.limit == "memory":
        return "killed, with everything it started: it exceeded the memory limit per call"
    if end.limit == "lease":
        return "killed, with everything it started: the cluster's database did not respond"
    if end.killed:
        return "killed, with everything it started"
    if end.exit_code is None:
        return f"killed by signal {_signal_name(end.signal)}" if end.signal else "how it ended is unknown"
    name = _signal_name(_shell_signal(end) or 0)
    return f"exit code {end.exit_code}" + (f", as after signal {name}" if name else "")


def _shell_signal(end: ProcessEnd) -> int | None:
    """The signal that a shell reports by an exit code above 128; None for any other exit code."""
    number = (end.exit_code or 0) - 128
    return number if number > 0 and _signal_name(number) else None


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
