"""The scheduler: wiring and lifespan."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evener.scheduler.config import Config
from evener.scheduler.http import SchedulerEndpoints
from evener.scheduler.membership import SERVICE, Scheduler
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the scheduler on the resources that its process shares."""
    scheduler = Scheduler(config, context)
    blobs = context.answering_blobs()
    endpoints = SchedulerEndpoints(scheduler, blobs, EventLog(context.bus, blobs))
    yield Service(
        name=SERVICE,
        routes=endpoints.routes(context.secrets),
        run=scheduler.run,
        ready=scheduler.ready,
        warnings=scheduler.warnings,
        heartbeat=scheduler.heartbeat,
        heartbeat_due=scheduler.heartbeat_due,
        drain=scheduler.drain,
    )
