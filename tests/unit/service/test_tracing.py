"""Trace contexts in records, and where spans go."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from opentelemetry import propagate, trace
from opentelemetry.trace import StatusCode
from tests.support.collector import open_collector
from tests.support.spans import Spans

from evener.bus.port import Header, NotCommitted, Record
from evener.service.tracing import context_of, ending, trace_headers, wanted_exporters

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROGRAM = """
from opentelemetry import trace
from evener.service.tracing import set_up_traces
set_up_traces("scheduler", "here")
with trace.get_tracer("evener.scheduler").start_as_current_span("submit"):
    pass
"""


def record(*headers: Header) -> Record:
    return Record(topic="fleet", partition=0, offset=0, key="k", value=b"", headers=headers, timestamp_ms=0)


def test_context_of_a_record_is_the_parent_of_what_follows(spans: Spans) -> None:
    """One trace from the task to the merged group."""
    came = record(*trace_headers(propagate.extract({"traceparent": PARENT, "tracestate": "vendor=1"})))
    with trace.get_tracer("test").start_as_current_span("next", context=context_of(came)) as span:
        goes = record(*trace_headers())
    found = spans.one("next")

    assert found.parent is not None
    assert f"{found.parent.trace_id:032x}-{found.parent.span_id:016x}" in PARENT
    assert trace.get_current_span(context_of(goes)).get_span_context().span_id == span.get_span_context().span_id
    assert trace.get_current_span(context_of(goes)).get_span_context().trace_state.get("vendor") == "1"


@pytest.mark.parametrize("header", [b"", b"00-xyz", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff" * 55])
def test_record_with_a_damaged_context_starts_a_trace_of_its_own(header: bytes) -> None:
    """Nor does it take the context of what runs just then."""
    with trace.use_span(trace.NonRecordingSpan(trace.get_current_span(propagate.extract({"traceparent": PARENT})).get_span_context())):
        span = trace.get_current_span(context_of(record(Header("traceparent", header))))

    assert not span.get_span_context().is_valid


def test_outside_of_spans_records_carry_nothing() -> None:
    """Heartbeats belong to no trace."""
    assert trace_headers() == ()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
    ],
)
def test_standard_variables_choose_the_exporters(environment: dict[str, str], wanted: list[str]) -> None:
    """As everywhere where OpenTelemetry is used."""
    assert wanted_exporters(environment) == wanted


async def program(**environment: str) -> tuple[int, bytes, bytes]:
    """Run a process that finishes one span; return its exit code, and what it wrote."""
    command = (sys.executable, "-W", "error", "-c", PROGRAM)
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1, env={**os.environ, **environment})
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, err


async def test_spans_arrive_at_a_collector_that_speaks_otlp_over_http() -> None:
    """The real exporter; a process that ends sends what it has."""
    async with open_collector() as collector:
        code, _, err = await program(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
    (span,) = collector.spans

    assert (code, err) == (0, b"")
    assert (span.service, span.scope, span.name) == ("evener-scheduler", "evener.scheduler", "submit")
    assert span.resource.items() >= {("service.instance.id", "here"), ("deployment.environment", "test")}


async def test_service_may_be_named_by_the_environment() -> None:
    """The console's exporter is always there."""
    code, out, err = await program(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="ours")

    assert (code, err) == (0, b"")
    assert b'"service.name": "ours"' in out


async def test_exporter_that_is_not_installed_is_named_and_stops_nobody(tmp_path: Path) -> None:
    """The work matters more than its traces."""
    code, out, err = await program(OTEL_TRACES_EXPORTER="nosuch", HOME=str(tmp_path))

    assert (code, err) == (0, b"")
    assert b"traces_not_exported" in out
    assert b"nosuch" in out


def test_spans_end_with_their_block_and_say_what_failed_it(spans: Spans) -> None:
    """A commit that fails ends no process, and its spans would be missed."""
    tracer = trace.get_tracer("test")
    with ending([tracer.start_span("done")]):
        pass
    with suppress(NotCommitted), ending([tracer.start_span("one"), tracer.start_span("two")]):
        msg = "the broker is gone"
        raise NotCommitted(msg)

    assert [(span.name, span.status.status_code) for span in spans.all()] == [
        ("done", StatusCode.UNSET),
        ("one", StatusCode.ERROR),
        ("two", StatusCode.ERROR),
    ]
    assert [event.name for event in spans.one("one").events] == ["exception"]
