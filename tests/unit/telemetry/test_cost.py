"""What it costs to observe a turn: calls of Python functions, which depend neither on machine nor on load."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from actors.adapters.telemetry.exporters import Instruments, Spans
from actors.adapters.telemetry.observer import Observer
from actors.core.content import Text, Usage
from actors.core.history import ProviderView
from actors.core.notifications import RunStop, StateChanged, StopReason
from actors.core.summary import StateSummary
from actors.ports import ModelAnswer, ModelRequest
from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, Telemetry, ToolEnd, ToolStart
from actors.runtime.services import SystemClock
from tests.support.commit_builder import record_of

MOST = {"log lines": 140, "metrics": 1100, "metrics and traces": 1740}
"""How many calls a turn costs, with a few for other versions of Python and of the libraries."""

RECORD = record_of("c")
REQUEST = ModelRequest("c", "c:r1", 1, "", (), ProviderView(()))
ANSWER = ModelAnswer((Text("an answer"),), end_turn=True)
END = AttemptEnd("ok", 1.0, 0.5, Usage(10, 3))


def turn(told: Telemetry) -> None:
    """What a turn of two requests and two tools tells, with a watcher."""
    told.command_began("c", "SendMessageCommand", 0.0, "")
    told.published(RECORD, [StateChanged(StateSummary("llm_requesting", run="c:1"), ())])
    told.command_ended("c")
    told.rpc_ended(Rpc("SendMessage", "c", "local", "", "", "OK", 0.003, stream=False, command=True))
    for _ in range(5):
        told.written(1, 0.001)
    for _ in range(8):
        told.delivered(0.001)
    for number in range(2):
        attempt = AttemptStart("c", f"c:r{number}", 1, "opus", "anthropic", "conversation")
        told.attempt_began(attempt)
        told.attempt_ended(attempt, END, REQUEST, ANSWER)
        call = ToolStart("c", f"t{number}", "bash")
        told.tool_began(call)
        told.tool_ended(call, ToolEnd("ok", 1.0), {}, "")
    told.published(RECORD, [RunStop("c:1", StopReason.COMPLETED)])


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
