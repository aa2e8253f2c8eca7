"""Metrics and traces: what is observed, what it costs, and where it is sent."""

import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id
from prometheus_client.parser import text_string_to_metric_families

from actors.adapters.telemetry.exporters import Instruments, Spans, prometheus
from actors.adapters.telemetry.metrics import ATTEMPTS, LEAKS, METRICS, RUNS, THREADS, TOOLS, Kind, Metric
from actors.adapters.telemetry.observer import MODELS, OTHER, Observer
from actors.core import content
from actors.core.context import ClientTool, Profile
from actors.core.history import ProviderView, Turn
from actors.core.notifications import MessageAdded, RunStop, StateChanged, StopReason
from actors.core.summary import StateSummary
from actors.ports import ModelAnswer, ModelRequest
from actors.ports.telemetry import CONTENTS, AttemptEnd, AttemptStart, Rpc, Telemetry, ToolEnd, ToolStart
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
    calls = tuple(content.ToolUse(call, name, "{}") for call, name in names.items())
    results: tuple[content.Content, ...] = (
        content.ToolError("t1", "it failed"),
        content.ToolError("t2", "no", content.ToolOutcome.DENIED),
        content.ToolError("t3", "no", content.ToolOutcome.SKIPPED),
        content.ToolCancelled("t4", "stopped"),
        content.ToolError("t5", "there is no such tool"),
        content.ToolSuccess("t6", "done"),
    )
    began = StateChanged(StateSummary("llm_requesting", run="c1:1"), ())
    read.observer.published(record, [began, MessageAdded(content.Message("m", 1, content.MessageType.AGENT, calls, 1))])
    read.observer.tool_began(ToolStart("c1", "t1", "bash"))
    read.observer.published(record, [MessageAdded(content.Message("n", 2, content.MessageType.TOOL, results, 1))])
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
    results = (content.ToolCancelled("t1", "stopped"), content.ToolCancelled("t2", "stopped"))
    calls = (content.ToolUse("t1", "bash", "{}"), content.ToolUse("t2", "made-up", "{}"))
    message = MessageAdded(content.Message("n", 2, content.MessageType.TOOL, results, 1))
    stop = RunStop("c1:1", StopReason.INTERRUPTED, "restart")
    read.observer.recovered(record_of("c1"), "c1:1", calls, [message, RunStop("c1:0", StopReason.ERROR), stop])
    assert ended(caplog, "tool call ended", "call", "outcome") == [("t1", "cancelled"), ("t2", "cancelled")]
    assert ended(caplog, "run ended", "run", "model", "outcome", "detail") == [
        ("c1:1", "demo", "interrupted", "restart")
    ]
    assert read.counted(TOOLS) == {("bash", "cancelled"), ("other", "cancelled")}
    assert read.counted(RUNS) == {("interrupted",)}


# --- Spans as the GenAI conventions have them, in the SDK's own exporter ---


RECORD = record_of("c", model="opus")
BEGAN = StateChanged(StateSummary("llm_requesting", run="c:1"), ())
ATTEMPT = AttemptStart("c", "c:r1", 1, "opus", "anthropic", "conversation")
CALL = ToolStart("c", "t1", "bash")
QUESTION = ModelRequest("c", "c:r1", 1, "", (), ProviderView((Turn("user", (content.Text("a question"),)),)))
ANSWER = ModelAnswer((content.Text("an answer"), content.ToolUse("t1", "bash", '{"cmd": "ls"}')), end_turn=False)
OK = AttemptEnd("ok", 1.0, 0.5, content.Usage(10, 3, cache_read_tokens=5, cache_write_tokens=2))


class Told:
    """Traces, and the spans that have ended, by the first word of their names."""

    def __init__(self, *contents: str) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = Observer(SystemClock())
        self.traces.tools = {"bash"}
        self.traces.export(Instruments(), Spans(provider, contents), {})

    @property
    def ended(self) -> tuple[Any, ...]:
        return self._exporter.get_finished_spans()

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name.partition(" ")[0]: span for span in self.ended}

    def turn(self, end: AttemptEnd = OK, answer: ModelAnswer | None = ANSWER) -> dict[str, Any]:
        """One attempt and one call, in a run."""
        self.traces.published(RECORD, [BEGAN])
        self.traces.attempt_began(ATTEMPT)
        self.traces.attempt_ended(ATTEMPT, end, QUESTION, answer)
        self.traces.tool_began(CALL)
        self.traces.tool_ended(CALL, ToolEnd("ok", 1.0), {"cmd": "ls"}, "a file")
        self.traces.published(RECORD, [RunStop("c:1", StopReason.COMPLETED)])
        return self.spans


