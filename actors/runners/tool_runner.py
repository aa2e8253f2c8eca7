"""The tool runner of a conversation: runs one tool call at a time, kills it on request, and reports its outcome.

The runner never blocks: a tool runs on a separate thread, which ends with the tool. An outcome is reported for every
call, even after a bug, because the conversation would otherwise wait forever. A running call keeps the rights with
which it began, and may ask users questions.

A call that only computes needs no runner: `computed` returns its outcome at once.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pykka import ActorRef

from actors import ports
from actors.common.machine import exhausted_resource, run_in_thread
from actors.core import events, tool_run
from actors.core.content import ToolError, ToolResult, ToolSuccess
from actors.core.context import ConvContext, Mode, wider
from actors.core.effects import AbortTool, AnswerTool, ExecuteTool
from actors.core.states import AgentTask, BackgroundJob, QuestionStatus
from actors.messages import EffectOutcome, ToolsEnded
from actors.ports.cluster import LEASE_EXPIRED
from actors.ports.telemetry import ToolEnd, ToolStart
from actors.runners.side_queries import SideQueries, ask_for_tool
from actors.runners.sub_agents import planned
from actors.runtime.actor import Actor, tell
from actors.runtime.admission import FILES_PER_TOOL
from actors.runtime.services import Services, tool_for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunTool:
    """Message to a tool runner: run this call."""

    effect: ExecuteTool
    principal: str
    context: ConvContext
    cancel: ports.CancelToken
    rights: ToolRights
    """Provides the mode when the call starts; that may be much later, because the call waits for killed processes."""


@dataclass(frozen=True)
class EndTools:
    """Message to a tool runner: kill the running call, and report ToolsEnded once no call is left."""


Identity = tuple[str, int]


@dataclass
class Execution:
    """A tool call that is running, is being killed, or waits for its start."""

    run: RunTool
    killed_at: float | None = None
    """When the call was killed, in monotonic seconds; None if it was not killed."""
    pids: set[int] = field(default_factory=set)
    ended_job: str = ""
    """The handle of the background job if the tool's output says that one has ended; otherwise ""."""
    questions: OpenQuestions = field(kw_only=True)

    @property
    def identity(self) -> Identity:
        return self.run.effect.tool_use_id, self.run.effect.execution_id

    def receipt(self, now: float, *, leaked: bool = False) -> tool_run.KillReceipt:
        took = 0.0 if self.killed_at is None else now - self.killed_at
        return tool_run.KillReceipt(*self.identity, tuple(sorted(self.pids.copy())), round(took * 1000), leaked)


