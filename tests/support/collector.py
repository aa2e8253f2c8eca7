"""A collector of traces and metrics by OTLP, in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(traces_grpc.TraceServiceServicer, metrics_grpc.MetricsServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: set[str] = set()
        self.resources: list[dict[str, Any]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        traces_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        metrics_grpc.add_MetricsServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 -- both services name it so
        if isinstance(request, metrics.ExportMetricsServiceRequest):
            scopes = [scope for each in request.resource_metrics for scope in each.scope_metrics]
            self.metrics |= {metric.name for scope in scopes for metric in scope.metrics}
            return metrics.ExportMetricsServiceResponse()
        for each in request.resource_spans:
            self.resources.append(values(each.resource.attributes))
            self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return traces.ExportTraceServiceResponse()


def values(attributes: Any) -> dict[str, Any]:
    """The attributes of a span or a resource, by name."""
    return {each.key: _value(each) for each in attributes}


def _value(attribute: KeyValue) -> Any:
    kind = attribute.value.WhichOneof("value")
    return None if kind is None else getattr(attribute.value, kind)
