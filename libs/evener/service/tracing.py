"""Traces by OpenTelemetry: one for each task, from its submission to the delivery of its group.

Every service starts its spans with the API of OpenTelemetry, `trace.get_tracer("evener.<service>")`. The parent of a span is the context
in the headers of the record or request that caused the work; the context of the span goes into the headers of what the work writes.
Spans are exported to what the standard OTEL_* variables name. Without them nothing is recorded, and a context that came is passed on.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import entry_points
from typing import Final

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from evener.bus.port import Header, Record

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Names of OTLP exporters, as they register themselves, by the protocol that they speak."""

log = structlog.get_logger()


def set_up_traces(service: str, instance_id: str) -> None:
    """Export the spans of this process to what the OTEL_* variables name; they also override the service's name."""
    exporters = [exporter for name in wanted_exporters(os.environ) if (exporter := _exporter(name)) is not None]
    if not exporters:
        return
    own = Resource.create({"service.namespace": "evener", "service.name": f"evener-{service}", "service.instance.id": instance_id})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def wanted_exporters(environment: Mapping[str, str]) -> list[str]:
    """Return the exporters that the standard variables ask for: OTLP if they only name an endpoint."""
    endpoint = any(environment.get(name) for name in ENDPOINTS)
    names = environment.get("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "http/protobuf")
    wanted = [name.strip() for name in names.split(",")]
    return [OTLP.get(protocol, protocol) if name == "otlp" else name for name in wanted if name not in {"", "none"}]


def carrier(context: Context | None = None) -> dict[str, str]:
    """Return the HTTP headers that carry a context: `traceparent`, and `tracestate` if there is one. None: the current context."""
    headers: dict[str, str] = {}
    if trace.get_current_span(context).get_span_context().is_valid:  # most records are written outside any trace
        propagate.inject(headers, context)
    return headers


def step(tracer: Tracer, name: str, kind: SpanKind = SpanKind.INTERNAL) -> AbstractContextManager[object]:
    """Return a span below the current one. Where that one is not recorded there is none, and a step costs next to nothing."""
    recorded = trace.get_current_span().is_recording()
    return tracer.start_as_current_span(name, kind=kind) if recorded else nullcontext()


@contextmanager
def ending(spans: Sequence[Span]) -> Iterator[None]:
    """End spans with the block. If it raises, they have failed with that."""
    try:
        yield
    except Exception as failed:
        for span in spans:
            span.record_exception(failed)
            span.set_status(StatusCode.ERROR, str(failed))
        raise
    finally:
        for span in spans:
            span.end()


def trace_headers(context: Context | None = None) -> tuple[Header, ...]:
    """Return the same as record headers."""
    return tuple(Header(name, value.encode()) for name, value in carrier(context).items())


def context_of(record: Record) -> Context:
    """Return the context in a record, for a span that starts as its child. It is empty if the record carries none."""
    return propagate.extract({header.name: header.value.decode(errors="replace") for header in record.headers}, Context())


def nanoseconds(seconds: float) -> int:
    """Return a Unix time in nanoseconds, as OpenTelemetry expects it."""
    return int(seconds * 1e9)


def _exporter(name: str) -> SpanExporter | None:
    """Return an installed exporter; traces that cannot be exported must stop no service."""
    for entry in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: SpanExporter = entry.load()()
        return exporter
    log.warning(
        "traces_not_exported", exporter=name, reason="it is not installed; OTLP over HTTP is in the extra: pip install evener[otlp]"
    )
    return None
