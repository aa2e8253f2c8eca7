"""Metrics with bounded labels, and observers that disturb neither each other nor what they observe."""

import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from actors.adapters.telemetry.exporters import Instruments, prometheus
from actors.adapters.telemetry.metrics import ATTEMPTS, LEAKS, METRICS, RUNS, THREADS, TOOLS, Kind, Metric
from actors.adapters.telemetry.observer import MODELS, OTHER, Observer
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
from actors.core.context import ClientTool, Profile
from actors.core.history import ProviderView
from actors.core.notifications import MessageAdded, RunStop, StateChanged, StopReason
from actors.core.summary import StateSummary
from actors.ports import ModelRequest
from actors.ports.telemetry import AttemptEnd, AttemptStart, ToolEnd, ToolStart
from actors.runtime.services import SystemClock
from tests.documents.pages import ROOT
from tests.support.commit_builder import record_of
from tests.support.patience import PATIENCE

REQUEST = ModelRequest("c", "c:r1", 1, "", (), ProviderView(()))


class Read:
    """An observer, and what it has counted."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.observer = Observer(SystemClock())
        self.observer.tools = {"bash", "look"}
        self.observer.export(Instruments(self._reader), None, {})

    def counted(self, metric: Metric) -> set[tuple[str, ...]]:
        """The values of the labels with which the metric was counted."""
        data: Any = self._reader.get_metrics_data()
        (found,) = (each for each in data.resource_metrics[0].scope_metrics[0].metrics if each.name == metric.name)
        return {tuple(point.attributes[label] for label in metric.labels[:3]) for point in found.data.data_points}


def test_otlp_gets_the_sums_since_the_start() -> None:
    reader = InMemoryMetricReader()
    exporter = Instruments(reader)
    exporter.gauge(THREADS, lambda: 7)
    for seconds in (0.005, 0.03, 0.03, 10_000.0):
        exporter.add(TOOLS, seconds, "bash", "ok")
    exporter.add(LEAKS, 1)
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
    reader, close, port = prometheus("127.0.0.1", 0)
    exporter = Instruments(reader)
    with ExitStack() as opened:
        opened.callback(close)
        opened.callback(exporter.close)
        for number, metric in enumerate(METRICS):
            if metric.kind is Kind.GAUGE:
                exporter.gauge(metric, lambda number=number: number)  # type: ignore[misc]
            else:
                for value in (0.02, 3.0, 1000.0):
                    exporter.add(metric, value, *("ab"[: len(label) % 2 + 1] for label in metric.labels))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            page = answer.read().decode()
    assert samples(page) == samples(Path(__file__).with_name("scrape.txt").read_text())


def test_the_names_of_models_are_bounded() -> None:
    read = Read()
    for number in range(2 * MODELS):
        attempt = AttemptStart("c", "c:r1", 1, f"model-{number}", "p", "conversation")
        read.observer.attempt_ended(attempt, AttemptEnd("ok", 1.0), REQUEST, None)
    names = {labels[2] for labels in read.counted(ATTEMPTS)}
    assert len(names) == MODELS + 1
    assert OTHER in names


def test_tools_of_others_are_counted_together() -> None:
    read = Read()
    for call in (
        ToolStart("c", "t", "mcp__a__b"),
        ToolStart("c", "t", "mcp__c__d"),
        ToolStart("c", "t", "x", client=True),
    ):
        read.observer.tool_began(call)
        read.observer.tool_ended(call, ToolEnd("ok", 1.0), {}, "")
    assert read.counted(TOOLS) == {("mcp", "ok"), ("client", "ok")}


def test_an_observation_that_fails_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Instruments):
        def add(self, metric: Metric, value: float, *labels: str) -> None:
            raise RuntimeError(metric.name)

    observer = Observer(SystemClock())
    observer.export(Failing(), None, {})
    for _ in range(2):
        observer.forwarded("answered")
        observer.quota_exceeded("runs")
    observer.closing.callback(lambda: 1 / 0)
    observer.close()
    assert len(caplog.records) == 1, "only the first failure is logged"


def test_a_server_that_exports_nothing_imports_nothing_for_it() -> None:
    unwanted = "[m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_'))]"
    look = f"import sys, server.app.wiring; print({unwanted})"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}
    done = subprocess.run(
        [sys.executable, "-c", look], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def ended(caplog: pytest.LogCaptureFixture, line: str, *fields: str) -> list[tuple[object, ...]]:
    """The fields of the lines with this message."""
    return [tuple(getattr(each, name) for name in fields) for each in caplog.records if each.msg == line]


def test_calls_that_never_ran_have_an_end_and_others_no_second_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "actors")
    read = Read()
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
    began = StateChanged(StateSummary("llm_requesting", run="c1:1"), ())
    read.observer.published(record, [began, MessageAdded(Message("m", 1, MessageType.AGENT, calls, 1))])
    read.observer.tool_began(ToolStart("c1", "t1", "bash"))
    read.observer.published(record, [MessageAdded(Message("n", 2, MessageType.TOOL, results, 1))])
    assert ended(caplog, "tool call ended", "call", "tool", "run", "outcome") == [
        ("t2", "look", "c1:1", "denied"),
        ("t3", "mcp__a__b", "c1:1", "skipped"),
        ("t4", "find", "c1:1", "cancelled"),
        ("t5", "made-up", "c1:1", "error"),
    ]
    assert read.counted(TOOLS) == {("look", "denied"), ("mcp", "skipped"), ("client", "cancelled"), ("other", "error")}


def test_runs_that_a_restart_ended_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "actors")
    read = Read()
    results = (ToolCancelled("t1", "stopped"), ToolCancelled("t2", "stopped"))
    calls = (ToolUse("t1", "bash", "{}"), ToolUse("t2", "made-up", "{}"))
    message = MessageAdded(Message("n", 2, MessageType.TOOL, results, 1))
    stop = RunStop("c1:1", StopReason.INTERRUPTED, "restart")
    read.observer.recovered(record_of("c1"), "c1:1", calls, [message, RunStop("c1:0", StopReason.ERROR), stop])
    assert ended(caplog, "tool call ended", "call", "outcome") == [("t1", "cancelled"), ("t2", "cancelled")]
    assert ended(caplog, "run ended", "run", "model", "outcome", "detail") == [
        ("c1:1", "demo", "interrupted", "restart")
    ]
    assert read.counted(TOOLS) == {("bash", "cancelled"), ("other", "cancelled")}
    assert read.counted(RUNS) == {("interrupted",)}
