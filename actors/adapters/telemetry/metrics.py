"""Defines the metrics, in one table that all exporters use, and the observer that updates them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from actors.ports.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.ports import Clock
    from actors.ports.models import ModelAnswer, ModelRequest
    from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, RunEnd, RunStart, ToolEnd, ToolStart

MODELS = 50
"""The number of model names that get a label value of their own; all further names share the value OTHER."""
OTHER = "other"

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SLOW = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 600.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)
_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Kind(Enum):
    """The kinds of metrics: sums that only grow, distributions of values, and values read at each export."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Metric(Struct, frozen=True, eq=False):
    """The definition of one metric. A metric equals only itself, so that it is found quickly in dictionaries."""

    name: str
    """The metric's name in OpenTelemetry."""
    kind: Kind
    unit: str
    """The unit in the notation of UCUM, such as "s" or "{token}"."""
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_RPC = ("rpc.method", "rpc.status")
_MODEL = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")

RPC = Metric(
    "bedrock.rpc.duration",
    Kind.HISTOGRAM,
    "s",
    ("rpc.method", "rpc.status"),
    "calls of clients, without streams and WaitRequestCycle",
    _FAST,
)
STREAMS = Metric(
    "bedrock.rpc.streams", Kind.COUNTER, "{stream}", _RPC, "streams and calls of WaitRequestCycle that ended"
)
MAILBOX = Metric(
    "bedrock.mailbox.wait", Kind.HISTOGRAM, "s", (), "how long commands wait until their conversation takes them", _FAST
)
RUNS = Metric("bedrock.run.duration", Kind.HISTOGRAM, "s", ("outcome",), "runs, from the message to the end", _SLOW)
ATTEMPTS = Metric(
    "gen_ai.client.operation.duration",
    Kind.HISTOGRAM,
    "s",
    (*_MODEL, "error.type"),
    "attempts to ask a model",
    _SLOW,
)
FIRST_CHUNK = Metric(
    "gen_ai.client.operation.time_to_first_chunk", Kind.HISTOGRAM, "s", _MODEL, "until an answer begins", _SLOW
)
TOKENS = Metric(
    "gen_ai.client.token.usage",
    Kind.HISTOGRAM,
    "{token}",
    (*_MODEL, "gen_ai.token.type"),
    "tokens of each answer: input (with those of the cache), output, cache_read, cache_creation",
    _TOKENS,
)
COST = Metric("bedrock.cost", Kind.COUNTER, "dollars", _MODEL, "what answers cost, where prices are known")
TOOLS = Metric(
    "bedrock.tool.duration",
    Kind.HISTOGRAM,
    "s",
    ("gen_ai.tool.name", "outcome"),
    "tool calls",
    _SLOW,
)
CANCELS = Metric(
    "bedrock.cancel.duration", Kind.HISTOGRAM, "s", (), "from the request to cancel until the run has stopped", _FAST
)
KILLS = Metric("bedrock.kill.duration", Kind.HISTOGRAM, "s", (), "until a killed call's processes were dead", _FAST)
LEAKS = Metric("bedrock.kill.leaks", Kind.COUNTER, "{call}", (), "killed calls whose processes may still run")
WRITES = Metric("bedrock.store.transaction.duration", Kind.HISTOGRAM, "s", (), "transactions of the store", _FAST)
WRITE_SIZE = Metric(
    "bedrock.store.transaction.changes", Kind.HISTOGRAM, "{change}", (), "changes that share a transaction", _COUNTS
)
QUOTAS = Metric(
    "bedrock.quota.exceeded", Kind.COUNTER, "{refusal}", ("quota",), "what was refused because a quota is used up"
)
TAKEN_OVER = Metric(
    "bedrock.conversations.taken_over",
    Kind.COUNTER,
    "{conversation}",
    (),
    "interrupted conversations of nodes that ended, taken over by this one",
)
FORWARDED = Metric(
    "bedrock.rpc.forwarded",
    Kind.COUNTER,
    "{call}",
    ("outcome",),
    "attempts to have calls and streams served by other nodes",
)
LAG = Metric("bedrock.watch.lag", Kind.HISTOGRAM, "s", (), "age of events when a watcher gets them", _FAST)
LOOP = Metric("bedrock.loop.delay", Kind.HISTOGRAM, "s", (), "how late the event loop is", _FAST)

OPEN_RUNS = Metric("bedrock.runs.open", Kind.GAUGE, "{run}", (), "runs under way")
OPEN_ATTEMPTS = Metric("bedrock.model_requests.open", Kind.GAUGE, "{request}", (), "model requests in flight")
OPEN_TOOLS = Metric("bedrock.tools.open", Kind.GAUGE, "{call}", (), "tool calls that run, or wait for a client")
CONVERSATIONS = Metric("bedrock.conversations.live", Kind.GAUGE, "{conversation}", (), "conversations in memory")
WATCHERS = Metric(
    "bedrock.watchers", Kind.GAUGE, "{stream}", (), "open Subscribe streams, and calls of WaitRequestCycle"
)
WAITING_REQUESTS = Metric(
    "bedrock.model_requests.waiting", Kind.GAUGE, "{request}", (), "model requests that wait for their principal's turn"
)
WAITING = Metric("bedrock.store.waiting", Kind.GAUGE, "{change}", (), "changes that wait for the store")
NODES = Metric("bedrock.nodes", Kind.GAUGE, "{node}", (), "living nodes that this one sees, itself included")
LEASE = Metric("bedrock.lease.age", Kind.GAUGE, "s", (), "since the database took this node's last heartbeat")
THREADS = Metric("bedrock.threads", Kind.GAUGE, "{thread}", (), "threads of the server")
FILES = Metric("bedrock.files.open", Kind.GAUGE, "{file}", (), "open file descriptors")
MAX_FILES = Metric("bedrock.files.limit", Kind.GAUGE, "{file}", (), "how many may be open")

