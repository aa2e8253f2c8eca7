"""Exports metrics and traces with OpenTelemetry's SDK (extras `metrics` and `otel`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from actors.adapters.telemetry.metrics import METRICS, Kind, Metric
from actors.core.content import Content, Text, ToolUse, Usage
from actors.ports.models import ModelAnswer, ModelRequest
from actors.ports.telemetry import ARGUMENTS, INPUT, OUTPUT, RESULT, AttemptEnd, AttemptStart, Run, ToolEnd, ToolStart

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.util.types import AttributeValue

SCOPE = "bedrock"
AGENT, SUB_AGENT = "bedrock", "bedrock.sub_agent"
_PROPAGATOR = TraceContextTextMapPropagator()


class Instruments:
    """The instruments of all metrics. Thread-safe; `add` does not block."""

    def __init__(self, *readers: MetricReader) -> None:
        self._provider = MeterProvider(readers, resource(), shutdown_on_exit=False)
        self._meter = self._provider.get_meter(SCOPE)
        self._adders = {metric: self._adder(metric) for metric in METRICS if metric.kind is not Kind.GAUGE}

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a counter or histogram. `labels` are the values of its labels; "" leaves a label out."""
        self._adders[metric](value, {name: label for name, label in zip(metric.labels, labels, strict=True) if label})

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        """Register the function that is called at each export to get a gauge's value. Call this once per metric."""
        self._meter.create_observable_gauge(
            metric.name, [lambda _options: [Observation(read())]], metric.unit, metric.help
        )

    def close(self) -> None:
        """Export the remaining values, and end the readers. May block for a few seconds."""
        self._provider.shutdown()

    def _adder(self, metric: Metric) -> Callable[[float, dict[str, str]], None]:
        if metric.kind is Kind.COUNTER:
            return self._meter.create_counter(metric.name, metric.unit, metric.help).add
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
        ).record


def resource() -> Resource:
    """The OpenTelemetry resource that describes this server, as the source of its metrics and spans."""
    return Resource.create({"service.name": "bedrock", "service.version": version("phoenix-bedrock")})


def prometheus(host: str, port: int) -> tuple[MetricReader, Callable[[], None], int]:
    """Serve metrics over HTTP at `port` (0 for any). Raises OSError.

    Returns the reader, a function that ends the HTTP server, and its port.
    """
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 -- extra `metrics`
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415

    registry = CollectorRegistry()
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    return reader, close, server.server_port


def otlp(endpoint: str, contents: Iterable[str]) -> tuple[MetricReader, Spans]:
    """Export metrics and traces to a collector with OTLP over gRPC, without OpenTelemetry's global providers.

    Attributes that contain parts of messages are exported if `contents` names them. All settings except the endpoint
    come from OpenTelemetry's variables, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER.
    """
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 -- `otel`
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    plain = endpoint.startswith("http://")
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=plain)))
    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, insecure=plain)), Spans(provider, contents)


