"""The goals of the figures, and a comparison of a report with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Reported: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The figures of a report by their names."""


@dataclass(frozen=True)
class Goal:
    """The least or the most that a figure is to be."""

    label: str
    measured: Callable[[Reported], float]
    """Raises KeyError where the report lacks it."""
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def wanted(self) -> str:
        return f"≥ {self.least:,g}{self.unit}" if self.least is not None else f"≤ {self.most:,g}{self.unit}"

    def reached(self, measured: float) -> bool:
        return measured >= self.least if self.least is not None else self.most is None or measured <= self.most


def of(name: str, field: str = "value", scale: float = 1.0) -> Callable[[Reported], float]:
    """Read a field of a figure."""
    return lambda reported: float(reported[name][field]) * scale


def _times(ours: str, theirs: str, field: str = "value") -> Callable[[Reported], float]:
    """Compare a figure with that of another program, whose version ends its name."""

    def compared(reported: Reported) -> float:
        name = next((name for name in reported if name.startswith(theirs)), theirs)
        return float(reported[ours][field]) / float(reported[name][field])

    return compared


def _aborts(field: str) -> Callable[[Reported], float]:
    def worst(reported: Reported) -> float:
        values = [float(row[field]) for name, row in reported.items() if name.startswith("abort of a model request")]
        if not values:
            raise KeyError(field)
        return max(values)

    return worst


def _storms(field: str, begin: str = "way in: ", end: str = "behind Envoy") -> Callable[[Reported], float]:
    def worst(reported: Reported) -> float:
        rows = [row for name, row in reported.items() if name.startswith(begin) and name.endswith(end)]
        values = [float(row[field]) for row in rows if field in row]
        if not values:
            raise KeyError(field)
        return max(values)

    return worst


