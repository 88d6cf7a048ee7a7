"""The scheduler: wiring and lifespan."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evener.blobs.waited import ANSWER_SECONDS, Waited
from evener.proto.fleet import Heartbeat
from evener.scheduler.config import Config
from evener.scheduler.http import Endpoints
from evener.scheduler.writer import Writer
from evener.service.events import EventLog
from evener.service.parts import Parts, Service

NAME = "scheduler"


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Open the scheduler on what its process shares."""
    writer = Writer(config, parts)
    asked = Waited(parts.blobs, ANSWER_SECONDS)
    endpoints = Endpoints(writer, asked, EventLog(parts.bus, asked), lease_seconds=config.lease_seconds)
    stopping = False

    def heartbeat() -> Heartbeat:
        return Heartbeat(
            instance_id=f"{parts.instance_id}-{NAME}",
            service=NAME,
            address=parts.address,
            boot_id=parts.boot_id,
            stopping=stopping,
            at=time.time(),
        )

    async def drain() -> None:
        nonlocal stopping
        stopping = True
        writer.stop()

    yield Service(
        name=NAME,
        routes=endpoints.routes(parts.secrets),
        run=writer.run,
        ready=lambda: {"took_over": writer.serving},
        heartbeat=heartbeat,
        drain=drain,
    )
    writer.stop()
