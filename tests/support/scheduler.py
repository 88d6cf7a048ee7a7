"""A scheduler over real HTTP, on the bus of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from tests.support.service_context import context_on, running_service
from tests.support.waiting import eventually

from evener.bus.port import Bus
from evener.client.client import REOPENING, Client
from evener.runtime.backoff import Backoff
from evener.scheduler.config import Config
from evener.scheduler.service import open_service
from evener.service.listener import Mounts, address_of, bind, listen


@asynccontextmanager
async def scheduler(
    bus: Bus, folder: Path, *, registry: CollectorRegistry | None = None, reopening: Backoff = REOPENING, **given: Any
) -> AsyncIterator[Client]:
    """Run a scheduler that ends as abruptly as a task can; yield a client of it."""
    config = Config(state=str(folder), bus="unused", tick_seconds=0.05, **given)
    context = context_on(bus, folder, registry=registry or CollectorRegistry(), principals_file=config.principals_file)
    listening = bind(config)
    mounts = Mounts()
    async with open_service(config, context) as service, listen(mounts, listening):
        mounts.replace(service.routes)
        async with (
            running_service(service) as task,
            Client(address_of(config, listening), context.secrets.operator_token, reopening=reopening) as client,
        ):
            await eventually(lambda: all(service.ready().values()) or task.done())
            yield client
