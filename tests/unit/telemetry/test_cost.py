"""What it costs to observe a turn: calls of Python functions, which depend neither on machine nor on load."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from actors.adapters.telemetry.fan_out import FanOut
from actors.adapters.telemetry.metrics import Metrics
from actors.adapters.telemetry.opentelemetry_exporters import Instruments
from actors.adapters.telemetry.traces import Traces
from actors.core.content import Text, Usage
from actors.core.history import ProviderView
from actors.ports import ModelAnswer, ModelRequest
from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, RunEnd, RunStart, Telemetry, ToolEnd, ToolStart
from actors.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    import pytest

MOST = {"nobody": 60, "metrics": 1100, "traces": 640}
"""How many calls a turn costs, with a few for other versions of Python and of the libraries."""

REQUEST = ModelRequest("c", "c:r1", 1, "", (), ProviderView(()))
ANSWER = ModelAnswer((Text("an answer"),), end_turn=True)
END = AttemptEnd("ok", 1.0, 0.5, Usage(10, 3))


def turn(told: Telemetry) -> None:
    """What a turn of two requests and two tools tells, with a watcher."""
    told.command_taken("c", "SendMessageCommand", 0.0, "")
    run = RunStart("c", "c:1", "opus")
    told.run_began(run)
    told.command_done("c")
    told.rpc_ended(Rpc("SendMessage", "c", "local", "", "", "OK", 0.003, stream=False, command=True))
    for _ in range(5):
        told.written(1, 0.001)
    for _ in range(8):
        told.delivered(0.001)
    for number in range(2):
        attempt = AttemptStart("c", f"c:r{number}", 1, "opus", "anthropic", "conversation")
        told.attempt_began(attempt)
        told.attempt_ended(attempt, END, REQUEST, ANSWER)
        call = ToolStart("c", f"t{number}", "bash", "bash")
        told.tool_began(call)
        told.trace_parent_of(call)
        told.tool_ended(call, ToolEnd("ok", 1.0), {}, "")
    told.run_ended(run, RunEnd("completed", "", 1.0))


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
    metrics = FanOut([Metrics(exporter, SystemClock(), {})])
    traces = FanOut([Traces(provider)])
    counted = {
        "nobody": calls(lambda: turn(FanOut([]))),
        "metrics": calls(lambda: turn(metrics)),
        "traces": calls(lambda: turn(traces)),
    }
    assert len(kept.spans) == 10
    assert {name: count for name, count in counted.items() if count > MOST[name]} == {}
