"""Wiring of the reconstructor: the only place that knows its concrete adapters. No tokenizer, no renderer, no engine."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from evener.blobs.waited import ANSWER_SECONDS, Waited
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.reconstructor.config import Config
from evener.reconstructor.http import Endpoints
from evener.reconstructor.partition import GROUP, Replayer
from evener.reconstructor.stored import Stored
from evener.service.events import EventLog
from evener.service.partitions import own_partitions
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics

SERVICE: Final = "reconstructor"


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Open the reconstructor: partitions come with the group, each replayed from its mark."""
    blobs, asked = Waited(parts.blobs), Waited(parts.blobs, ANSWER_SECONDS)
    instance_id = f"{parts.instance_id}-{SERVICE}"
    replayer = Replayer(parts.bus, blobs, EventLog(parts.bus, blobs), metrics(parts.registry), config.strategy)
    replaying: set[int] = set()

    async def serve(partition: int) -> None:
        replaying.add(partition)
        try:
            await replayer.serve(partition)
        finally:
            replaying.discard(partition)

    async def run() -> None:
        await own_partitions(parts.bus, GROUP, Topic.SESSIONS, serve, keep=False)

    async def drain() -> None:
        """Nothing to hand back: what is half read is read again from the mark."""

    def heartbeat() -> Heartbeat:
        return Heartbeat(instance_id=instance_id, service=SERVICE, address=parts.address, boot_id=parts.boot_id, at=time.time())

    yield Service(
        name=SERVICE,
        routes=Endpoints(Stored(parts.bus, asked, EventLog(parts.bus, asked)), parts.secrets).routes(),
        run=run,
        ready=lambda: {"partitions": bool(replaying)},
        heartbeat=heartbeat,
        drain=drain,
    )
