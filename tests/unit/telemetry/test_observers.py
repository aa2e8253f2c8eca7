"""Metrics with bounded labels, and observers that disturb neither each other nor what they observe."""

from __future__ import annotations

import inspect
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from actors.adapters.telemetry.fan_out import FanOut
from actors.adapters.telemetry.metrics import LEAKS, METRICS, MODELS, OTHER, RUNS, THREADS, TOOLS, Kind, Metric, Metrics
from actors.adapters.telemetry.observed_bus import ObservedBus
from actors.adapters.telemetry.observed_tools import ObservedMcpServers
from actors.adapters.telemetry.opentelemetry_exporters import Instruments, prometheus
from actors.core.content import (
    Content,
    Message,
    MessageType,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
)
from actors.core.history import ProviderView
from actors.core.notifications import Durable, MessageAdded, StateChanged
from actors.core.profile import ClientTool, Profile
from actors.core.summary import StateSummary
from actors.events.hub import EventHub
from actors.ports import ModelRequest, StoredEvent
from actors.ports.mcp import NoMcpServers
from actors.ports.telemetry import AttemptEnd, AttemptStart, RunStart, Telemetry, ToolEnd, ToolStart
from actors.runtime.system_clock import SystemClock
from tests.documents.pages import ROOT
from tests.support.commit_builder import record_of
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

REQUEST = ModelRequest("c", "c:r1", 1, "", (), ProviderView(()))


class Added:
    """An exporter that keeps what is added (metrics.Exporter)."""

    def __init__(self) -> None:
        self.values: list[tuple[Metric, float, tuple[str, ...]]] = []
        self.gauges: dict[Metric, Callable[[], float]] = {}

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        assert metric.kind is not Kind.GAUGE
        assert len(labels) == len(metric.labels)
        self.values.append((metric, value, labels))

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        self.gauges[metric] = read

    def close(self) -> None:
        raise OSError("nobody answers")


