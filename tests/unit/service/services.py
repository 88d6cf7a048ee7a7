"""Small services that misbehave as they are told, on a real bus."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.proto.fleet import Heartbeat, RunnerLeases
from evener.service.auth import control_route, load_secrets
from evener.service.config import ServiceConfig
from evener.service.context import Service, ServiceContext
from evener.service.fleet_feed import FleetFeed
from evener.service.http import json_response

Run = Callable[[int], Awaitable[None]]
"""Called with the number of the opening, from 1."""
Leases = Callable[[], RunnerLeases]


@asynccontextmanager
async def open_parts(folder: Path) -> AsyncIterator[ServiceContext]:
    """Open what services share, in a folder."""
    async with open_bus(f"embedded:{folder / 'bus'}") as bus:
        yield ServiceContext(
            bus=bus,
            fleet=FleetFeed(bus),
            blobs=open_blobs("memory://"),
            secrets=load_secrets(folder, operator_token="operator"),
            registry=CollectorRegistry(),
            instance_id="test",
            boot_id="b1",
            address="http://127.0.0.1:1",
        )


class Toy:
    """A service whose `run` and opening are given; it notes what the host does with it."""

    def __init__(self, run: Run, *, opening: Run | None = None, instance_id: str = "test-toy", leases: Leases | None = None) -> None:
        self.openings = 0
        self.drained = 0
        self.handed_back = asyncio.Event()
        """A drain waits for it."""
        self.handed_back.set()
        self.closed = 0
        self._run = run
        self._opening = opening
        self._instance_id = instance_id
        self._leases = leases

    @asynccontextmanager
    async def open(self, config: ServiceConfig, context: ServiceContext) -> AsyncIterator[Service]:
        """Open it; `config` is not looked at."""
        self.openings += 1
        if self._opening is not None:
            await self._opening(self.openings)
        number = self.openings

        async def hello(request: Request) -> Response:
            return json_response({"hello": number, "query": str(request.query_params)})

        async def drain() -> None:
            self.drained += 1
            await self.handed_back.wait()

        try:
            yield Service(
                name="toy",
                routes=[Route("/hello", control_route(context.secrets, hello))],
                run=lambda: self._run(number),
                ready=lambda: {"warm": True},
                heartbeat=lambda: Heartbeat(
                    instance_id=self._instance_id,
                    service="toy",
                    address=context.address,
                    boot_id=config.instance,
                    stopping=self.drained > 0,
                    at=time.time(),
                ),
                leases=self._leases,
                drain=drain,
            )
        finally:
            self.closed += 1


async def for_ever(_: int) -> None:
    """A run without an end."""
    await asyncio.Event().wait()