def test_a_run_holds_its_attempts_and_calls() -> None:
    spans = Told().turn()
    run = spans["invoke_agent"]
    assert {spans[name].parent.span_id for name in ("chat", "execute_tool")} == {run.context.span_id}
    assert spans["chat"].name == "chat opus"
    used = {name: value for name, value in spans["chat"].attributes.items() if name.startswith("gen_ai.usage")}
    assert used == {
        "gen_ai.usage.input_tokens": 17,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.cache_creation.input_tokens": 2,
    }
    assert used.items() <= run.attributes.items(), "a run used what its answers did"
    assert run.attributes["gen_ai.provider.name"] == "anthropic"
    assert spans["chat"].attributes["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert spans["execute_tool"].attributes["gen_ai.tool.call.id"] == "t1"


def test_contents_are_sent_only_by_name() -> None:
    contents = {"gen_ai.input.messages": "question", "gen_ai.output.messages": "answer",
                "gen_ai.tool.call.arguments": "ls", "gen_ai.tool.call.result": "file"}  # fmt: skip
    assert set(contents) == set(CONTENTS)
    for named in ((), *((name,) for name in CONTENTS)):
        spans = Told(*named).turn()
        sent = {name: value for span in spans.values() for name, value in span.attributes.items() if name in contents}
        assert tuple(sent) == named
        assert all(contents[name] in value for name, value in sent.items())


def test_what_fails_says_why() -> None:
    told = Told()
    spans = told.turn(AttemptEnd("rate_limit", 1.0), None)
    assert spans["chat"].status.status_code is StatusCode.ERROR
    assert spans["chat"].attributes["error.type"] == "rate_limit"
    assert spans["invoke_agent"].status.status_code is StatusCode.UNSET, "another attempt may have succeeded"
    told.traces.published(RECORD, [BEGAN, RunStop("c:1", StopReason.ERROR, "rate_limit")])
    assert told.spans["invoke_agent"].attributes["error.type"] == "rate_limit"


def test_what_is_not_part_of_a_run_has_a_trace_of_its_own() -> None:
    told = Told()
    told.traces.attempt_began(ATTEMPT)
    told.traces.attempt_ended(ATTEMPT, OK, QUESTION, ANSWER)
    assert told.spans["chat"].parent is None


def test_what_a_client_has_begun_goes_on_as_it_was_decided_there() -> None:
    for recorded, flags in ((True, "01"), (False, "00")):
        told = Told()
        began = f"00-{'a1' * 16}-{'b2' * 8}-{flags}"
        told.traces.command_began("c", "SendMessageCommand", 0.0, began)
        told.traces.published(RECORD, [BEGAN])
        told.traces.command_ended("c")
        named = told.traces.tool_began(CALL)
        assert named is not None
        told.traces.tool_ended(CALL, ToolEnd("ok", 1.0), {}, "")
        told.traces.published(RECORD, [RunStop("c:1", StopReason.COMPLETED)])
        assert set(told.spans) == ({"invoke_agent", "execute_tool"} if recorded else set())
        assert named.startswith(f"00-{'a1' * 16}-")
        assert named.endswith(f"-{flags}")
        if recorded:
            assert format_span_id(told.spans["execute_tool"].context.span_id) in named
            assert format_span_id(told.spans["invoke_agent"].parent.span_id) == "b2" * 8


def test_the_limits_of_opentelemetry_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    assert Told("gen_ai.tool.call.result").turn()["execute_tool"].attributes["gen_ai.tool.call.result"] == "a fi"
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3")
    assert {span.dropped_attributes > 0 for span in Told().turn().values()} == {True}
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert Told().turn() == {}


# --- What it costs to observe a turn: calls of Python functions, which depend neither on machine nor on load ---


MOST = {"log lines": 140, "metrics": 1100, "metrics and traces": 1740}
"""How many calls a turn costs, with a few for other versions of Python and of the libraries."""

BARE_RECORD = record_of("c")
BARE_ANSWER = ModelAnswer((content.Text("an answer"),), end_turn=True)
END = AttemptEnd("ok", 1.0, 0.5, content.Usage(10, 3))


def turn(told: Telemetry) -> None:
    """What a turn of two requests and two tools tells, with a watcher."""
    told.command_began("c", "SendMessageCommand", 0.0, "")
    told.published(BARE_RECORD, [StateChanged(StateSummary("llm_requesting", run="c:1"), ())])
    told.command_ended("c")
    told.rpc_ended(Rpc("SendMessage", "c", "local", "", "", "OK", 0.003, stream=False, command=True))
    for _ in range(5):
        told.written(1, 0.001)
    for _ in range(8):
        told.delivered(0.001)
    for number in range(2):
        attempt = AttemptStart("c", f"c:r{number}", 1, "opus", "anthropic", "conversation")
        told.attempt_began(attempt)
        told.attempt_ended(attempt, END, REQUEST, BARE_ANSWER)
        call = ToolStart("c", f"t{number}", "bash")
        told.tool_began(call)
        told.tool_ended(call, ToolEnd("ok", 1.0), {}, "")
    told.published(BARE_RECORD, [RunStop("c:1", StopReason.COMPLETED)])


def calls(work: Callable[[], object]) -> int:
    """How many Python functions are called by the second time that this is done; the first one fills tables."""
    work()
    counted = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


class Kept(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def test_observing_a_turn_costs_few_calls(request: pytest.FixtureRequest) -> None:
    exporter, kept = Instruments(InMemoryMetricReader()), Kept()
    request.addfinalizer(exporter.close)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(kept)
    lines, metrics, both = (Observer(SystemClock()) for _ in range(3))
    metrics.export(exporter, None, {})
    both.export(exporter, Spans(provider), {})
    counted = {
        "log lines": calls(lambda: turn(lines)),
        "metrics": calls(lambda: turn(metrics)),
        "metrics and traces": calls(lambda: turn(both)),
    }
    assert len(kept.spans) == 10
    assert {name: count for name, count in counted.items() if count > MOST[name]} == {}
