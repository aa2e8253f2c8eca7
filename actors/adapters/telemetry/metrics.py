"""Defines the metrics, in one table that the exporters use."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

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
    """The definition of one metric. A metric is equal only to itself, which makes look-ups in dictionaries quick."""

    name: str
    kind: Kind
    unit: str
    """The unit in UCUM notation, such as "s" or "{token}"."""
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_RPC = ("rpc.method", "rpc.status")
_MODEL = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")

RPC = Metric(
    "bedrock.rpc.duration", Kind.HISTOGRAM, "s", _RPC, "calls from clients, except streams and WaitRequestCycle", _FAST
)
STREAMS = Metric("bedrock.rpc.streams", Kind.COUNTER, "{stream}", _RPC, "streams and WaitRequestCycle calls that ended")
MAILBOX = Metric(
    "bedrock.mailbox.wait", Kind.HISTOGRAM, "s", (), "time that commands spend waiting for their conversation", _FAST
)
RUNS = Metric("bedrock.run.duration", Kind.HISTOGRAM, "s", ("outcome",), "time from a message to the run's end", _SLOW)
ATTEMPTS = Metric(
    "gen_ai.client.operation.duration", Kind.HISTOGRAM, "s", (*_MODEL, "error.type"), "model request duration", _SLOW
)
FIRST_CHUNK = Metric(
    "gen_ai.client.operation.time_to_first_chunk", Kind.HISTOGRAM, "s", _MODEL, "time to the first chunk", _SLOW
)
TOKENS = Metric(
    "gen_ai.client.token.usage",
    Kind.HISTOGRAM,
    "{token}",
    (*_MODEL, "gen_ai.token.type"),
    "tokens per answer: input (cache included), output, cache_read, cache_creation",
    _TOKENS,
)
COST = Metric("bedrock.cost", Kind.COUNTER, "dollars", _MODEL, "cost of answers whose price is known")
TOOLS = Metric("bedrock.tool.duration", Kind.HISTOGRAM, "s", ("gen_ai.tool.name", "outcome"), "tool calls", _SLOW)
CANCELS = Metric(
    "bedrock.cancel.duration", Kind.HISTOGRAM, "s", (), "time from a cancel request to the end of the run", _FAST
)
KILLS = Metric("bedrock.kill.duration", Kind.HISTOGRAM, "s", (), "time for a killed call's processes to exit", _FAST)
LEAKS = Metric("bedrock.kill.leaks", Kind.COUNTER, "{call}", (), "killed calls whose processes might still be running")
WRITES = Metric("bedrock.store.transaction.duration", Kind.HISTOGRAM, "s", (), "duration of store transactions", _FAST)
WRITE_SIZE = Metric(
    "bedrock.store.transaction.changes", Kind.HISTOGRAM, "{change}", (), "changes per store transaction", _COUNTS
)
QUOTAS = Metric(
    "bedrock.quota.exceeded", Kind.COUNTER, "{refusal}", ("quota",), "calls refused because a quota was exceeded"
)
TAKEN_OVER = Metric(
    "bedrock.conversations.taken_over",
    Kind.COUNTER,
    "{conversation}",
    (),
    "interrupted conversations taken over from dead nodes",
)
FORWARDED = Metric(
    "bedrock.rpc.forwarded",
    Kind.COUNTER,
    "{call}",
    ("outcome",),
    "attempts to forward calls and streams to other nodes",
)
LAG = Metric("bedrock.watch.lag", Kind.HISTOGRAM, "s", (), "age of events when they are delivered to a watcher", _FAST)
LOOP = Metric("bedrock.loop.delay", Kind.HISTOGRAM, "s", (), "event loop delay", _FAST)

OPEN_RUNS = Metric("bedrock.runs.open", Kind.GAUGE, "{run}", (), "runs in progress")
OPEN_ATTEMPTS = Metric("bedrock.model_requests.open", Kind.GAUGE, "{request}", (), "model requests in flight")
WAITING_REQUESTS = Metric(
    "bedrock.model_requests.waiting", Kind.GAUGE, "{request}", (), "model requests waiting for their principal's turn"
)
OPEN_TOOLS = Metric("bedrock.tools.open", Kind.GAUGE, "{call}", (), "tool calls running or waiting for a client")
CONVERSATIONS = Metric("bedrock.conversations.live", Kind.GAUGE, "{conversation}", (), "conversations in memory")
WATCHERS = Metric("bedrock.watchers", Kind.GAUGE, "{stream}", (), "open Subscribe streams and WaitRequestCycle calls")
WAITING = Metric("bedrock.store.waiting", Kind.GAUGE, "{change}", (), "changes waiting for the store")
NODES = Metric("bedrock.nodes", Kind.GAUGE, "{node}", (), "live nodes that this node sees, including itself")
LEASE = Metric("bedrock.lease.age", Kind.GAUGE, "s", (), "time since the database accepted this node's last heartbeat")
THREADS = Metric("bedrock.threads", Kind.GAUGE, "{thread}", (), "threads of the server")
FILES = Metric("bedrock.files.open", Kind.GAUGE, "{file}", (), "open file descriptors")
MAX_FILES = Metric("bedrock.files.limit", Kind.GAUGE, "{file}", (), "maximum number of open file descriptors")

METRICS = tuple(each for each in [*globals().values()] if isinstance(each, Metric))
