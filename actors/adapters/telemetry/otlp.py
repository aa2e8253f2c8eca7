"""Sets up OpenTelemetry's SDK with exporters for OTLP over gRPC (extra `otel`)."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from actors.adapters.telemetry.metrics import Metric, Metrics
from actors.adapters.telemetry.otlp_metrics import OtlpMetrics
from actors.adapters.telemetry.otlp_spans import Spans, SpanSender
from actors.adapters.telemetry.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.ports import Clock
    from actors.ports.telemetry import Telemetry


def otlp(
    endpoint: str, contents: Iterable[str], clock: Clock, gauges: Mapping[Metric, Callable[[], float]]
) -> tuple[Telemetry, ...]:
    """Return observers that export traces and metrics to the collector at `endpoint`.

    OpenTelemetry's global providers are not changed. Span attributes that contain parts of messages are exported only
    if `contents` has their names. `gauges` are the functions that return the values of gauges. All settings of the
    export but the endpoint come from OpenTelemetry's environment variables, such as OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_METRIC_EXPORT_INTERVAL.
    """
    plain = endpoint.startswith("http://")
    resource = Resource.create({"service.name": "bedrock", "service.version": version("phoenix-bedrock")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans = Spans(provider, BatchSpanProcessor(SpanSender(endpoint, insecure=plain)))
    seconds = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "60000")) / 1000
    exporter = OtlpMetrics(OTLPMetricExporter(endpoint, insecure=plain), resource, seconds)
    return (Traces(spans, contents), Metrics(exporter, clock, gauges))
