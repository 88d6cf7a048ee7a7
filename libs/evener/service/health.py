"""What platforms probe: /healthz (the loop lives), /readyz (every named condition holds), /metrics; /health is /healthz."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.blobs.port import Blobs
from evener.bus.port import Bus
from evener.proto.errors import EvenerError
from evener.service.http import json_response

CHECK_SECONDS: Final = 2.0

Conditions = Callable[[], dict[str, dict[str, bool]]]


def health_routes(bus: Bus, blobs: Blobs, registry: CollectorRegistry, conditions: Conditions) -> Sequence[BaseRoute]:
    """Return the routes; `conditions` gives service name to its named conditions."""

    async def alive(_: Request) -> Response:
        return json_response({"alive": True})

    async def ready(_: Request) -> Response:
        named = {"host": await _host(bus, blobs), **conditions()}
        good = all(all(of_service.values()) for of_service in named.values())
        return json_response({"ready": good, "services": named}, 200 if good else 503)

    async def series(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return (Route("/healthz", alive), Route("/health", alive), Route("/readyz", ready), Route("/metrics", series))


async def _host(bus: Bus, blobs: Blobs) -> dict[str, bool]:
    reached = await asyncio.gather(_reached(bus.check()), _reached(blobs.check()))
    return dict(zip(("bus", "blobs"), reached, strict=True))


async def _reached(check: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(check, CHECK_SECONDS)
    except (EvenerError, TimeoutError):
        return False
    return True