METRICS = (
    RPC, STREAMS, MAILBOX, RUNS, ATTEMPTS, FIRST_CHUNK, TOKENS, COST, TOOLS, CANCELS, KILLS, LEAKS, WRITES,
    WRITE_SIZE, QUOTAS, TAKEN_OVER, FORWARDED, LAG, LOOP, OPEN_RUNS, OPEN_ATTEMPTS, WAITING_REQUESTS, OPEN_TOOLS,
    CONVERSATIONS, WATCHERS, WAITING, NODES, LEASE, THREADS, FILES, MAX_FILES,
)  # fmt: skip


class Exporter(Protocol):
    """Exports the values of metrics. Safe to call from any thread; `add` and `gauge` do not block."""

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        """Add a value to a counter or a histogram. `labels` are the values of the metric's labels, in their order."""
        ...

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        """Register the function that returns a gauge's value. The function is called at each export.

        Call this once per metric.
        """
        ...

    def close(self) -> None:
        """Export the remaining values, and end. Idempotent. May block for some seconds."""
        ...


class Metrics(Telemetry):
    """Turns each observation into values of metrics, which one exporter exports."""

    on = True
    measures = True

    def __init__(self, exporter: Exporter, clock: Clock, gauges: Mapping[Metric, Callable[[], float]]) -> None:
        """`gauges` contains the gauges that other objects measure, each with a function that returns the value."""
        self._exporter = exporter
        self._clock = clock
        self._models: set[str] = set()
        self._open: dict[Metric, set[Any]] = {OPEN_RUNS: set(), OPEN_ATTEMPTS: set(), OPEN_TOOLS: set()}
        for metric, members in self._open.items():
            exporter.gauge(metric, members.__len__)
        for metric, read in gauges.items():
            exporter.gauge(metric, read)

    def close(self) -> None:
        self._exporter.close()

    def rpc_ended(self, rpc: Rpc) -> None:
        if rpc.stream:
            self._exporter.add(STREAMS, 1, (rpc.method, rpc.outcome))
        else:
            self._exporter.add(RPC, rpc.seconds, (rpc.method, rpc.outcome))

    def command_taken(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        self._exporter.add(MAILBOX, max(0.0, self._clock.monotonic() - asked_at), ())

    def run_began(self, run: RunStart) -> None:
        self._open[OPEN_RUNS].add(run.run)

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        self._open[OPEN_RUNS].discard(run.run)
        self._exporter.add(RUNS, end.seconds, (end.outcome,))

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        self._exporter.add(RUNS, 0.0, (outcome,))

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        self._exporter.add(TOOLS, 0.0, (call.group, outcome))

    def attempt_began(self, attempt: AttemptStart) -> None:
        self._open[OPEN_ATTEMPTS].add(attempt)

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        self._open[OPEN_ATTEMPTS].discard(attempt)
        labels = ("chat", attempt.provider, self._bounded(attempt.model))
        self._exporter.add(ATTEMPTS, end.seconds, (*labels, "" if end.outcome == "ok" else end.outcome))
        if end.first_chunk_seconds is not None:
            self._exporter.add(FIRST_CHUNK, end.first_chunk_seconds, labels)
        if (used := end.usage) is not None:
            self._exporter.add(TOKENS, used.context_tokens - used.output_tokens, (*labels, "input"))
            self._exporter.add(TOKENS, used.output_tokens, (*labels, "output"))
            if used.cache_read_tokens:
                self._exporter.add(TOKENS, used.cache_read_tokens, (*labels, "cache_read"))
            if used.cache_write_tokens:
                self._exporter.add(TOKENS, used.cache_write_tokens, (*labels, "cache_creation"))
            if used.cost_micros:
                self._exporter.add(COST, used.cost_micros / 1e6, labels)

    def tool_began(self, call: ToolStart) -> None:
        self._open[OPEN_TOOLS].add(call)

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        self._open[OPEN_TOOLS].discard(call)
        self._exporter.add(TOOLS, end.seconds, (call.group, end.outcome))

    def cancelled(self, conversation: str, seconds: float) -> None:
        self._exporter.add(CANCELS, seconds, ())

    def reaped(self, conversation: str, seconds: float, leaked: bool) -> None:
        self._exporter.add(KILLS, seconds, ())
        if leaked:
            self._exporter.add(LEAKS, 1, ())

    def quota_exceeded(self, quota: str) -> None:
        self._exporter.add(QUOTAS, 1, (quota,))

    def taken_over(self, conversations: int) -> None:
        self._exporter.add(TAKEN_OVER, conversations, ())

    def forwarded(self, outcome: str) -> None:
        self._exporter.add(FORWARDED, 1, (outcome,))

    def written(self, changes: int, seconds: float) -> None:
        self._exporter.add(WRITES, seconds, ())
        self._exporter.add(WRITE_SIZE, changes, ())

    def delivered(self, seconds: float) -> None:
        self._exporter.add(LAG, max(0.0, seconds), ())

    def loop_delayed(self, seconds: float) -> None:
        self._exporter.add(LOOP, max(0.0, seconds), ())

    def _bounded(self, model: str) -> str:
        """Return the label value for a model: its name or, once MODELS names are in use, OTHER for any new name."""
        if model in self._models or len(self._models) < MODELS:
            self._models.add(model)
            return model
        return OTHER
