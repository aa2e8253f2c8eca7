"""Parses the arguments of the tool bash into the action that a call requests."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from actors.adapters.tools.refusal import ToolRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_WAIT_SECONDS = 30
MAX_WAIT_SECONDS = 900
MAX_COMMAND_BYTES = 128 * 1024 - 1
"""Maximum bytes of a command text. It is passed to bash as one argument, and the kernel limits its length."""

PEEK_LINES = 200

DEPRECATED_MODES = {"default": 30, "slow": 900, "background": 0}
"""Seconds that a call waits for the command, for each value of the deprecated argument `mode`."""

ONE_OF = ("cmd", "peek", "wait", "kill")
BELONGS_TO = {
    "wait_seconds": ("cmd", "wait"),
    "mode": ("cmd",),
    "signal": ("kill",),
    "lines": ("peek",),
    "since": ("peek",),
}


class SpawnJob(Struct, frozen=True):
    """The request to run a command."""

    command: str
    wait_seconds: int
    notice: str = ""
    """Advice about a deprecated argument, to be added to the result; "" for none."""


class PeekJob(Struct, frozen=True):
    """The request to show a job's output: its last `lines`, or all lines from number `since` on."""

    handle: str
    lines: int = PEEK_LINES
    since: int | None = None


class WaitForJob(Struct, frozen=True):
    """The request to wait for a job."""

    handle: str
    wait_seconds: int


class KillJob(Struct, frozen=True):
    """The request to send a signal to a job."""

    handle: str
    signal: int


Request: TypeAlias = SpawnJob | PeekJob | WaitForJob | KillJob


def request(arguments: Mapping[str, Any]) -> Request:
    """Convert arguments that fit the schema to a request.

    Raises ToolRefusedError if they contradict each other, if a limit is exceeded, or if the command contains NUL.
    """
    chosen = _the_one_of(arguments)
    _check_company(chosen, arguments)
    match chosen:
        case "cmd":
            return _spawn(arguments)
        case "peek":
            return _peek(arguments)
        case "wait":
            return WaitForJob(arguments["wait"], _wait_seconds(arguments, DEFAULT_WAIT_SECONDS))
        case _:
            return KillJob(arguments["kill"], signal.Signals[f"SIG{arguments.get('signal', 'TERM')}"])


def _the_one_of(arguments: Mapping[str, Any]) -> str:
    given = [name for name in ONE_OF if name in arguments]
    if len(given) == 1:
        return given[0]
    problem = f"not {_listed(given)} together" if given else "none was given"
    raise _conflict(f"Give exactly one of {_listed(ONE_OF)}; {problem}.", given)


def _check_company(chosen: str, arguments: Mapping[str, Any]) -> None:
    for name, owners in BELONGS_TO.items():
        if name in arguments and chosen not in owners:
            text = f"`{name}` goes with {_listed(owners)} only: leave it out with `{chosen}`."
            raise _conflict(text, [chosen, name])
    if "mode" in arguments and "wait_seconds" in arguments:
        seconds = DEPRECATED_MODES[arguments["mode"]]
        advice = f"leave out `mode`, which is deprecated; it means wait_seconds={seconds}"
        given = ["mode", "wait_seconds"]
        raise _conflict(f"`mode` and `wait_seconds` say the same: {advice}.", given, recommended_action=advice)
    if "lines" in arguments and "since" in arguments:
        raise ToolRefusedError(
            "peek_args_mutually_exclusive",
            "Give `lines` for the last lines or `since` for all from one on, not both.",
            conflicting_args=["lines", "since"],
        )


def _spawn(arguments: Mapping[str, Any]) -> SpawnJob:
    command = arguments["cmd"]
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
    if "mode" not in arguments:
        return SpawnJob(command, _wait_seconds(arguments, DEFAULT_WAIT_SECONDS))
    seconds = DEPRECATED_MODES[arguments["mode"]]
    return SpawnJob(command, seconds, f"`mode` is deprecated: write wait_seconds={seconds} instead")


def _peek(arguments: Mapping[str, Any]) -> PeekJob:
    since = arguments.get("since")
    if since is not None:
        return PeekJob(arguments["peek"], since=int(since))
    return PeekJob(arguments["peek"], lines=int(arguments.get("lines", PEEK_LINES)))


def _wait_seconds(arguments: Mapping[str, Any], default: int) -> int:
    seconds = int(arguments.get("wait_seconds", default))
    if 0 <= seconds <= MAX_WAIT_SECONDS:
        return seconds
    raise ToolRefusedError(
        "wait_seconds_out_of_range",
        f"`wait_seconds` must be between 0 and {MAX_WAIT_SECONDS}. A command that takes longer goes on as a job: "
        "call bash with `wait` and its handle, as often as needed.",
    )


def _conflict(text: str, given: list[str], **details: Any) -> ToolRefusedError:
    return ToolRefusedError("mutually_exclusive_modes", f"{text} Nothing was done.", conflicting_args=given, **details)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}" if most else last
