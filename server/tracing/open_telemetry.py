"""`make_tracer`: a Tracer by OpenTelemetry's SDK, which exports by OTLP over HTTP on a thread of its own.

The SDK reads its own variables (OTEL_EXPORTER_OTLP_…, OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_SERVICE_NAME).
Its queue is bounded: while no collector answers, spans are dropped.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server.tracing.spans import Kind, Span, Tracer, Value

_CLOSE_SECONDS = 2.0
_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


def make_tracer(instance: str, version: str) -> Tracer:
    """A tracer of this process; `instance` is its replica's id."""
    own = {"service.instance.id": instance, "service.version": version}
    resource = Resource.create(own)
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "holdfast"}))
    ids = _SpanIds()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _OtelTracer(provider, ids)


class _SpanIds(RandomIdGenerator):
    """Random ids, and in the block of `chosen` that one, for spans that this thread begins."""

    def __init__(self) -> None:
        self._local = threading.local()

    @contextmanager
    def chosen(self, span_id: int | None) -> Iterator[None]:
        self._local.span_id = span_id
        try:
            yield
        finally:
            self._local.span_id = None

    def generate_span_id(self) -> int:
        return getattr(self._local, "span_id", None) or super().generate_span_id()


class _OtelTracer:
    def __init__(self, provider: TracerProvider, ids: _SpanIds) -> None:
        self._provider = provider
        self._ids = ids
        self._tracer = provider.get_tracer("holdfast")
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        attributes: Mapping[str, Value | None] | None = None,
        start_ns: int | None = None,
        span_id: int | None = None,
    ) -> Span | None:
        context = Context()
        if parent is not None:
            context = self._propagator.extract({"traceparent": parent}, context)
        with self._ids.chosen(span_id):
            span = self._tracer.start_span(
                name, context, _KINDS[kind], _present(attributes or {}), start_time=start_ns
            )
        return _RecordedSpan(span) if span.is_recording() else None

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _RecordedSpan:
    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def trace_parent(self) -> str:
        context = self._span.get_span_context()
        trace, span = format_trace_id(context.trace_id), format_span_id(context.span_id)
        return f"00-{trace}-{span}-{int(context.trace_flags):02x}"

    def end(
        self,
        attributes: Mapping[str, Value | None] | None = None,
        *,
        error: str | None = None,
        name: str | None = None,
        end_ns: int | None = None,
    ) -> None:
        self._span.set_attributes(_present(attributes or {}))
        if name is not None:
            self._span.update_name(name)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(end_ns)


def _present(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}
