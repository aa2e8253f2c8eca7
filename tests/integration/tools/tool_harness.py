"""Where tools are called in real processes, as the tool runner calls them."""

from __future__ import annotations

import functools
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools.registry import StandardToolbox
from actors.core.context import Mode
from actors.ports import CancelToken, RunningProcess, ToolContext, ToolOutput
from actors.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class ToolHarness:
    """Calls tools by name with raw input, as a model does; `show` takes their live output."""

    sandbox: ToolHostSandbox
    directory: Path
    toolbox: StandardToolbox = field(default_factory=StandardToolbox)
    mode: Mode = Mode.UNRESTRICTED
    cancel: CancelToken = field(default_factory=CancelToken)
    reaped: list[int] = field(default_factory=list)

    def use(self, name: str, show: Callable[[str], None], **arguments: Any) -> ToolOutput:
        tool = self.toolbox.get(name)
        assert tool is not None
        return tool.run(self.toolbox.parse(name, json.dumps(arguments)), self._context(show))

    def _context(self, show: Callable[[str], None]) -> ToolContext:
        return ToolContext(
            conversation_id="c-1",
            tool_use_id="t-1",
            working_directory=str(self.directory),
            mode=self.mode,
            cancel=self.cancel,
            sandbox=self.sandbox,
            clock=SystemClock(),
            on_output=show,
            track=self.track,
            reaped=self.reaped.extend,
        )

    def track(self, process: RunningProcess) -> Callable[[], bool]:
        kill = process.kill
        self.cancel.on_cancel(kill)
        return functools.partial(self.cancel.forget, kill)


@dataclass
class WatchedToolHarness(ToolHarness):
    """Keeps what watchers were shown."""

    shown: list[str] = field(default_factory=list)
    live: threading.Event = field(default_factory=threading.Event)

    def call(self, name: str, **arguments: Any) -> ToolOutput:
        return self.use(name, self.show, **arguments)

    def show(self, text: str) -> None:
        self.shown.append(text)
        self.live.set()
