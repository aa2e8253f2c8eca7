"""The server's observer: writes log lines, metrics and spans of what is reported through the port `Telemetry`.

A log line is written when a command, stream, run, model request or tool call ends, and when a run begins. Metrics and
spans are made only if they are exported.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from actors.adapters.telemetry import metrics
from actors.adapters.telemetry.metrics import Metric
from actors.core.content import Message, MessageType, ToolCancelled, ToolError, ToolUse, tool_uses
from actors.core.notifications import (
    CallStatus,
    ClientToolCall,
    Durable,
    MessageAdded,
    RunStop,
    StateChanged,
    ToolTreeReaped,
)
from actors.ports import Clock, ConversationRecord
from actors.ports.models import ModelAnswer, ModelRequest
from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, Run, Telemetry, ToolEnd, ToolStart

if TYPE_CHECKING:
    from actors.adapters.telemetry.exporters import Instruments, Spans  # imports OpenTelemetry, which is optional

log = logging.getLogger(__name__)

# The number of model names that are used as label values; all further names share the value OTHER.
MODELS = 50
# The names under which calls to MCP tools, client tools and unknown tools are counted.
MCP, CLIENT, OTHER = "mcp", "client", "other"
_CANCEL = "CancelConversationCommand"


def _guarded(observer: type[Observer]) -> type[Observer]:
    """Make the port's methods log their first failure instead of raising it, so that the observed work continues."""

    def guard(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def observe(self: Observer, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                if not self.failed:  # later observations would probably fail, too
                    log.exception("failed to record telemetry; later failures are not logged")
                self.failed = True
                return None

        return observe

    for name, method in [*vars(observer).items()]:
        if callable(vars(Telemetry).get(name)):
            setattr(observer, name, guard(method))
    return observer


@_guarded
class Observer(Telemetry):
    """Writes log lines, as well as metrics and spans if they are exported.

    Do not call it concurrently for the events and commands of one conversation.
    """

    on = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tools: Collection[str] = ()
        """The names of the server's own tools. Set this before anything is observed."""
        self._instruments: Instruments | None = None
        self._spans: Spans | None = None
        self.closing = ExitStack()
        self.failed = False
        self._runs: dict[str, Run] = {}
        self._attempts: set[AttemptStart] = set()
        self._calls: set[ToolStart] = set()
        self._models: set[str] = set()
        # The W3C `traceparent` headers of the commands that are being handled, keyed by conversation id.
        self._trace_parents: dict[str, str] = {}

    def export(
        self, instruments: Instruments, spans: Spans | None, gauges: Mapping[Metric, Callable[[], float]]
    ) -> None:
        """Start making metrics and `spans`; call this before anything is observed.

        `gauges` maps metrics to functions that measure them.
        """
        self.measures = True
        self._instruments, self._spans = instruments, spans
        open_ = {metrics.OPEN_RUNS: self._runs, metrics.OPEN_ATTEMPTS: self._attempts, metrics.OPEN_TOOLS: self._calls}
        for metric, read in {**{metric: each.__len__ for metric, each in open_.items()}, **gauges}.items():
            instruments.gauge(metric, read)

    def close(self) -> None:
        self.closing.close()

    def rpc_ended(self, rpc: Rpc) -> None:
        if rpc.stream:
            level, line = logging.INFO, "stream ended"
            self._add(metrics.STREAMS, 1, rpc.method, rpc.outcome)
        else:
            self._add(metrics.RPC, rpc.seconds, rpc.method, rpc.outcome)
            if rpc.outcome != "OK":
                level, line = logging.DEBUG, "call refused"
            elif rpc.command:
                level, line = logging.INFO, "command accepted"
            else:
                level, line = logging.DEBUG, "call answered"
        _log(
            level,
            line,
            rpc=rpc.method,
            conversation=rpc.conversation,
            principal=rpc.principal,
            peer=rpc.peer,
            request_id=rpc.request_id,
            outcome=rpc.outcome,
            duration_ms=_milliseconds(rpc.seconds),
        )

    def command_began(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        if trace_parent:
            self._trace_parents[conversation] = trace_parent
        run = self._runs.get(conversation)
        if kind == _CANCEL and run is not None and run.cancelled_at is None:
            run.cancelled_at = asked_at
        self._add(metrics.MAILBOX, max(0.0, self._clock.monotonic() - asked_at))

    def command_ended(self, conversation: str) -> None:
        self._trace_parents.pop(conversation, None)

    def published(self, record: ConversationRecord, events: Iterable[Durable]) -> None:
        for event in events:
            run = self._runs.get(record.id)
            match event:
                case StateChanged(state=state) if state.run and (run is None or run.run != state.run):
                    self._begin_run(record, state.run)
                case RunStop(reason=reason, detail=detail, run=ended):
                    if run is not None and run.run == ended:  # the event may be about a run that never began
                        self._end_run(run, reason.value, detail)
                case ToolTreeReaped(milliseconds=milliseconds, leaked=leaked):
                    self._add(metrics.KILLS, milliseconds / 1000)
                    if leaked:
                        self._add(metrics.LEAKS, 1)
                case MessageAdded(message=message) if run is not None:
                    self._look_for_calls(run, record, message)
                case ClientToolCall() if run is not None:
                    self._client_call(run, event)
                case _:
                    pass

    def deleted(self, conversation: str) -> None:
        if run := self._runs.get(conversation):
            self._end_run(run, "deleted", "")

    def recovered(
        self, record: ConversationRecord, run: str, calls: Iterable[ToolUse], events: Iterable[Durable]
    ) -> None:
        names = {call.id: call.name for call in calls}
        for event in events:
            match event:
                case MessageAdded(message=message):
                    for block in message.content:
                        if isinstance(block, ToolCancelled):
                            self._leave_out(record, names.get(block.tool_use_id, ""), block)
                case RunStop(reason=reason, detail=detail, run=ended) if ended == run:
                    found = _run_of(record, run)
                    if self._spans is not None:
                        self._spans.run_began(found)
                    self._report_run(found, reason.value, detail, None)
                case _:
                    pass

    def attempt_began(self, attempt: AttemptStart) -> None:
        if run := self._runs.get(attempt.conversation):
            run.provider = attempt.provider
        self._attempts.add(attempt)
        if self._spans is not None:
            self._spans.attempt_began(attempt)

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        self._attempts.discard(attempt)
        run, used, first = self._runs.get(attempt.conversation), end.usage, end.first_chunk_seconds
        if run is not None and used is not None:
            run.usage += used
        _log(
            logging.INFO,
            "model request ended",
            **asdict(attempt),
            run=run.run if run else "",
            outcome=end.outcome,
            duration_ms=_milliseconds(end.seconds),
            first_chunk_ms=_milliseconds(first),
            **({} if used is None else asdict(used)),
        )
        labels = ("chat", attempt.provider, self._bounded(attempt.model))
        self._add(metrics.ATTEMPTS, end.seconds, *labels, "" if end.outcome == "ok" else end.outcome)
        if first is not None:
            self._add(metrics.FIRST_CHUNK, first, *labels)
        if used is not None:
            self._add(metrics.TOKENS, used.context_tokens - used.output_tokens, *labels, "input")
            self._add(metrics.TOKENS, used.output_tokens, *labels, "output")
            for kind, tokens in (("cache_read", used.cache_read_tokens), ("cache_creation", used.cache_write_tokens)):
                if tokens:
                    self._add(metrics.TOKENS, tokens, *labels, kind)
            if used.cost_micros:
                self._add(metrics.COST, used.cost_micros / 1e6, *labels)
        if self._spans is not None:
            self._spans.attempt_ended(attempt, end, request, answer)

    def tool_began(self, call: ToolStart) -> str:
        self._calls.add(call)
        if run := self._runs.get(call.conversation):
            run.started.add(call.call)
        if self._spans is None:
            return ""
        return self._spans.tool_began(call, extension=self._counted_as(call) in {MCP, OTHER})

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        self._calls.discard(call)
        self._report_call(call, end.outcome, end.seconds)
        if self._spans is not None:
            self._spans.tool_ended(call, end, arguments, result)

    def quota_exceeded(self, quota: str) -> None:
        self._add(metrics.QUOTAS, 1, quota)

    def taken_over(self, conversations: int) -> None:
        self._add(metrics.TAKEN_OVER, conversations)

    def forwarded(self, outcome: str) -> None:
        self._add(metrics.FORWARDED, 1, outcome)

    def written(self, changes: int, seconds: float) -> None:
        self._add(metrics.WRITES, seconds)
        self._add(metrics.WRITE_SIZE, changes)

    def delivered(self, seconds: float) -> None:
        self._add(metrics.LAG, max(0.0, seconds))

    def loop_delayed(self, seconds: float) -> None:
        self._add(metrics.LOOP, max(0.0, seconds))

    def _add(self, metric: Metric, value: float, *labels: str) -> None:
        if self._instruments is not None:
            self._instruments.add(metric, value, *labels)

    def _begin_run(self, record: ConversationRecord, run_id: str) -> None:
        run = _run_of(record, run_id)
        run.trace_parent = self._trace_parents.get(record.id, "")
        run.began = self._clock.monotonic()
        self._runs[record.id] = run
        _log(logging.INFO, "run began", **_facts(run))
        if self._spans is not None:
            self._spans.run_began(run)

    def _end_run(self, run: Run, outcome: str, detail: str) -> None:
        now = self._clock.monotonic()
        del self._runs[run.conversation]
        self._report_run(run, outcome, detail, now - run.began)
        if run.cancelled_at is not None:
            self._add(metrics.CANCELS, now - run.cancelled_at)

    def _report_run(self, run: Run, outcome: str, detail: str, seconds: float | None) -> None:
        duration = _milliseconds(seconds)
        _log(logging.INFO, "run ended", **_facts(run), outcome=outcome, detail=detail, duration_ms=duration)
        self._add(metrics.RUNS, seconds or 0.0, outcome)
        if self._spans is not None:
            self._spans.run_ended(run, outcome, detail)

    def _look_for_calls(self, run: Run, record: ConversationRecord, message: Message) -> None:
        """Remember the tool calls in a model's answer, and report tool calls that ended without running."""
        if message.type is MessageType.AGENT:
            run.names = {call.id: call.name for call in tool_uses(message.content)}
        for block in message.content:
            if isinstance(block, ToolError | ToolCancelled) and block.tool_use_id not in run.started:
                self._leave_out(record, run.names.get(block.tool_use_id, ""), block)

    def _leave_out(self, record: ConversationRecord, tool: str, result: ToolError | ToolCancelled) -> None:
        """Report a tool call that got a result without having run in this process."""
        client = any(tool == each.name for each in record.profile.client_tools) and tool not in self.tools
        call = ToolStart(record.id, result.tool_use_id, tool, client)
        self._report_call(call, result.outcome.value, None)
        if self._spans is not None:
            self._spans.tool_began(call, extension=self._counted_as(call) in {MCP, OTHER})
            self._spans.tool_ended(call, ToolEnd(result.outcome.value, 0.0), {}, "")

    def _client_call(self, run: Run, found: ClientToolCall) -> None:
        call = ToolStart(run.conversation, found.call.id, found.call.name, client=True)
        if found.status is CallStatus.PENDING:
            run.waiting[call.call] = self._clock.monotonic()
            self.tool_began(call)
        elif (began := run.waiting.pop(call.call, None)) is not None:
            self.tool_ended(call, ToolEnd(found.status.value, self._clock.monotonic() - began), {}, "")

    def _report_call(self, call: ToolStart, outcome: str, seconds: float | None) -> None:
        run = self._runs.get(call.conversation)
        facts = {"conversation": call.conversation, "run": run.run if run else "", "call": call.call, "tool": call.tool}
        _log(logging.INFO, "tool call ended", **facts, outcome=outcome, duration_ms=_milliseconds(seconds))
        self._add(metrics.TOOLS, seconds or 0.0, self._counted_as(call), outcome)

    def _counted_as(self, call: ToolStart) -> str:
        """The label value for a call's tool. All unknown tools share one value, because models can invent names."""
        if call.client:
            return CLIENT
        if call.tool in self.tools:
            return call.tool
        return MCP if call.tool.startswith("mcp__") else OTHER

    def _bounded(self, model: str) -> str:
        """The label value for a model: its name or, if it is new once MODELS names are in use, OTHER."""
        if model in self._models or len(self._models) < MODELS:
            self._models.add(model)
            return model
        return OTHER


def _run_of(record: ConversationRecord, run: str) -> Run:
    parent = "" if record.user_initiated else record.parent_conversation_id or ""
    return Run(record.id, run, record.model, record.principal, parent)


def _facts(run: Run) -> dict[str, str]:
    return {name: getattr(run, name) for name in ("conversation", "run", "model", "principal", "parent")}


def _log(level: int, line: str, /, **fields: str | float | None) -> None:
    if log.isEnabledFor(level):
        log.log(level, line, extra={name: value for name, value in fields.items() if value not in {"", None}})


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
