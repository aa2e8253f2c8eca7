"""Where tools are called as the tool runner calls them, over the sandbox that a test brings."""

import functools
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from actors.adapters.tools.registry import StandardToolbox
from actors.core.context import Mode
from actors.core.states import BackgroundJob
from actors.ports import CancelToken, RunningProcess, ToolContext, ToolOutput
from actors.runtime.services import SystemClock


@dataclass
class ToolHarness:
    """Calls tools by name with raw input, as a model does, and keeps what they did with their context."""

    sandbox: Any
    directory: Path
    toolbox: StandardToolbox = field(default_factory=StandardToolbox)
    conversation: str = "c-1"
    mode: Mode = Mode.UNRESTRICTED
    clock: Any = field(default_factory=SystemClock)
    cancel: CancelToken = field(default_factory=CancelToken)
    shown: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """Live output, unless `show` takes it."""
    show: Callable[[str], None] | None = None
    tracked: list[RunningProcess] = field(default_factory=list)
    receipts: list[tuple[int, ...]] = field(default_factory=list)
    job_changes: SimpleQueue[BackgroundJob] = field(default_factory=SimpleQueue)
    calls: int = 0

    def use(self, name: str, **arguments: Any) -> ToolOutput:
        tool = self.toolbox.get(name)
        assert tool is not None
        return tool.run(self.toolbox.parse(name, json.dumps(arguments)), self.context)

    @property
    def context(self) -> ToolContext:
        """The context of another call."""
        self.calls += 1
        return ToolContext(
            conversation_id=self.conversation,
            principal="local",
            tool_use_id=f"t-{self.calls}",
            working_directory=str(self.directory),
            mode=self.mode,
            cancel=self.cancel,
            sandbox=self.sandbox,
            clock=self.clock,
            on_output=self.show or self.shown.put,
            track=self.track,
            reaped=self.receipts.append,
            job_changed=self.job_changes.put,
        )

    @property
    def reaped(self) -> list[int]:
        """The processes of all receipts."""
        return list(chain.from_iterable(self.receipts))

    def track(self, process: RunningProcess) -> Callable[[], bool]:
        self.tracked.append(process)
        kill = process.kill
        self.cancel.on_cancel(kill)
        return functools.partial(self.cancel.forget, kill)


@dataclass
class BashHarness(ToolHarness):
    """Calls bash, on request on a thread and with a token of its own."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(12))

    def call(self, **arguments: Any) -> ToolOutput:
        return self.use("bash", **arguments)

    def begin(self, **arguments: Any) -> Future[ToolOutput]:
        self.cancel = CancelToken()
        return self.pool.submit(self.call, **arguments)
