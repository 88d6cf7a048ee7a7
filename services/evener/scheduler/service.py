"""The scheduler: wiring and lifespan."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evener.scheduler.config import Config
from evener.scheduler.http import SchedulerEndpoints
from evener.scheduler.writer import TaskWriter
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog

NAME = "scheduler"


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the scheduler on the resources that its process shares."""
    writer = TaskWriter(config, context)
    asked = context.answering_blobs()
    endpoints = SchedulerEndpoints(writer, asked, EventLog(context.bus, asked))
    stopping = False

    async def drain() -> None:
        nonlocal stopping
        stopping = True
        writer.stop()

    yield Service(
        name=NAME,
        routes=endpoints.routes(context.secrets),
        run=writer.run,
        ready=lambda: {"took_over": writer.serving},
        heartbeat=lambda: context.heartbeat(NAME, stopping=stopping),
        drain=drain,
    )
    writer.stop()