class ToolRunner(Actor):
    """Runs the tool calls of one conversation one at a time, each after the processes of a killed call have ended."""

    def __init__(self, services: Services, owner: ActorRef[Any], side_queries: SideQueries) -> None:
        super().__init__()
        self._services = services
        self._owner = owner
        self._side_queries = side_queries
        self._run: tool_run.ToolRun = tool_run.Ready()
        self._executions: dict[Identity, Execution] = {}
        self._last_call: RunTool | None = None
        self._ending = False
        """Whether to report ToolsEnded when no call is left."""

    def receive(self, message: Any) -> None:
        match message:
            case RunTool(effect=effect):
                self._last_call, self._ending = message, False
                questions = OpenQuestions(effect, self._services.clock, self._report)
                execution = Execution(message, questions=questions)
                self._executions[execution.identity] = execution
                self._advance(effect)
            case AbortTool() | tool_run.ToolEnded() | tool_run.QuiesceTimeout():
                self._advance(message)
            case AnswerTool(tool_use_id=tool_use_id, execution_id=execution_id, place=place):
                if (asking := self._executions.get((tool_use_id, execution_id))) is not None:
                    asking.questions.settle(place, ports.PersonAnswer(message.status, message.content))
            case EndTools():
                self._ending = True
                if isinstance(self._run, tool_run.Running):  # the conversation no longer waits for the call's outcome
                    self._advance(AbortTool(self._run.call.tool_use_id, self._run.call.execution_id))
            case _:
                raise TypeError(f"unexpected message: {type(message).__name__}")
        if self._ending and isinstance(self._run, tool_run.Ready):
            self._ending = False
            tell(self._owner, ToolsEnded(self._last_call))

    def on_fault(self, message: Any, error: BaseException) -> BaseException:
        """Handle an exception from `receive`, which is a bug: kill the calls, and report them as failed."""
        super().on_fault(message, error)
        for execution in self._executions.values():
            execution.run.cancel.cancel()
            failed = ToolError(execution.identity[0], _INTERNAL)
            tell(
                self._owner,
                EffectOutcome(events.ToolComplete(self._services.clock.now_ms(), *execution.identity, failed)),
            )
        self._executions.clear()
        self._run = tool_run.Ready()
        return error

    def on_stop(self) -> None:
        tell(self._owner, ToolsEnded(self._last_call))

    def _advance(self, event: ExecuteTool | AbortTool | tool_run.ToolEnded | tool_run.QuiesceTimeout) -> None:
        step = tool_run.advance(self._run, event)
        self._run = step.run
        for output in step.outputs:
            self._perform(output)
        self._forget_others()

    def _perform(self, output: tool_run.Output) -> None:
        match output:
            case tool_run.StartTool(call=call):
                self._start(self._executions[call.tool_use_id, call.execution_id])
            case tool_run.KillTool(tool_use_id=tool_use_id, execution_id=execution_id):
                execution = self._executions[tool_use_id, execution_id]
                execution.run.cancel.cancel()
                self._services.timers.after(tool_run.QUIESCE_MS, functools.partial(self._quiesce_overdue, execution))
            case tool_run.ReportOutcome(outcome=outcome):
                tell(self._owner, EffectOutcome(outcome))
            case tool_run.ReportReceipt(receipt=receipt):
                if receipt.leaked:
                    log.error("processes of a tool call survived being killed", extra={"call": receipt.tool_use_id})
                tell(self._owner, receipt)

    def _report(self, event: events.Event) -> None:
        tell(self._owner, EffectOutcome(event))

    def _start(self, execution: Execution) -> None:
        if not self._services.files.reserve(FILES_PER_TOOL):
            self._not_started(execution, self._services.files.refusal("another tool"))
            return
        name = f"bedrock-tool-{execution.run.effect.name}"
        try:
            run_in_thread(functools.partial(self._work, execution), name)
        except RuntimeError as error:
            self._not_started(execution, exhausted_resource(error) or str(error))

    def _not_started(self, execution: Execution, reason: str) -> None:
        """Report that a call did not start; the conversation may then retry it."""
        outcome = events.ToolTransient(self._services.clock.now_ms(), *execution.identity, reason, begun=False)
        tell(self.actor_ref, tool_run.ToolEnded(outcome, tool_run.KillReceipt(*execution.identity)))

    def _quiesce_overdue(self, execution: Execution) -> None:
        """End the wait for the processes of a killed call, after the time limit. Runs on the timer thread."""
        tell(self.actor_ref, tool_run.QuiesceTimeout(execution.receipt(self._services.clock.monotonic(), leaked=True)))

    def _forget_others(self) -> None:
        match self._run:
            case tool_run.Ready():
                held = []
            case tool_run.Running(call=call):
                held = [call]
            case tool_run.Quiescing(call=call, waiting=waiting):
                held = [call, waiting] if waiting else [call]
        identities = {(call.tool_use_id, call.execution_id) for call in held}
        for identity in self._executions.keys() - identities:
            del self._executions[identity]

    # --- thread of the tool -----------------------------------------------------------------------------------

    def _work(self, execution: Execution) -> None:
        def killed() -> None:
            execution.killed_at = self._services.clock.monotonic()

        execution.run.cancel.on_cancel(killed)
        execution.run.cancel.on_cancel(execution.questions.close)
        try:
            outcome = self._outcome(execution)
        finally:
            execution.questions.close()
            execution.run.rights.end(execution.identity[0])
        tell(self.actor_ref, tool_run.ToolEnded(outcome, execution.receipt(self._services.clock.monotonic())))

    def _outcome(self, execution: Execution) -> events.ToolOutcomeEvent:
        """Run the tool. A call that was cancelled before its end is "aborted", whatever the tool's result."""
        cancel = execution.run.cancel
        outcome = None if cancel.cancelled else self._try(execution)
        if outcome is None or cancel.cancelled:
            return events.ToolAborted(self._services.clock.now_ms(), *execution.identity)
        return outcome

    def _try(self, execution: Execution) -> events.ToolOutcomeEvent:
        tool_use_id, now = execution.identity[0], self._services.clock.now_ms
        try:
            self._services.faults.hit("tool.before")
            result = self._result(execution)
            self._services.faults.hit("tool.after")
        except ports.ToolTransientError as failed:
            return events.ToolTransient(now(), *execution.identity, str(failed), failed.begun)
        except ports.SandboxUnavailableError as refused:
            result = ToolError(tool_use_id, f"Not run: {refused}")
        except BaseException:  # without an outcome the conversation would wait forever
            log.exception("internal error in a tool", extra={"tool": execution.run.effect.name, "call": tool_use_id})
            result = ToolError(tool_use_id, _INTERNAL)
        if isinstance(result, tuple):
            return events.AgentsSpawned(now(), *execution.identity, result)
        return events.ToolComplete(now(), *execution.identity, result, execution.ended_job)

    def _result(self, execution: Execution) -> ToolResult | tuple[AgentTask, ...]:
        """The result of the call, or the sub-agents whose reports will become its result."""
        effect, started = execution.run.effect, self._services.clock.monotonic()
        services = self._services
        try:
            tool, arguments = tool_for(services, execution.run.context, effect.name, effect.input)
        except ports.InvalidToolInputError as invalid:
            return ToolError(effect.tool_use_id, str(invalid))
        if not services.cluster.lease.valid():
            raise ports.ToolTransientError(LEASE_EXPIRED, begun=False)
        output = _run(services, tool, arguments, self._context(execution))
        took = round((self._services.clock.monotonic() - started) * 1000)
        execution.ended_job = output.ended_job
        if output.agents:
            return output.agents
        return _as_result(effect, output, took)

    def _context(self, execution: Execution) -> ports.ToolContext:
        context, run = execution.run.context, execution.run

        def track(process: ports.RunningProcess) -> Callable[[], bool]:
            kill = process.kill
            run.cancel.on_cancel(kill)
            return functools.partial(run.cancel.forget, kill)

        def reaped(pids: tuple[int, ...]) -> None:
            execution.pids.update(pids)

        def show(text: str) -> None:
            if not run.cancel.cancelled:
                self._services.bus.tool_output(context.conversation_id, run.effect.tool_use_id, text)

        def plan(tasks: tuple[AgentTask, ...], where: ports.ToolContext) -> tuple[AgentTask, ...]:
            return planned(self._services, tasks, context.model_id, where)

        def job_changed(job: BackgroundJob) -> None:
            self._report(events.JobChanged(self._services.clock.now_ms(), job))

        return ports.ToolContext(
            conversation_id=context.conversation_id,
            principal=run.principal,
            tool_use_id=run.effect.tool_use_id,
            working_directory=context.working_dir,
            mode=run.rights.begin(run.effect.tool_use_id, run.cancel),
            cancel=run.cancel,
            sandbox=self._services.sandbox_of(run.principal),
            clock=self._services.clock,
            on_output=show,
            track=track,
            reaped=reaped,
            job_changed=job_changed,
            make_side_query=ask_for_tool(self._side_queries, run.effect, context, run.cancel, self._owner),
            keep_image=lambda data: self._services.images.ingest(context.conversation_id, data, run.cancel),
            ask=ports.decline_question if context.is_sub_agent else execution.questions.ask,
            plan_agents=ports.no_sub_agents if context.is_sub_agent else plan,
        )


