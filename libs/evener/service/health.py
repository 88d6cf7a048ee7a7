"""The endpoints that platforms probe: /healthz (the loop runs), /readyz (named conditions, and warnings), /metrics; /health is /healthz."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.bus.port import Bus
from evener.proto.errors import EvenerError
from evener.service.http import json_response

BUS_CHECK_SECONDS: Final = 2.0

Conditions = Callable[[], dict[str, dict[str, bool]]]


def health_routes(
    bus: Bus,
    registry: CollectorRegistry,
    conditions: Conditions,
    store_usable: Callable[[], bool],
    warnings: Callable[[], Sequence[str]],
) -> Sequence[BaseRoute]:
    """Return the routes. `conditions` returns the named conditions of each service; `warnings` what an operator should know meanwhile."""

    async def alive(_: Request) -> Response:
        return json_response({"alive": True})

    async def ready(_: Request) -> Response:
        named = {"host": {"bus": await _reachable(bus), "blobs": store_usable()}, **conditions()}
        good = all(all(of_service.values()) for of_service in named.values())
        return json_response({"ready": good, "services": named, "warnings": warnings()}, 200 if good else 503)

    async def series(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return (Route("/healthz", alive), Route("/health", alive), Route("/readyz", ready), Route("/metrics", series))


async def _reachable(bus: Bus) -> bool:
    try:
        await asyncio.wait_for(bus.check(), BUS_CHECK_SECONDS)
    except (EvenerError, TimeoutError):
        return False
    return True
