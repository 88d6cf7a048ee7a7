"""The reconstructor: wiring and lifespan. It has no tokenizer, no renderer and no engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from evener.proto.topics import Topic
from evener.reconstructor.config import Config
from evener.reconstructor.http import session_routes
from evener.reconstructor.partition import GROUP, Replayer
from evener.reconstructor.stored import Stored
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.service.partitions import own_partitions

SERVICE: Final = "reconstructor"


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the reconstructor. The consumer group assigns its partitions, and each is replayed from its mark."""
    asked = context.answering_blobs()
    replayer = Replayer(context, config.strategy)
    replaying: set[int] = set()

    async def serve(partition: int) -> None:
        replaying.add(partition)
        try:
            await replayer.serve(partition)
        finally:
            replaying.discard(partition)

    async def drain() -> None:
        """Nothing to hand back: the next replayer reads again from the mark."""

    yield Service(
        name=SERVICE,
        routes=session_routes(Stored(context.bus, asked, EventLog(context.bus, asked)), context.secrets),
        run=lambda: own_partitions(context.bus, GROUP, Topic.SESSIONS, context.instance_id, serve),
        ready=lambda: {"partitions": bool(replaying)},
        heartbeat=lambda: context.heartbeat(SERVICE),
        drain=drain,
    )
