"""The tool runner's small machine: ready → running → quiescing → ready (SEMANTICS C2).

A cancelled conversation is idle at once; it is the runner that holds the next tool back until the old process tree
is gone, two seconds at most. Inputs that fit no longer are ignored: same state, nothing to do.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

QUIESCE_MS = 2_000
"""How long the next tool waits for the old tree; past it the tree counts as leaked."""


class Call(Struct, frozen=True):
    """The identity of one execution."""

    tool_use_id: str
    execution_id: int


class Ready(Struct, frozen=True):
    """Nothing runs."""


class Running(Struct, frozen=True):
    """A tool is at work."""

    call: Call


class Quiescing(Struct, frozen=True):
    """A tool was aborted; its tree is not yet known to be gone."""

    call: Call
    waiting: Call | None = None
    """The next tool, held back."""


RunState: TypeAlias = Ready | Running | Quiescing


class Execute(Struct, frozen=True):
    """Input: start this tool."""

    call: Call


class Abort(Struct, frozen=True):
    """Input: this tool must go, whether it runs or waits."""

    call: Call


class Ended(Struct, frozen=True):
    """Input: the tool returned, and nothing of its tree is left."""

    call: Call


class QuiesceTimeout(Struct, frozen=True):
    """Input: the bound for this tool's death is over."""

    call: Call


RunInput: TypeAlias = Execute | Abort | Ended | QuiesceTimeout


class Start(Struct, frozen=True):
    """Output: run it."""

    call: Call


class Kill(Struct, frozen=True):
    """Output: kill its tree, and send QuiesceTimeout after QUIESCE_MS."""

    call: Call


class ReportOutcome(Struct, frozen=True):
    """Output: tell the conversation how it ended."""

    call: Call


class ReportReceipt(Struct, frozen=True):
    """Output: tell the conversation that the aborted tool's processes are gone, or leaked."""

    call: Call
    leaked: bool = False


RunOutput: TypeAlias = Start | Kill | ReportOutcome | ReportReceipt


def step(state: RunState, event: RunInput) -> tuple[RunState, tuple[RunOutput, ...]]:
    """The next state and what to do. A second Execute while one runs is a bug of the caller: ValueError."""
    match state:
        case Ready():
            return _when_ready(state, event)
        case Running():
            return _when_running(state, event)
        case Quiescing():
            return _when_quiescing(state, event)


def _when_ready(state: Ready, event: RunInput) -> tuple[RunState, tuple[RunOutput, ...]]:
    match event:
        case Execute(call=call):
            return Running(call), (Start(call),)
        case Abort() | Ended() | QuiesceTimeout():
            return state, ()


def _when_running(state: Running, event: RunInput) -> tuple[RunState, tuple[RunOutput, ...]]:
    match event:
        case Execute():
            raise ValueError("tools are serial: one runs already")
        case Abort(call=call) if call == state.call:
            return Quiescing(call), (Kill(call),)
        case Ended(call=call) if call == state.call:
            return Ready(), (ReportOutcome(call),)
        case Abort() | Ended() | QuiesceTimeout():
            return state, ()


def _when_quiescing(state: Quiescing, event: RunInput) -> tuple[RunState, tuple[RunOutput, ...]]:
    match event:
        case Execute(call=call) if state.waiting is None:
            return Quiescing(state.call, call), ()
        case Execute():
            raise ValueError("tools are serial: one waits already")
        case Abort(call=call) if call == state.waiting:
            return Quiescing(state.call), ()
        case Ended(call=call) if call == state.call:
            return _released(state, leaked=False)
        case QuiesceTimeout(call=call) if call == state.call:
            return _released(state, leaked=True)
        case Abort() | Ended() | QuiesceTimeout():
            return state, ()


def _released(state: Quiescing, *, leaked: bool) -> tuple[RunState, tuple[RunOutput, ...]]:
    receipt = ReportReceipt(state.call, leaked)
    if state.waiting is None:
        return Ready(), (receipt,)
    return Running(state.waiting), (receipt, Start(state.waiting))
