"""A sandbox that runs nothing, and a harness that calls tools in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.ports import Launch, ProcessEnd, SandboxReport
from actors.runtime.services import SystemClock
from tests.support.tool_harness import ToolHarness


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


class StillClock(SystemClock):
    """A clock that never advances."""

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def call(tmp_path: Path) -> ToolHarness:
    return ToolHarness(ScriptedSandbox(), tmp_path, clock=StillClock())
