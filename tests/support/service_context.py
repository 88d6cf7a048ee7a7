"""The context of a service on an embedded bus, as the host would hand them over, and a server for its routes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from evener.blobs.open import open_blobs
from evener.blobs.waited import BlobTimings
from evener.bus.open import open_bus
from evener.bus.port import Bus, Header
from evener.proto.blobs import BlobRef
from evener.proto.topics import HEADER_CLAIM
from evener.runtime.backoff import Backoff
from evener.service.auth import load_secrets
from evener.service.context import Service, ServiceContext
from evener.service.fleet_feed import FleetFeed
from evener.service.listener import Mounts, listen

OPERATOR = "operator"
"""The operator's token."""
QUICK = BlobTimings(away=Backoff(0.02, 0.1), missing=Backoff(0.0, 0.0), missing_tries=2)
"""A blob store that is away is asked again soon; a missing object is looked for twice."""

RUBBISH: tuple[bytes, tuple[Header, ...]] = b"rubbish", ()
"""Value and headers of a record that is no event."""
MISSING = msgspec.msgpack.encode(BlobRef(digest="0" * 64, size=1)), (Header(HEADER_CLAIM, b"1"),)
"""Those of an event that is not in the blob store."""


def context_on(
    bus: Bus, folder: Path, *, operator_token: str | None = None, principals_file: str | None = None, **given: Any
) -> ServiceContext:
    """Return the context of a service on a bus, whose blobs and secrets live in a folder."""
    fields: dict[str, Any] = {
        "blobs": open_blobs(str(folder / "blobs")),
        "secrets": load_secrets(folder, operator_token=operator_token, principals_file=principals_file),
        "registry": CollectorRegistry(),
        "instance_id": "test",
        "boot_id": "boot",
        "address": "http://127.0.0.1:1",
        "blob_timings": QUICK,
    }
    return ServiceContext(bus=bus, fleet=FleetFeed(bus), **fields | given)


@asynccontextmanager
async def open_parts(folder: Path, *, partitions: int = 2, instance: str = "test") -> AsyncIterator[ServiceContext]:
    """Yield context whose bus, blobs and secrets live in a folder."""
    async with open_bus(f"embedded:{folder / 'bus'}", partitions=partitions) as bus:
        yield context_on(bus, folder, operator_token=OPERATOR, instance_id=instance)


@asynccontextmanager
async def running_service(service: Service) -> AsyncIterator["asyncio.Future[None]"]:
    """Run a service; it ends as abruptly as a task can."""
    task: asyncio.Future[None] = asyncio.ensure_future(service.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(routes: Sequence[BaseRoute]) -> AsyncIterator[str]:
    """Serve routes on loopback as a host does, and yield their base URL."""
    mounts = Mounts()
    mounts.replace(routes)
    mounts.missing = ()
    listening = socket.create_server(("127.0.0.1", 0))
    async with listen(mounts, listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@asynccontextmanager
async def operator(routes: Sequence[BaseRoute], token: str = OPERATOR) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve routes on loopback and yield an operator's client for them."""
    headers = {"authorization": f"Bearer {token}"}
    async with serving(routes) as base, aiohttp.ClientSession(base, headers=headers) as client:
        yield client
