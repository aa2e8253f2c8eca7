"""The state machine of a conversation's tool runner: ready → running → quiescing → ready.

A cancelled conversation is idle at once and may request another tool at once. The runner holds that tool back until all
processes of the cancelled tool have ended, so that two tools never work in one directory. This wait is limited: after
`QUIESCE_MS` the processes count as leaked (they may still run), and the kill receipt, which reports how they ended,
says so.

A kill does not wait in the runner's mailbox, so ToolEnded may arrive before the AbortTool that caused the end. The
runner therefore remembers the last receipt, and AbortTool then only requests that receipt. Inputs about any other
execution are ignored.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from actors.core.effects import AbortTool, ExecuteTool
from actors.core.events import ToolOutcomeEvent

# How long the next tool waits for the processes of an aborted tool, in milliseconds.
QUIESCE_MS = 2_000


class KillReceipt(Struct, frozen=True):
    """How the processes of a tool call ended; becomes the notification ToolTreeReaped."""

    tool_use_id: str
    execution_id: int
    pids: tuple[int, ...] = ()
    milliseconds: int = 0
    """The milliseconds from the kill to the exit of the last process."""
    leaked: bool = False
    """Whether some processes could not be confirmed dead before the time limit."""


# --- states -----------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    ended: KillReceipt | None = None
    """The receipt of the last execution, kept until AbortTool requests it."""


class Running(Struct, frozen=True, tag="running"):
    call: ExecuteTool


class Quiescing(Struct, frozen=True, tag="quiescing"):
    """A tool was aborted, and its processes are ending."""

    call: ExecuteTool
    waiting: ExecuteTool | None = None
    """The call that starts as soon as the processes of `call` have ended; None if no call waits."""


ToolRun: TypeAlias = Ready | Running | Quiescing


# --- inputs -----------------------------------------------------------------------------------------------------


class ToolEnded(Struct, frozen=True, tag="tool_ended"):
    """The tool has returned, and all processes of the call have ended."""

    outcome: ToolOutcomeEvent
    receipt: KillReceipt


class QuiesceTimeout(Struct, frozen=True, tag="quiesce_timeout"):
    """The processes of the call did not end before the time limit; the receipt contains what is known so far."""

    receipt: KillReceipt


Input: TypeAlias = ExecuteTool | AbortTool | ToolEnded | QuiesceTimeout


# --- outputs ----------------------------------------------------------------------------------------------------


class StartTool(Struct, frozen=True, tag="start"):
    """Output of `advance`: start this call."""

    call: ExecuteTool


class KillTool(Struct, frozen=True, tag="kill"):
    """Output of `advance`: kill this call's processes, and send QuiesceTimeout after `QUIESCE_MS`."""

    tool_use_id: str
    execution_id: int


class ReportOutcome(Struct, frozen=True, tag="report_outcome"):
    """Output of `advance`: send the tool's outcome to the conversation."""

    outcome: ToolOutcomeEvent


class ReportReceipt(Struct, frozen=True, tag="report_receipt"):
    """Output of `advance`: send the receipt of a cancelled call, whose processes have ended or count as leaked."""

    receipt: KillReceipt


Output: TypeAlias = StartTool | KillTool | ReportOutcome | ReportReceipt


class RunStep(Struct, frozen=True):
    run: ToolRun
    outputs: tuple[Output, ...] = ()


def advance(run: ToolRun, event: Input) -> RunStep:
    """Apply one input. For an input that no longer applies, return the same state object and no outputs."""
    match run:
        case Ready():
            return _when_ready(run, event)
        case Running():
            return _when_running(run, event)
        case Quiescing():
            return _when_quiescing(run, event)


def _when_ready(run: Ready, event: Input) -> RunStep:
    match event:
        case ExecuteTool():
            return RunStep(Running(event), (StartTool(event),))
        case AbortTool():
            if run.ended is None or not _same(run.ended, event):
                return RunStep(run)
            return RunStep(Ready(), (ReportReceipt(run.ended),))
        case ToolEnded() | QuiesceTimeout():
            return RunStep(run)


def _when_running(run: Running, event: Input) -> RunStep:
    """A request for another tool means that the conversation has abandoned the running one."""
    match event:
        case ExecuteTool():
            return RunStep(Quiescing(run.call, event), (_kill(run.call),))
        case AbortTool() if _same(run.call, event):
            return RunStep(Quiescing(run.call), (_kill(run.call),))
        case ToolEnded(receipt=receipt) if _same(run.call, receipt):
            return RunStep(Ready(receipt), (ReportOutcome(event.outcome),))
        case AbortTool() | ToolEnded() | QuiesceTimeout():
            return RunStep(run)


def _when_quiescing(run: Quiescing, event: Input) -> RunStep:
    match event:
        case ExecuteTool():
            return RunStep(replace(run, waiting=event))
        case AbortTool():
            if run.waiting is None or not _same(run.waiting, event):
                return RunStep(run)
            return RunStep(replace(run, waiting=None))
        case ToolEnded(receipt=receipt) | QuiesceTimeout(receipt=receipt):
            return _quiesced(run, receipt) if _same(run.call, receipt) else RunStep(run)


def _quiesced(run: Quiescing, receipt: KillReceipt) -> RunStep:
    if run.waiting is None:
        return RunStep(Ready(), (ReportReceipt(receipt),))
    return RunStep(Running(run.waiting), (ReportReceipt(receipt), StartTool(run.waiting)))


def _kill(call: ExecuteTool) -> KillTool:
    return KillTool(call.tool_use_id, call.execution_id)


def _same(one: ExecuteTool | KillReceipt, other: AbortTool | KillReceipt) -> bool:
    return (one.tool_use_id, one.execution_id) == (other.tool_use_id, other.execution_id)
