"""Makes and encodes spans for OpenTelemetry (extra `otel`), in place of the SDK's slower code.

The SDK starts each trace, decides whether it is recorded, and sends it. The spans inside a trace are made and encoded
here, because the SDK takes three times as long for that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags
from opentelemetry.proto.trace.v1.trace_pb2 import Status as SentStatus
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.util.types import Attributes, AttributeValue

SCOPE = "bedrock"
_PROPAGATOR = TraceContextTextMapPropagator()

_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_STATUSES = {code: SentStatus(code=SentStatus.StatusCode.Value(f"STATUS_CODE_{code.name}")) for code in StatusCode}
_KINDS = {kind: SentSpan.SpanKind.Value(f"SPAN_KIND_{kind.name}") for kind in SpanKind}


class OpenSpan:
    """A span that has begun and not ended. It has no events and no links."""

    __slots__ = ("attributes", "began_ns", "context", "kind", "name", "parent", "recorded")

    def __init__(
        self,
        begun: tuple[str, SpanKind],
        attributes: dict[str, AttributeValue],
        context: SpanContext,
        parent: SpanContext | None,
        *,
        recorded: bool,
    ) -> None:
        """`begun` is the name and kind of the span; `context` identifies this span, `parent` the span around it."""
        self.name, self.kind = begun
        self.attributes = attributes
        self.context = context
        self.parent = parent
        self.recorded = recorded
        """Whether the span's trace is recorded."""
        self.began_ns = time.time_ns()


class Spans:
    """Begins spans, and passes them to a processor when they end.

    Safe to call from any thread. A span may end on another thread than the one on which it began.
    """

    def __init__(self, provider: TracerProvider, processor: SpanProcessor) -> None:
        """Use the settings of `provider`, which also decides which traces are recorded.

        `processor` gets the ended spans; `close` shuts it down.
        """
        self._provider = provider
        self._processor = processor
        self._tracer = provider.get_tracer(SCOPE)
        self._scope = InstrumentationScope(SCOPE, "")
        limits = SpanLimits()
        self._most = limits.max_span_attributes
        self._longest = limits.max_span_attribute_length

    def close(self) -> None:
        """Export the remaining spans, and shut down. May block for some seconds."""
        self._processor.shutdown()
        self._provider.shutdown()

    def begin(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        parent: OpenSpan | SpanContext | None = None,
    ) -> OpenSpan:
        """Begin a span and return it.

        If `parent` is an OpenSpan, the new span is inside that span; if it is a SpanContext, inside a trace of another
        program; if it is None, a new trace begins.
        """
        if isinstance(parent, OpenSpan):
            above = parent.context
            number = self._provider.id_generator.generate_span_id()
            context = SpanContext(above.trace_id, number, False, above.trace_flags, above.trace_state)
            return OpenSpan((name, kind), attributes, context, above, recorded=parent.recorded)
        asked = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        # The SDK's span is never ended: it only supplies the ids, and the decision whether the trace is recorded.
        begun = self._tracer.start_span(name, asked, kind, attributes)
        return OpenSpan((name, kind), attributes, begun.get_span_context(), parent, recorded=begun.is_recording())

    def end(self, span: OpenSpan, facts: Mapping[str, AttributeValue], error: str = "") -> None:
        """End a span and add the attributes `facts`; `error` is the kind of its failure, "" for none."""
        if not span.recorded:
            return
        attributes = span.attributes
        attributes.update(facts)
        if error:
            attributes["error.type"] = error
        self._processor.on_end(
            ReadableSpan(
                span.name,
                span.context,
                span.parent,
                self._provider.resource,
                self._limited(attributes),
                kind=span.kind,
                status=_FAILED if error else _UNSET,
                start_time=span.began_ns,
                end_time=time.time_ns(),
                instrumentation_scope=self._scope,
            )
        )

    def _limited(self, attributes: dict[str, AttributeValue]) -> Attributes:
        """Return the attributes, reduced to the limits that the operator has set for OpenTelemetry."""
        within = self._most is None or len(attributes) <= self._most
        if within and self._longest is None:
            return attributes
        return BoundedAttributes(self._most, attributes, max_value_len=self._longest)


_UNSET, _FAILED = Status(), Status(StatusCode.ERROR)


def trace_parent(span: OpenSpan) -> str:
    """Return the W3C header `traceparent` for work within this span; "" if the span belongs to no valid trace."""
    carrier: dict[str, str] = {}
    if span.context.is_valid:
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(span.context)))
    return carrier.get("traceparent", "")


def context_of(trace_parent: str) -> SpanContext | None:
    """Return the span context that a `traceparent` header describes; None if the header is not valid."""
    named = trace.get_current_span(_PROPAGATOR.extract({"traceparent": trace_parent})).get_span_context()
    return named if named.is_valid else None


class SpanSender(OTLPSpanExporter):
    """The SDK's exporter with a faster encoding.

    The class overrides a private method of the SDK. If a version of the SDK does not call this method, the SDK's own
    encoding is used.
    """

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return encoded(data)


def encoded(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Return the export request for at least one span.

    All spans must have the same resource and scope, and no events and no links.
    """
    request = encode_spans(spans[:1])
    sent = request.resource_spans[0].scope_spans[0]
    for span in spans[1:]:
        _add(sent, span)
    return request


def _add(sent: ScopeSpans, span: ReadableSpan) -> None:
    """Add a span to the request `sent`, building the span's protobuf message in place.

    A message that is built separately would be copied, which takes three times as long.
    """
    context, parent = span.context or trace.INVALID_SPAN_CONTEXT, span.parent
    one = sent.spans.add(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_time,
        end_time_unix_nano=span.end_time,
        dropped_attributes_count=span.dropped_attributes,
        status=_STATUSES[span.status.status_code],
        flags=_LOCAL if parent is None or not parent.is_remote else _REMOTE,
    )
    if context.trace_state:
        one.trace_state = ",".join(f"{key}={value}" for key, value in context.trace_state.items())
    if parent is not None:
        one.parent_span_id = parent.span_id.to_bytes(8, "big")
    for name, value in (span.attributes or {}).items():
        attribute = one.attributes.add()
        attribute.key = name
        _fill(attribute.value, value)


def _fill(sent: AnyValue, value: AttributeValue) -> None:
    if isinstance(value, str):
        sent.string_value = value
    elif isinstance(value, bool):
        sent.bool_value = value
    elif isinstance(value, int):
        sent.int_value = value
    elif isinstance(value, float):
        sent.double_value = value
    elif value is not None:
        for each in value:
            _fill(sent.array_value.values.add(), each)
