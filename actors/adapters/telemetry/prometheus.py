"""Serves metrics to Prometheus over HTTP, on a separate port (extra `metrics`)."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from actors.adapters.telemetry.metrics import METRICS, Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_READERS = 8
"""Maximum number of connections at a time.

Further connections are closed at once, so that they do not use up the file descriptors that the server needs.
"""

READ_SECONDS = 5.0
"""Seconds after which a connection that sends nothing is closed."""


class _Handler(WSGIRequestHandler):
    """Answers one HTTP request, and logs nothing to stderr."""

    timeout = READ_SECONDS

    def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 -- the name of the base class
        """Do nothing, so that requests are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each connection on a thread of its own, up to MAX_READERS at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_READERS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a new thread, or close the connection if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection. Called on the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke off."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class Prometheus:
    """Implements Exporter: serves the metrics over HTTP, on threads of its own, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on `port` of `host`; 0 means any free port. Raises OSError."""
        self._registry = CollectorRegistry()
        self._families: dict[Metric, Any] = {metric: self._family(metric) for metric in METRICS}
        self._adders: dict[tuple[Metric, tuple[str, ...]], Callable[[float], None]] = {}
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = _Server6 if family is socket.AF_INET6 else _Server
        self._server = make_server(str(address[0]), port, make_wsgi_app(self._registry), server, _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="bedrock-metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port
        """The port on which the metrics are served."""

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