def computed(
    services: Services, call: ExecuteTool, record: ports.ConversationRecord, context: ConvContext
) -> events.ToolComplete | None:
    """The outcome of a call to an instant tool; None for other tools, or if the call cannot be computed.

    The same call always has the same outcome, with the time of the preceding event. A commit that was written although
    it seemed to fail is therefore recognised when it is retried, because the rows are the same.
    """
    tool = services.toolbox.get(call.name)
    if tool is None or not tool.spec.instant or services.mcp.tool(call.name, record.id) is not None:
        return None
    facts = ports.ToolContext(
        conversation_id=record.id,
        principal=record.principal,
        tool_use_id=call.tool_use_id,
        working_directory=context.working_dir,
        mode=context.mode,
        cancel=ports.CancelToken(),
        sandbox=services.sandbox,
        clock=services.clock,
        on_output=_not_offered,
        track=_not_offered,
        reaped=_not_offered,
    )
    try:
        _, arguments = tool_for(services, context, call.name, call.input)
        output = _run(services, tool, arguments, facts)
    except Exception:
        log.warning("an instant tool failed; running it on a thread", exc_info=True, extra={"call": facts.tool_use_id})
        return None
    return events.ToolComplete(record.updated_at, call.tool_use_id, call.execution_id, _as_result(call, output, 0))


def _not_offered(_: object) -> Any:
    raise TypeError("a tool that only computes has no effects")


def _as_result(call: ExecuteTool, output: ports.ToolOutput, took: int) -> ToolResult:
    if output.is_error:
        return ToolError(call.tool_use_id, output.text, duration_ms=took, display=output.display)
    return ToolSuccess(call.tool_use_id, output.text, output.images, output.display, took)


def _run(
    services: Services, tool: ports.Tool, arguments: Mapping[str, Any], context: ports.ToolContext
) -> ports.ToolOutput:
    """Run a tool, and report the call to telemetry. Raises like `Tool.run`."""
    call = ToolStart(context.conversation_id, context.tool_use_id, tool.spec.name)
    began = services.clock.monotonic()
    if trace_parent := services.telemetry.tool_began(call):
        context = msgspec.structs.replace(context, trace_parent=trace_parent)
    outcome, result = "failed", ""
    try:
        output = tool.run(arguments, context)
        outcome = "sub_agents" if output.agents else "error" if output.is_error else "ok"
        result = output.text
        return output
    except (ports.ToolTransientError, ports.SandboxUnavailableError) as refused:
        result = str(refused)
        raise
    finally:
        if context.cancel.cancelled:
            outcome = "cancelled"
        end = ToolEnd(outcome, services.clock.monotonic() - began)
        services.telemetry.tool_ended(call, end, arguments, result)