def test_otlp_gets_the_sums_since_the_start() -> None:
    reader = InMemoryMetricReader()
    exporter = Instruments(reader)
    exporter.gauge(THREADS, lambda: 7)
    for seconds in (0.005, 0.03, 0.03, 10_000.0):
        exporter.add(TOOLS, seconds, ("bash", "ok"))
    exporter.add(LEAKS, 1, ())
    data: Any = reader.get_metrics_data()
    found = {metric.name: metric.data for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    (histogram,) = found[TOOLS.name].data_points
    assert histogram.attributes == {"gen_ai.tool.name": "bash", "outcome": "ok"}
    assert (histogram.count, histogram.sum, histogram.min, histogram.max) == (4, 10_000.065, 0.005, 10_000.0)
    assert (histogram.bucket_counts[0], histogram.bucket_counts[2], histogram.bucket_counts[-1]) == (1, 2, 1)
    assert [found[metric.name].data_points[0].value for metric in (THREADS, LEAKS)] == [7, 1]
    exporter.close()


def samples(page: str) -> set[tuple[object, ...]]:
    """Each sample of a scrape, with what is said of its metric; when it was created is left out."""
    return {
        (family.name, family.type, family.documentation, sample.name, labels(sample.labels), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def labels(named: dict[str, str]) -> frozenset[tuple[str, str | float]]:
    """The bounds of buckets are numbers, which libraries write in different ways."""
    return frozenset((name, float(value) if name == "le" else value) for name, value in named.items())


def test_a_scrape_is_that_of_the_first_exporter() -> None:
    """`scrape.txt` was recorded when metrics were still made with Prometheus' own library."""
    exporter, port = prometheus("127.0.0.1", 0)
    with closing(exporter):
        for number, metric in enumerate(METRICS):
            if metric.kind is Kind.GAUGE:
                exporter.gauge(metric, lambda number=number: number)  # type: ignore[misc]
            else:
                for value in (0.02, 3.0, 1000.0):
                    exporter.add(metric, value, tuple("ab"[: len(label) % 2 + 1] for label in metric.labels))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            page = answer.read().decode()
    assert samples(page) == samples(Path(__file__).with_name("scrape.txt").read_text())


def test_the_names_of_models_are_bounded() -> None:
    added = Added()
    metrics = Metrics(added, SystemClock(), {})
    for number in range(2 * MODELS):
        attempt = AttemptStart("c", "c:r1", 1, f"model-{number}", "p", "conversation")
        metrics.attempt_ended(attempt, AttemptEnd("ok", 1.0), REQUEST, None)
    names = {labels[2] for _, _, labels in added.values}
    assert len(names) == MODELS + 1
    assert OTHER in names


def test_tools_of_others_are_counted_together() -> None:
    added = Added()
    metrics = Metrics(added, SystemClock(), {})
    for tool in ("mcp__a__b", "mcp__c__d"):
        metrics.tool_ended(ToolStart("c", "t", tool, "mcp"), ToolEnd("ok", 1.0), {}, "")
    assert [(metric, labels) for metric, _, labels in added.values] == [(TOOLS, ("mcp", "ok"))] * 2
    assert ObservedMcpServers(NoMcpServers(), metrics, SystemClock()).tool("bash", "c") is None


def test_an_observer_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Telemetry):
        def run_began(self, run: RunStart) -> None:
            raise RuntimeError(run.conversation)

    class Counting(Telemetry):
        runs = 0

        def run_began(self, run: RunStart) -> None:
            self.runs += 1

    counting = Counting()
    both = FanOut([Failing(), counting, Metrics(Added(), SystemClock(), {})])
    for _ in range(2):
        both.run_began(RunStart("c", "c:1", "m"))
    both.close()
    assert counting.runs == 2
    assert len(caplog.records) == 1, "it is said once"


def test_each_observation_reaches_those_that_take_it() -> None:
    methods = {name: inspect.signature(member) for name, member in vars(Telemetry).items() if callable(member)}
    told: list[tuple[str, tuple[Any, ...]]] = []

    def telling(name: str) -> Callable[..., None]:
        return lambda _self, *facts: told.append((name, facts))

    overridden = {name: telling(name) for name in methods}
    takes_all = type("TakesAll", (Telemetry,), overridden)
    both = FanOut([Telemetry(), takes_all()])
    for name, signature in methods.items():
        facts = tuple(range(len(signature.parameters) - 1))
        getattr(both, name)(*facts)
        assert told == [(name, facts)]
        told.clear()


def test_a_server_that_exports_nothing_imports_nothing_for_it() -> None:
    unwanted = "[m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_'))]"
    look = f"import sys, server.app.wiring; print({unwanted})"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}
    done = subprocess.run(
        [sys.executable, "-c", look], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


class Ended(Telemetry):
    """Keeps what never ran."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, str]] = []
        self.runs: list[tuple[str, str, str]] = []

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        self.calls.append((call.call, call.tool, call.group, outcome))

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        self.runs.append((run.run, outcome, detail))


def test_calls_that_never_ran_have_an_end_and_others_no_second_one() -> None:
    ended = Ended()
    bus = ObservedBus(EventHub(), ended, SystemClock(), {"bash", "look"})
    record = replace(record_of("c1"), profile=Profile(client_tools=(ClientTool("find"),)))
    names = {"t1": "bash", "t2": "look", "t3": "mcp__a__b", "t4": "find", "t5": "made-up"}
    calls = tuple(ToolUse(call, name, "{}") for call, name in names.items())
    results: tuple[Content, ...] = (
        ToolError("t1", "it failed"),
        ToolError("t2", "no", ToolOutcome.DENIED),
        ToolError("t3", "no", ToolOutcome.SKIPPED),
        ToolCancelled("t4", "stopped"),
        ToolError("t5", "there is no such tool"),
        ToolSuccess("t6", "done"),
    )
    told: list[Durable] = [StateChanged(StateSummary("llm_requesting", run="c1:1"), ())]
    told += [MessageAdded(Message("m", 1, MessageType.AGENT, calls, 1))]
    bus.publish("c1", tuple(StoredEvent(1, 1, each) for each in told), record)
    bus.tool_began(ToolStart("c1", "t1", "bash", "bash"))
    bus.publish("c1", (StoredEvent(3, 1, MessageAdded(Message("n", 2, MessageType.TOOL, results, 1))),), record)
    assert ended.calls == [
        ("t2", "look", "look", "denied"),
        ("t3", "mcp__a__b", "mcp", "skipped"),
        ("t4", "find", "client", "cancelled"),
        ("t5", "made-up", "other", "error"),
    ]


def test_what_a_restart_has_ended_is_told_and_counted() -> None:
    ended, added = Ended(), Added()
    run = RunStart("c1", "c1:1", "m")
    both = FanOut([ended, Metrics(added, SystemClock(), {})])
    both.run_recovered(run, "interrupted", "restart")
    both.call_left_out(ToolStart("c1", "t1", "bash", "bash"), "cancelled")
    assert ended.runs == [("c1:1", "interrupted", "restart")]
    assert [(metric, labels) for metric, _, labels in added.values] == [
        (RUNS, ("interrupted",)), (TOOLS, ("bash", "cancelled")),
    ]  # fmt: skip
