"""Metrics for Prometheus, on a port of their own (extra `metrics`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from actors.adapters.telemetry.metrics import METRICS, Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable


class Prometheus:
    """Implements Exporter: serves the metrics by HTTP, on threads of its own, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        """Listen; port 0: any free one. Raises OSError."""
        self._registry = CollectorRegistry()
        self._families: dict[Metric, Any] = {metric: self._family(metric) for metric in METRICS}
        self._adders: dict[tuple[Metric, tuple[str, ...]], Callable[[float], None]] = {}
        self._server, self._thread = start_http_server(port, host, self._registry)
        self.port: int = self._server.server_port
        """The port that was chosen."""

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        key = metric, labels
        adder = self._adders.get(key)
        if adder is None:
            family = self._families[metric]
            child = family.labels(*labels) if labels else family
            adder = self._adders[key] = child.inc if metric.kind is Kind.COUNTER else child.observe
        adder(value)

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        self._families[metric].set_function(read)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _family(self, metric: Metric) -> Counter | Gauge | Histogram:
        named = metric.prometheus, metric.help, tuple(label.replace(".", "_") for label in metric.labels)
        match metric.kind:
            case Kind.COUNTER:
                return Counter(*named, registry=self._registry)
            case Kind.GAUGE:
                return Gauge(*named, registry=self._registry)
            case Kind.HISTOGRAM:
                return Histogram(*named, registry=self._registry, buckets=metric.buckets)
