"""Exports metrics over OTLP (extra `otel`).

The values are summed here, and passed to OpenTelemetry's exporter in the form that the SDK's own readers produce. The
SDK's instruments are not used, because they take five times as long for each value.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Exported
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from actors.adapters.telemetry.metrics import METRICS, Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

_SCOPE = InstrumentationScope("bedrock")
_TOTAL = AggregationTemporality.CUMULATIVE


class _Series:
    """The accumulated values of one metric for one combination of label values."""

    __slots__ = ("counts", "largest", "smallest", "total")

    def __init__(self, metric: Metric) -> None:
        self.counts = [0] * (len(metric.buckets) + 1)
        self.total = 0.0
        self.smallest, self.largest = float("inf"), float("-inf")

    def add(self, metric: Metric, value: float) -> None:
        self.total += value
        if metric.kind is Kind.HISTOGRAM:
            self.counts[bisect_left(metric.buckets, value)] += 1
            self.smallest, self.largest = min(self.smallest, value), max(self.largest, value)


class OtlpMetrics:
    """Implements Exporter: exports the totals since this object was created, at a fixed interval and at `close`."""

    def __init__(self, exporter: MetricExporter, resource: Resource, seconds: float) -> None:
        """Start the thread that exports the values; `seconds` is the pause between two exports."""
        self._exporter = exporter
        self._resource = resource
        self._seconds = seconds
        self._began_ns = time.time_ns()
        self._lock = threading.Lock()  # guards the sums in _series
        self._series: dict[Metric, dict[tuple[str, ...], _Series]] = {metric: {} for metric in METRICS}
        self._gauges: dict[Metric, Callable[[], float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bedrock-metrics", daemon=True)
        self._thread.start()

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        with self._lock:
            series = self._series[metric].get(labels)
            if series is None:
                series = self._series[metric][labels] = _Series(metric)
            series.add(metric, value)

    def gauge(self, metric: Metric, read: Callable[[], float]) -> None:
        self._gauges[metric] = read

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        try:
            scope = ScopeMetrics(_SCOPE, list(self._collected()), "")
            self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        except Exception:
            log.exception("metrics could not be exported")

    def _collected(self) -> Iterator[Exported]:
        now = time.time_ns()
        for metric, read in self._gauges.items():
            points = [NumberDataPoint({}, self._began_ns, now, read())]
            yield Exported(metric.name, metric.help, metric.unit, Gauge(points))
        for metric, by_labels in self._series.items():
            with self._lock:
                found = [self._point(metric, labels, series, now) for labels, series in by_labels.items()]
            counted = [point for point in found if isinstance(point, NumberDataPoint)]
            spread = [point for point in found if isinstance(point, HistogramDataPoint)]
            if counted:
                yield Exported(metric.name, metric.help, metric.unit, Sum(counted, _TOTAL, is_monotonic=True))
            elif spread:
                yield Exported(metric.name, metric.help, metric.unit, Histogram(spread, _TOTAL))

    def _point(
        self, metric: Metric, labels: tuple[str, ...], series: _Series, now: int
    ) -> NumberDataPoint | HistogramDataPoint:
        attributes = {name: label for name, label in zip(metric.labels, labels, strict=True) if label}
        if metric.kind is Kind.COUNTER:
            return NumberDataPoint(attributes, self._began_ns, now, series.total)
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._began_ns,
            time_unix_nano=now,
            count=sum(series.counts),
            sum=series.total,
            bucket_counts=list(series.counts),
            explicit_bounds=metric.buckets,
            min=series.smallest,
            max=series.largest,
        )
