"""Spans as the GenAI conventions have them, in the SDK's own exporter."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id

from actors.adapters.telemetry.exporters import Instruments, Spans
from actors.adapters.telemetry.observer import Observer
from actors.core.content import Text, ToolUse, Usage
from actors.core.history import ProviderView, Turn
from actors.core.notifications import RunStop, StateChanged, StopReason
from actors.core.summary import StateSummary
from actors.ports import ModelAnswer, ModelRequest
from actors.ports.telemetry import CONTENTS, AttemptEnd, AttemptStart, ToolEnd, ToolStart
from actors.runtime.services import SystemClock
from tests.support.commit_builder import record_of

RECORD = record_of("c", model="opus")
BEGAN = StateChanged(StateSummary("llm_requesting", run="c:1"), ())
ATTEMPT = AttemptStart("c", "c:r1", 1, "opus", "anthropic", "conversation")
CALL = ToolStart("c", "t1", "bash")
REQUEST = ModelRequest("c", "c:r1", 1, "", (), ProviderView((Turn("user", (Text("a question"),)),)))
ANSWER = ModelAnswer((Text("an answer"), ToolUse("t1", "bash", '{"cmd": "ls"}')), end_turn=False)
OK = AttemptEnd("ok", 1.0, 0.5, Usage(10, 3, cache_read_tokens=5, cache_write_tokens=2))


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
        self.traces.attempt_ended(ATTEMPT, end, REQUEST, answer)
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
    told.traces.attempt_ended(ATTEMPT, OK, REQUEST, ANSWER)
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
