"""A collector of traces, as OTLP over HTTP has it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.support.service_context import serving


class Collected(Struct, frozen=True):
    """A span that arrived."""

    service: str
    """The name of its process."""
    scope: str
    name: str
    trace_id: str
    resource: dict[str, str]


class Collector(Struct, frozen=True):
    """What arrived at a collector."""

    url: str
    spans: list[Collected]


@asynccontextmanager
async def open_collector() -> AsyncIterator[Collector]:
    """Collect spans on loopback."""
    spans: list[Collected] = []

    async def collect(request: Request) -> Response:
        told: Any = ExportTraceServiceRequest.FromString(await request.body())
        for process in told.resource_spans:
            resource = {pair.key: pair.value.string_value for pair in process.resource.attributes}
            for part in process.scope_spans:
                spans.extend(
                    Collected(resource["service.name"], part.scope.name, span.name, span.trace_id.hex(), resource) for span in part.spans
                )
        return Response(media_type="application/x-protobuf")

    async with serving([Route("/v1/traces", collect, methods=["POST"])]) as url:
        yield Collector(url, spans)