_INTERNAL = "The tool failed because of an internal error."


class ToolRights:
    """The current mode, and the modes of the running calls. Thread-safe; never blocks for long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.mode = Mode.RESTRICTED
        """The mode of calls yet to start; running calls keep theirs. Set only on the conversation's thread."""
        self._calls: dict[str, tuple[Mode, ports.CancelToken]] = {}

    def narrow(self, mode: Mode) -> None:
        """Let calls start in this mode from now on, unless the current mode gives fewer rights already."""
        with self._lock:
            if wider(self.mode, mode):
                self.mode = mode

    def begin(self, tool_use_id: str, cancel: ports.CancelToken) -> Mode:
        """Register a call that starts; return its permission mode, which stays the same until the call ends."""
        with self._lock:
            mode, _ = self._calls[tool_use_id] = self.mode, cancel
            return mode

    def end(self, tool_use_id: str) -> None:
        """Remove a call that has ended or never began. Idempotent."""
        with self._lock:
            self._calls.pop(tool_use_id, None)

    def wider_than(self, mode: Mode) -> tuple[str, ...]:
        """The ids of running calls with more rights than this mode gives, except calls that are being killed."""
        with self._lock:
            return tuple(
                tool_use_id
                for tool_use_id, (held, cancel) in self._calls.items()
                if wider(held, mode) and not cancel.cancelled
            )

    def cancel(self, tool_use_ids: Iterable[str]) -> None:
        """Kill those of the calls that are running; each will report that it was aborted."""
        with self._lock:
            tokens = [self._calls[tool_use_id][1] for tool_use_id in tool_use_ids if tool_use_id in self._calls]
        for token in tokens:
            token.cancel()


# The maximum number of questions of one tool call that wait for their answers at the same time.
MAX_OPEN = 4

# The maximum number of questions that one tool call may ask in all.
MAX_PER_CALL = 16

WITHDRAWN = ports.PersonAnswer(QuestionStatus.WITHDRAWN)


class OpenQuestions:
    """The questions of one tool call. Thread-safe; never blocks.

    Every question ends: by `settle`, by `close`, or because the tool cancels it.
    """

    def __init__(self, call: ExecuteTool, clock: ports.Clock, report: Callable[[events.Event], None]) -> None:
        self._call = call
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()  # held while reporting, so that questions arrive in the order of their numbers
        self._waiting: dict[int, Future[ports.PersonAnswer]] = {}
        self._asked = 0
        self._closed = False

    def ask(self, question: ports.PersonQuestion) -> Future[ports.PersonAnswer]:
        """Ask a person. The tool can cancel the future to withdraw the question. Raises TooManyQuestionsError."""
        future: Future[ports.PersonAnswer] = Future()
        with self._lock:
            if self._closed:
                future.set_result(WITHDRAWN)
                return future
            if self._asked == MAX_PER_CALL:
                raise ports.TooManyQuestionsError(f"a call can ask at most {MAX_PER_CALL} questions")
            if len(self._waiting) == MAX_OPEN:
                raise ports.TooManyQuestionsError(f"{MAX_OPEN} questions of this call are already open")
            self._asked += 1
            place = self._asked
            self._waiting[place] = future
            self._report(
                events.AskQuestion(
                    self._clock.now_ms(), self._call.tool_use_id, self._call.execution_id, place, question.asker,
                    question.message, question.timeout_ms, question.schema, question.url,
                )
            )  # fmt: skip
        future.add_done_callback(lambda done: self._drop(place) if done.cancelled() else None)
        return future

    def settle(self, place: int, answer: ports.PersonAnswer) -> None:
        """Answer question number `place`; ignored if the question has ended."""
        with self._lock:
            future = self._waiting.pop(place, None)
        if future is not None:
            _resolve(future, answer)

    def close(self) -> None:
        """End all questions, because the call ends. Idempotent."""
        with self._lock:
            self._closed = True
            futures = list(self._waiting.values())
            self._waiting.clear()
        for future in futures:
            _resolve(future, WITHDRAWN)

    def _drop(self, place: int) -> None:
        """Report to the conversation that the tool has withdrawn question number `place`."""
        with self._lock:
            if self._waiting.pop(place, None) is None:
                return
            identity = self._call.tool_use_id, self._call.execution_id, place
            self._report(events.QuestionOver(self._clock.now_ms(), *identity, timed_out=False))


def _resolve(future: Future[ports.PersonAnswer], answer: ports.PersonAnswer) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(answer)
