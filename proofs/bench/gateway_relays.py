"""A process of relays, one for each session, as a sandbox-runner holds them: `python -m proofs.bench.gateway_relays URL`.

The URL is that of a gateway, or of a bus on which gateways list what they own.

Its own HTTP endpoint, whose URL it prints, opens relays and says what the process has cost.
"""

import asyncio
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec
import uvloop
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry
from proofs.bench.gateway_served import Started
from tests.support.builders import listing
from tests.support.tasks import tasks_of

from evener.bus.open import open_bus
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.gateway_client import GatewayClient
from evener.sandbox_runner.relay import Opening, Report, open_relay
from evener.sandboxes.port import LOOPBACK
from evener.service.fleet_feed import FleetFeed
from evener.service.owners import Owners
from evener.service.telemetry import metrics

LIMITS = Limits(admission_seconds=30.0, call_seconds=3600.0, keep_alive_seconds=15.0, body_bytes=32 << 20)
PARTITIONS = 64
KEY = "nonce"
KAFKA = "kafka://"


class Door(Struct, frozen=True, kw_only=True):
    """Where a harness asks, and with which key."""

    url: str
    key: str


class Relays:
    """Relays that are open until the process ends."""

    def __init__(self, client: GatewayClient, stack: AsyncExitStack) -> None:
        self._client = client
        self._stack = stack
        self._registry = CollectorRegistry()
        self._metrics = metrics(self._registry)

    async def open(self, request: web.Request) -> web.Response:
        """Open a relay for each session that was started."""
        sessions = msgspec.json.decode(await request.read(), type=dict[str, Started])
        doors = {name: Door(url=await self._open(name, started), key=KEY) for name, started in sessions.items()}
        return web.Response(body=msgspec.json.encode(doors))

    async def cost(self, _: web.Request) -> web.Response:
        """Return the CPU seconds and the requests that were sent again so far, and the tasks of our own making now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        sent_again = self._registry.get_sample_value("evener_relay_sent_again_total")
        cost = {"cpu_seconds": used.ru_utime + used.ru_stime, "sent_again": sent_again, "tasks": tasks_of("sandbox_runner")}
        return web.json_response(cost)

    async def _open(self, name: str, started: Started) -> str:
        opening = Opening(
            session_id=name,
            nonce=KEY,
            capability=started.capability,
            partition=started.partition,
            models=["policy"],
            listening=socket.create_server((LOOPBACK, 0)),
        )
        clock, report = AgentClock(time.monotonic), Report()
        return await self._stack.enter_async_context(open_relay(opening, self._client, clock, LIMITS, metrics=self._metrics, report=report))


@asynccontextmanager
async def known_owners(before: str) -> AsyncIterator[Owners]:
    """Yield the owners of partitions: those in the fleet of a bus, or one gateway for all."""
    known = Owners()
    if not before.startswith(KAFKA):
        known.read([listing("g", before, *range(PARTITIONS))])
        yield known
        return
    async with open_bus(before) as bus:
        following = asyncio.create_task(known.follow(FleetFeed(bus)))
        try:
            yield known
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def main(before: str) -> None:
    """Serve until the process that started this one closes its end of stdin."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        relays = Relays(GatewayClient(http, await stack.enter_async_context(known_owners(before))), stack)
        application = web.Application(client_max_size=LIMITS.body_bytes)
        application.router.add_post("/open", relays.open)
        application.router.add_get("/cost", relays.cost)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)  # noqa: T201 - what its parent waits for
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