class Spans:
    """Makes one trace for each run and its sub-agents' runs, following OpenTelemetry's GenAI conventions.

    A run is an `invoke_agent` span with a `chat` span for each model-request attempt and an `execute_tool` span for
    each call. Contents are left out, except in attributes that the operator has named.
    """

    def __init__(self, provider: TracerProvider, contents: Iterable[str] = ()) -> None:
        """`contents` names the attributes with parts of messages that are added to spans."""
        self._provider = provider
        self._tracer = provider.get_tracer("bedrock")
        self._contents = frozenset(contents)
        self._runs: dict[str, Span] = {}
        self._attempts: dict[AttemptStart, Span] = {}
        self._calls: dict[ToolStart, Span] = {}

    def close(self) -> None:
        self._provider.shutdown()

    def run_began(self, run: Run) -> None:
        parent = self._inside(run.parent) or _PROPAGATOR.extract({"traceparent": run.trace_parent}, Context())
        agent = SUB_AGENT if run.parent else AGENT
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": run.conversation,
            "gen_ai.request.model": run.model,
            "bedrock.run": run.run,
        }
        span = self._tracer.start_span(f"invoke_agent {agent}", parent, SpanKind.INTERNAL, attributes)
        self._runs[run.conversation] = span

    def run_ended(self, run: Run, outcome: str, detail: str) -> None:
        span = self._runs.pop(run.conversation)
        facts = {"gen_ai.provider.name": run.provider, "bedrock.outcome": outcome, "bedrock.detail": detail}
        error = (detail or "error") if outcome == "error" else ""
        _end(span, {name: fact for name, fact in facts.items() if fact} | _tokens(run.usage), error)

    def attempt_began(self, attempt: AttemptStart) -> None:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": attempt.provider,
            "gen_ai.request.model": attempt.model,
            "gen_ai.conversation.id": attempt.conversation,
            "gen_ai.request.stream": True,
            "bedrock.request": attempt.request,
            "bedrock.attempt": attempt.attempt,
            "bedrock.purpose": attempt.purpose,
        }
        inside = self._inside(attempt.conversation)
        self._attempts[attempt] = self._tracer.start_span(f"chat {attempt.model}", inside, SpanKind.CLIENT, attributes)

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        span = self._attempts.pop(attempt)
        facts: dict[str, AttributeValue] = {}
        if end.first_chunk_seconds is not None:
            facts["gen_ai.response.time_to_first_chunk"] = end.first_chunk_seconds
        if end.usage is not None:
            facts |= _tokens(end.usage)
        if answer is not None:
            facts["gen_ai.response.finish_reasons"] = (_finish_reason(answer),)
            if OUTPUT in self._contents:
                facts[OUTPUT] = _messages("assistant", answer.content)
        if INPUT in self._contents and request.turns:
            facts[INPUT] = _messages(request.turns[-1].role, request.turns[-1].content)
        _end(span, facts, end.outcome if answer is None else "")

    def tool_began(self, call: ToolStart, *, extension: bool) -> str:
        """Begin a span; return its `traceparent`. `extension` means that the tool is not the server's or a client's."""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.call,
            "gen_ai.tool.type": "extension" if extension else "function",
            "gen_ai.conversation.id": call.conversation,
        }
        inside = self._inside(call.conversation)
        span = self._tracer.start_span(f"execute_tool {call.tool}", inside, SpanKind.INTERNAL, attributes)
        self._calls[call] = span
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
        return carrier.get("traceparent", "")

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        span = self._calls.pop(call)
        facts: dict[str, AttributeValue] = {"bedrock.outcome": end.outcome}
        if ARGUMENTS in self._contents:
            facts[ARGUMENTS] = json.dumps(arguments, default=str)
        if RESULT in self._contents:
            facts[RESULT] = result
        _end(span, facts, "" if end.outcome in {"ok", "sub_agents", "answered"} else end.outcome)

    def _inside(self, conversation: str) -> Context:
        """The context for spans in a conversation's run; if no run is open, a context that begins a new trace."""
        span = self._runs.get(conversation)
        return Context() if span is None else trace.set_span_in_context(span, Context())


def _end(span: Span, facts: Mapping[str, AttributeValue], error: str = "") -> None:
    span.set_attributes(facts)
    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end()


def _tokens(usage: Usage) -> dict[str, AttributeValue]:
    """The attributes for token usage. By convention, input tokens include those read from the cache."""
    counted = {
        "gen_ai.usage.input_tokens": usage.context_tokens - usage.output_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
    return {name: tokens for name, tokens in counted.items() if tokens}


def _finish_reason(answer: ModelAnswer) -> str:
    if answer.refusal:
        return "content_filter"
    if answer.truncated:
        return "length"
    return "tool_call" if any(isinstance(each, ToolUse) for each in answer.content) else "stop"


def _messages(role: str, content: Iterable[Content]) -> str:
    """One message as JSON, following OpenTelemetry's conventions; includes only texts and tool calls."""
    parts: list[dict[str, str]] = []
    for each in content:
        if isinstance(each, Text):
            parts.append({"type": "text", "content": each.text})
        elif isinstance(each, ToolUse):
            parts.append({"type": "tool_call", "id": each.id, "name": each.name, "arguments": each.input})
    return json.dumps([{"role": role, "parts": parts}])
