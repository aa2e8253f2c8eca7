"""Exports metrics and traces with OpenTelemetry's SDK (extras `metrics` and `otel`)."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource

from actors.adapters.telemetry.metrics import METRICS, Kind, Metric, Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.sdk.metrics.export import MetricReader

    from actors.ports import Clock
    from actors.ports.telemetry import Telemetry

SCOPE = "bedrock"


class Instruments:
    """Implements metrics.Exporter with the instruments of OpenTelemetry's SDK."""

    def __init__(self, reader: MetricReader, on_close: Callable[[], None] = lambda: None) -> None:
        """`reader` exports the values; `on_close` ends what belongs to it."""
        self._provider = MeterProvider([reader], resource(), shutdown_on_exit=False)
        self._meter = self._provider.get_meter(SCOPE)
        self._adders = {metric: self._adder(metric) for metric in METRICS if metric.kind is not Kind.GAUGE}
        self._on_close = on_close

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        self._adders[metric](value, {name: label for name, label in zip(metric.labels, labels, strict=True) if label})

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        self._meter.create_observable_gauge(
            metric.name, [lambda _options: [Observation(read())]], metric.unit, metric.help
        )

    def close(self) -> None:
        self._on_close()
        self._provider.shutdown()

    def _adder(self, metric: Metric) -> Callable[[float, dict[str, str]], None]:
        if metric.kind is Kind.COUNTER:
            return self._meter.create_counter(metric.name, metric.unit, metric.help).add
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
        ).record


def resource() -> Resource:
    """Return what the metrics and spans are of: this server."""
    return Resource.create({"service.name": "bedrock", "service.version": version("phoenix-bedrock")})


def prometheus(host: str, port: int) -> tuple[Instruments, int]:
    """Serve metrics over HTTP until they are closed; return the port as well, since 0 means any free one.

    Raises OSError.
    """
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 -- extra `metrics`
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415

    registry = CollectorRegistry()
    server, thread = start_http_server(port, host, registry)
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Instruments(reader, close), server.server_port


def otlp(
    endpoint: str, contents: Iterable[str], clock: Clock, gauges: Mapping[Metric, Callable[[], float]]
) -> tuple[Telemetry, ...]:
    """Return observers that export traces and metrics to the collector at `endpoint`, by OTLP over gRPC.

    OpenTelemetry's global providers are not changed. Span attributes that contain parts of messages are exported only
    if `contents` has their names. `gauges` are the functions that return the values of gauges. All settings of the
    export but the endpoint come from OpenTelemetry's environment variables, such as OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_METRIC_EXPORT_INTERVAL.
    """
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 -- `otel`
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from actors.adapters.telemetry.traces import Traces  # noqa: PLC0415

    plain = endpoint.startswith("http://")
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=plain)))
    exported = Instruments(PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, insecure=plain)))
    return (Traces(provider, contents), Metrics(exported, clock, gauges))
