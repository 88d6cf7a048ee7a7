"""The context of a service on an embedded bus, as the host would hand them over, and a server for its routes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.blobs.waited import BlobTimings
from evener.bus.open import open_bus
from evener.bus.port import Bus, Header
from evener.proto.blobs import BlobRef
from evener.proto.topics import HEADER_CLAIM
from evener.runtime.retry import Backoff
from evener.service.auth import load_secrets
from evener.service.context import Service, ServiceContext

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
    return ServiceContext(bus=bus, **fields | given)


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


class Server(uvicorn.Server):
    """Uvicorn without signal handlers."""

    def install_signal_handlers(self) -> None:
        """The test's process keeps its own."""


@asynccontextmanager
async def serving(routes: Sequence[BaseRoute]) -> AsyncIterator[str]:
    """Serve routes on loopback and yield their base URL."""
    config = uvicorn.Config(Starlette(routes=list(routes)), port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = Server(config)
    task = asyncio.create_task(server._serve())
    await eventually(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def operator(routes: Sequence[BaseRoute], token: str = OPERATOR) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve routes on loopback and yield an operator's client for them."""
    headers = {"authorization": f"Bearer {token}"}
    async with serving(routes) as base, aiohttp.ClientSession(base, headers=headers) as client:
        yield client
