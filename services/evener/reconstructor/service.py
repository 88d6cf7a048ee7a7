"""The reconstructor: wiring and lifespan. It has no tokenizer, no renderer and no engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from evener.proto.topics import Topic
from evener.reconstructor.config import Config
from evener.reconstructor.http import ReconstructorEndpoints
from evener.reconstructor.partition import GROUP, Replayer
from evener.reconstructor.stored import Stored
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.service.partitions import own_partitions
from evener.service.telemetry import metrics

SERVICE: Final = "reconstructor"


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the reconstructor. The consumer group assigns its partitions, and each is replayed from its mark."""
    blobs, asked = context.waiting_blobs(), context.answering_blobs()
    measured = metrics(context.registry)
    replayer = Replayer(context.bus, blobs, EventLog(context.bus, blobs, measured), measured, config.strategy)
    replaying: set[int] = set()

    async def serve(partition: int) -> None:
        replaying.add(partition)
        try:
            await replayer.serve(partition)
        finally:
            replaying.discard(partition)

    async def run() -> None:
        await own_partitions(context.bus, GROUP, Topic.SESSIONS, serve, keep=False)

    async def drain() -> None:
        """Nothing to hand back: the next replayer reads again from the mark."""

    yield Service(
        name=SERVICE,
        routes=ReconstructorEndpoints(Stored(context.bus, asked, EventLog(context.bus, asked)), context.secrets).routes(),
        run=run,
        ready=lambda: {"partitions": bool(replaying)},
        heartbeat=lambda: context.heartbeat(SERVICE),
        drain=drain,
    )
