"""The tool runner of a conversation: starts one tool at a time, kills it when told to, gives the receipt.

The runner never blocks: the tool runs on a thread of its own, which ends with the tool.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pykka import ActorRef

from actors.actor import Actor, tell
from actors.core import tool_run
from actors.core.content import ToolError, ToolResult, ToolSuccess
from actors.core.context import ConvContext
from actors.core.effects import ExecuteTool
from actors.core.events import ToolAborted, ToolComplete, ToolOutcomeEvent, ToolTransient
from actors.core.tool_run import Call
from actors.llm_runner import Outcome
from actors.ports import (
    CancelToken,
    RunningProcess,
    SandboxUnavailable,
    Tool,
    ToolContext,
    ToolInputInvalid,
    ToolTransientError,
)
from actors.runtime import Runtime

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Start this tool."""

    effect: ExecuteTool
    context: ConvContext
    cancel: CancelToken

    @property
    def call(self) -> Call:
        return Call(self.effect.tool_use_id, self.effect.execution_id)


@dataclass(frozen=True)
class Abort:
    """Kill this tool."""

    tool_use_id: str
    execution_id: int


@dataclass(frozen=True)
class Retire:
    """End once nothing runs and nothing dies any more."""


@dataclass(frozen=True)
class Ended:
    """From the tool's thread: this is how it ended."""

    call: Call
    outcome: ToolOutcomeEvent


@dataclass(frozen=True)
class QuiesceTimeout:
    """The bound for a killed tool's death is over."""

    call: Call


@dataclass(frozen=True)
class Reaped:
    """To the conversation: the cancel receipt."""

    tool_use_id: str
    pids: tuple[int, ...]
    milliseconds: int
    leaked: bool


@dataclass
class Execution:
    """A tool that runs, or waits to."""

    run: Run
    aborted_at: float = 0.0
    """Monotonic seconds."""
    processes: list[RunningProcess] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    outcome: ToolOutcomeEvent | None = None