_FAULTS = (
    Goal(
        "a node of 100 conversations at work is declared dead → all are at rest",
        of("faults: 100 conversations at work, declared dead → all at rest"),
        most=2,
        unit=" s",
    ),
    Goal(
        "a node of 1,000 conversations at work is declared dead → all are at rest",
        of("faults: 1,000 conversations at work, declared dead → all at rest"),
        most=6,
        unit=" s",
    ),
    Goal(
        "cancel at a node that does not own → every process of the tool dead, p99",
        of("faults: cancel at another node → tool dead", "p99"),
        most=100,
        unit=" ms",
    ),
    Goal(
        "calls that fail while nodes leave and join",
        of("faults: messages while nodes leave and join", "failed"),
        most=0,
    ),
)
FAULT_GOALS = frozenset(goal.label for goal in _FAULTS)
"""The goals of nodes that fail, by their labels."""
GOALS = (
    Goal("turns a second of 50 conversations, of bare threads", of("turns: 50 conversations", "of_floor"), least=0.5),
    Goal("the same, times LangGraph with SQLite", _times("peers: Bedrock", "peers: LangGraph"), least=2),
    Goal("CPU of such a turn, times bare threads", of("turns: a turn's CPU, 50 conversations", "of_floor"), most=2),
    Goal(
        "turns a second of a node on PostgreSQL, times LangGraph with its PostgreSQL saver",
        _times("cluster: 1 node, called itself", "cluster: LangGraph"),
        least=3,
    ),
    Goal(
        "latency added to 100 streams, p50, times LangGraph with SQLite",
        _times("peers: Bedrock", "peers: LangGraph", "added_p50_s"),
        most=0.3,
    ),
    Goal("pieces of text a second before that exceeds 0.5 s", of("pieces: most a second"), least=7_000),
    Goal(
        "CPU of a turn with 1,000 turns of history, times 10",
        of("history: CPU per turn after 1,000 turns", "ratio"),
        most=1.3,
    ),
    Goal(
        "first turn after loading 5,000 messages",
        of("history: first turn after loading 5,000 messages", "value", 0.001),
        most=0.1,
        unit=" s",
    ),
    Goal(
        "durable transitions a second, 64 conversations, of a bare group commit",
        of("store: durable transitions, 64 conversations", "of_bare"),
        least=0.4,
    ),
    Goal(
        "cancel → idle seen, behind 500 messages, p99",
        of("cancel → idle seen, 500 messages waiting", "p99"),
        most=20,
        unit=" ms",
    ),
    Goal(
        "first text beside 1,000 runs of another principal, times alone",
        of("fairness: first text, beside 1,000 runs of another", "ratio"),
        most=2,
    ),
    Goal(
        "cancel beside 1,000 runs of another principal, times alone",
        of("fairness: cancel → idle seen, beside 1,000 runs of another", "ratio"),
        most=2,
    ),
    Goal("CPU of a turn with Prometheus, times off", of("telemetry: a turn's CPU with Prometheus", "ratio"), most=1.05),
    Goal("CPU of a turn with OTLP, times off", of("telemetry: a turn's CPU with OTLP", "ratio"), most=1.05),
    Goal("live events a second to 100 watchers", of("fan-out: live, 100 watchers"), least=90_000),
    Goal("a change → 100 watchers, p99", of("fan-out: paced, change → watcher", "p99"), most=8, unit=" ms"),
    Goal("abort of a model request, p99 of the slowest phase", _aborts("p99"), most=3, unit=" ms"),
    Goal("aborts that hang", _aborts("hangs"), most=0),
    Goal(
        "tool start to end, restricted by namespaces, p50", of("tool start to end, Tier A", "p50"), most=12, unit=" ms"
    ),
    Goal("server killed → no process left, p99", of("server killed → no process left", "p99"), most=150, unit=" ms"),
    Goal("memory with 100 conversations", of("resident memory, 100 conversations"), most=130, unit=" MiB"),
    Goal("memory at rest", of("resident memory, idle", "p50"), most=85, unit=" MiB"),
    Goal("start to ready", of("start to ready", "p50"), most=0.4, unit=" s"),
    *_FAULTS,
    Goal("a call over HTTP, times gRPC", of("http: a call", "ratio"), most=3),
    Goal(
        "server's CPU for 100 watchers over HTTP, of as many over gRPC",
        of("http: CPU of 100 watchers, of those over gRPC"),
        most=1,
    ),
    Goal(
        "gateway's CPU for them, of the server's",
        of("http: CPU of 100 watchers, of those over gRPC", "of_server"),
        most=1.5,
    ),
    Goal("gateway with 1,000 idle streams", of("http: gateway with 1,000 idle streams"), most=120, unit=" MiB"),
    Goal(
        "calls over HTTP while strangers storm it, p99 of the worst",
        _storms("p99", "http: a call of others, storm: ", ""),
        most=100,
        unit=" ms",
    ),
    Goal("calls during storms, behind Envoy, p99 of the worst", _storms("p99"), most=250, unit=" ms"),
    Goal(
        "console: first paint, 100,000 conversations",
        of("console, 100,000 stored: first paint", "p50"),
        most=500,
        unit=" ms",
    ),
    Goal(
        "console: the list is there, 100,000 conversations",
        of("console, 100,000 stored: list there", "p50"),
        most=1_000,
        unit=" ms",
    ),
    Goal("console: over the wire", of("console: files, packed"), most=200, unit=" KB"),
    Goal(
        "console: the longest frame, by its CPU, at 5,000 deltas a second",
        of("console: 100 conversations stream beside 10,000 messages: CPU of a frame", "max"),
        most=50,
        unit=" ms",
    ),
    Goal(
        "console: heap after the last cycle, times that after the first",
        of("console: heap after the last cycle", "ratio"),
        most=1.1,
    ),
    Goal("memory that is left 5 s after a storm, behind Envoy", _storms("memory_left_mib"), most=16, unit=" MiB"),
)


def judged(reported: Reported) -> dict[str, dict[str, Any]]:
    """Return by label what is wanted, what was measured and whether that is enough, for what a report holds."""
    found: dict[str, dict[str, Any]] = {}
    for goal in GOALS:
        try:
            measured = goal.measured(reported)
        except KeyError:
            continue
        shown = f"{measured:,.3g}" if abs(measured) < 1_000 else f"{measured:,.0f}"
        found[goal.label] = {
            "wanted": goal.wanted,
            "measured": f"{shown}{goal.unit}",
            "reached": goal.reached(measured),
        }
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what a report has reached, as lines for a terminal, and how many goals it says nothing of."""
    lines = [f"{'goal':<60} {'wanted':>12}  {'measured':>12}"]
    for label, row in found.items():
        reached = "reached" if row["reached"] else "missed"
        lines.append(f"{label:<60} {row['wanted']:>12}  {row['measured']:>12}  {reached}")
    return "\n".join([*lines, f"not measured: {len(GOALS) - len(found)} of {len(GOALS)} goals"])
