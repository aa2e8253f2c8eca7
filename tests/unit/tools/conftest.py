"""A sandbox that runs nothing, and a context to call tools in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core.context import Mode
from actors.ports import CancelToken, Launch, ProcessEnd, RunningProcess, SandboxReport, ToolContext


@dataclass
class ScriptedProcess:
    """End as scripted, once it is waited for."""

    sandbox: ScriptedSandbox
    on_output: Callable[[bytes], None]
    killed: threading.Event = field(default_factory=threading.Event)

    def kill(self) -> None:
        self.killed.set()

    def signal(self, number: int) -> None:
        self.sandbox.signals.append(number)

    def wait(self) -> ProcessEnd:
        for piece in self.sandbox.pieces:
            self.on_output(piece)
        return self.sandbox.end


@dataclass
class ScriptedSandbox:
    """Record launches and run nothing (ports.Sandbox)."""

    end: ProcessEnd = field(default_factory=lambda: ProcessEnd(0, None, b"", b"", 0, 12, ()))
    pieces: tuple[bytes, ...] = ()
    failure: Exception | None = None
    launches: list[Launch] = field(default_factory=list)
    protected: tuple[str, ...] = ()
    signals: list[int] = field(default_factory=list)
    report: SandboxReport = field(default_factory=lambda: SandboxReport("none", 0, False))

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> ScriptedProcess:
        self.launches.append(launch)
        if self.failure is not None:
            raise self.failure
        return ScriptedProcess(self, on_output)

    def ends(self, **changes: Any) -> None:
        """Let the next programs end otherwise than well."""
        self.end = msgspec.structs.replace(self.end, **changes)


class StillClock:
    """A clock that never advances."""

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Call:
    """One call's context, and what the tool did with it."""

    sandbox: ScriptedSandbox
    working_directory: Path
    shown: list[str] = field(default_factory=list)
    tracked: list[RunningProcess] = field(default_factory=list)
    reaped: list[tuple[int, ...]] = field(default_factory=list)
    mode: Mode = Mode.UNRESTRICTED

    @property
    def context(self) -> ToolContext:
        return ToolContext(
            conversation_id="c-1",
            tool_use_id="t-1",
            working_directory=str(self.working_directory),
            mode=self.mode,
            cancel=CancelToken(),
            sandbox=self.sandbox,
            clock=StillClock(),
            on_output=self.shown.append,
            track=self.track,
            reaped=self.reaped.append,
        )

    def track(self, process: RunningProcess) -> Callable[[], bool]:
        self.tracked.append(process)
        return lambda: True


@pytest.fixture
def call(tmp_path: Path) -> Call:
    return Call(ScriptedSandbox(), tmp_path)