class ToolRunner(Actor):
    """Serial tools of one conversation (REQ-BED-004), and the barrier between a killed one and the next."""

    def __init__(self, runtime: Runtime, owner: ActorRef[Any]) -> None:
        super().__init__()
        self._runtime = runtime
        self._owner = owner
        self._state: tool_run.RunState = tool_run.Ready()
        self._executions: dict[Call, Execution] = {}
        self._retiring = False

    def receive(self, message: Any) -> None:
        match message:
            case Run():
                self._executions[message.call] = Execution(message)
                self._step(tool_run.Execute(message.call))
            case Abort(tool_use_id=tool_use_id, execution_id=execution_id):
                self._step(tool_run.Abort(Call(tool_use_id, execution_id)))
            case Ended(call=call, outcome=outcome):
                if call in self._executions:
                    self._executions[call].outcome = outcome
                self._step(tool_run.Ended(call))
            case QuiesceTimeout(call=call):
                self._step(tool_run.QuiesceTimeout(call))
            case Retire():
                self._retiring = True
            case _:
                raise TypeError(f"no such message: {type(message).__name__}")
        if self._retiring and isinstance(self._state, tool_run.Ready):
            self.leave()

    def _step(self, event: tool_run.RunInput) -> None:
        self._state, outputs = tool_run.step(self._state, event)
        for output in outputs:
            self._perform(output)
        self._forget_others()

    def _perform(self, output: tool_run.RunOutput) -> None:
        execution = self._executions[output.call]
        match output:
            case tool_run.Start():
                name = f"bedrock-tool-{execution.run.effect.name}"
                threading.Thread(target=self._work, args=(execution,), name=name, daemon=True).start()
            case tool_run.Kill(call=call):
                execution.aborted_at = self._runtime.clock.monotonic()
                execution.run.cancel.cancel()
                self._runtime.timers.after(tool_run.QUIESCE_MS, self._quiesce_timeout(call))
            case tool_run.ReportOutcome():
                assert execution.outcome is not None  # noqa: S101 -- Ended put it there
                tell(self._owner, Outcome(execution.outcome))
            case tool_run.ReportReceipt(leaked=leaked):
                self._receipt(execution, leaked)

    def _quiesce_timeout(self, call: Call) -> Callable[[], None]:
        def fire() -> None:
            tell(self.actor_ref, QuiesceTimeout(call))

        return fire

    def _receipt(self, execution: Execution, leaked: bool) -> None:
        took = round((self._runtime.clock.monotonic() - execution.aborted_at) * 1000)
        if leaked:
            log.error("the processes of tool call %s outlived their kill", execution.run.call.tool_use_id)
        reaped = Reaped(execution.run.call.tool_use_id, tuple(sorted(execution.pids)), took, leaked)
        tell(self._owner, reaped)

    def _forget_others(self) -> None:
        match self._state:
            case tool_run.Ready():
                kept: set[Call] = set()
            case tool_run.Running(call=call):
                kept = {call}
            case tool_run.Quiescing(call=call, waiting=waiting):
                kept = {call} | ({waiting} if waiting else set())
        for call in self._executions.keys() - kept:
            del self._executions[call]

    # --- the tool's own thread --------------------------------------------------------------------------------

    def _work(self, execution: Execution) -> None:
        tell(self.actor_ref, Ended(execution.run.call, self._outcome(execution)))

    def _outcome(self, execution: Execution) -> ToolOutcomeEvent:
        run, now = execution.run, self._runtime.clock.now_ms
        identity = run.effect.tool_use_id, run.effect.execution_id
        if run.cancel.cancelled:
            return ToolAborted(now(), *identity)
        self._runtime.faults.hit("tool.before")
        try:
            result = self._result(execution)
        except ToolTransientError as failed:
            return ToolTransient(now(), *identity, str(failed), failed.begun)
        except SandboxUnavailable as refused:
            result = ToolError(identity[0], f"Not run: {refused}")
        except BaseException:
            log.exception("fault in tool %s, call %s", run.effect.name, identity[0])
            result = ToolError(identity[0], "The tool failed because of an internal error.")
        if run.cancel.cancelled:
            return ToolAborted(now(), *identity)
        self._runtime.faults.hit("tool.after")
        return ToolComplete(now(), *identity, result)

    def _result(self, execution: Execution) -> ToolResult:
        effect, started = execution.run.effect, self._runtime.clock.monotonic()
        tool = self._runtime.toolbox.get(effect.name)
        try:
            arguments = self._runtime.toolbox.parse(effect.name, effect.input)
        except ToolInputInvalid as invalid:
            return ToolError(effect.tool_use_id, str(invalid))
        if tool is None:
            return ToolError(effect.tool_use_id, f"{effect.name} cannot be called here.")
        output = tool.run(arguments, self._context(execution, tool))
        took = round((self._runtime.clock.monotonic() - started) * 1000)
        if output.is_error:
            return ToolError(effect.tool_use_id, output.text, duration_ms=took, display=output.display)
        return ToolSuccess(effect.tool_use_id, output.text, output.images, output.display, took)

    def _context(self, execution: Execution, tool: Tool) -> ToolContext:
        context, run = execution.run.context, execution.run

        def track(process: RunningProcess) -> None:
            run.cancel.on_cancel(process.kill)

        def reaped(pids: tuple[int, ...]) -> None:
            execution.pids.update(pids)

        def show(text: str) -> None:
            if not run.cancel.cancelled:
                self._runtime.bus.tool_output(context.conversation_id, run.effect.tool_use_id, text)

        return ToolContext(
            conversation_id=context.conversation_id,
            working_directory=context.working_dir,
            mode=context.mode,
            cancel=run.cancel,
            sandbox=self._runtime.sandbox,
            clock=self._runtime.clock,
            on_output=show,
            track=track,
            reaped=reaped,
        )
