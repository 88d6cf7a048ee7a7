"""The trainer-bridge: scored sessions to whole groups, weights to engines and policies to the log, both over HTTP too."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from evener.blobs.waited import Waited
from evener.bus.port import Record
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.service.events import EventLog
from evener.service.partitions import own_partitions
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics
from evener.trainer_bridge.candidates import Candidates
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.fleet import Engines
from evener.trainer_bridge.following import following_routes
from evener.trainer_bridge.http import routes
from evener.trainer_bridge.keeping import Keeper
from evener.trainer_bridge.merging import GROUP, Merging
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.policies_http import policy_routes
from evener.trainer_bridge.publishing import Publisher
from evener.trainer_bridge.scores_http import scores_route
from evener.trainer_bridge.under_way import UnderWay


class Bridge:
    """Owns the partitions that the group assigns to this instance, until it is fenced."""

    def __init__(self, config: Config, parts: Parts) -> None:
        events = EventLog(parts.bus, Waited(parts.blobs))
        self._config = config
        self._parts = parts
        self.policies = Policies(parts.bus, events)
        self.engines = Engines(parts.bus, events, load_seconds=config.load_seconds)
        self.under_way = UnderWay(self.policies, self.drives, config.load_seconds)
        candidates = Candidates(self.policies, self.engines)
        self.publisher = Publisher(self.policies, self.engines, candidates, self.under_way, metrics(parts.registry))
        self.keeper = Keeper(self.policies, self.engines, candidates, self.publisher, self.under_way)
        self._serving: set[int] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.policies.refresh()
        await self.engines.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.policies.follow())
                tasks.create_task(self.engines.follow())
                tasks.create_task(self.keeper.run())
                tasks.create_task(own_partitions(self._parts.bus, GROUP, Topic.SCORED, self.serve, keep=True))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def drives(self, policy: str) -> bool:
        """Return whether this instance drives a policy's engines: whoever owns the partition of its name does."""
        return self._parts.bus.partition_of(Topic.SCORED, policy) in self._serving and not self._stopping.is_set()

    async def serve(self, partition: int) -> None:
        """Take a partition over and merge its groups for ever. Raises Fenced once another instance has taken it."""
        parts = self._parts
        producer = await parts.bus.producer(f"bridge-{partition}")
        events = EventLog(parts.bus, Waited(parts.blobs))
        merging = Merging(
            partition=partition,
            producer=producer,
            config=self._config,
            bus=parts.bus,
            events=events,
            policies=self.policies,
            settled=self.under_way.settled,
            metrics=metrics(parts.registry),
        )
        try:
            start = await merging.restore()
            self._serving.add(partition)
            async for batch in parts.bus.follow(Topic.SCORED, partition, start):
                for first in range(0, len(batch), self._config.batch):
                    await self._merge(merging, batch[first : first + self._config.batch])
        finally:
            self._serving.discard(partition)
            await producer.aclose()

    async def drain(self) -> None:
        """Begin no new transaction and wait for those that are open."""
        self._stopping.set()
        await self._idle.wait()
        await self.under_way.all_settled()

    def heartbeat(self) -> Heartbeat:
        parts = self._parts
        return Heartbeat(
            instance_id=f"{parts.instance_id}-trainer_bridge",
            service="trainer_bridge",
            address=parts.address,
            boot_id=parts.boot_id,
            stopping=self._stopping.is_set(),
            at=time.time(),
        )

    def ready(self) -> dict[str, bool]:
        return {"taking": not self._stopping.is_set()}

    async def _merge(self, merging: Merging, records: Sequence[Record]) -> None:
        if self._stopping.is_set():
            await asyncio.Event().wait()
        self._busy += 1
        self._idle.clear()
        try:
            await merging.merge(records)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Yield the bridge."""
    bridge = Bridge(config, parts)
    try:
        yield Service(
            name="trainer_bridge",
            routes=(
                *following_routes(parts),
                *routes(parts),
                scores_route(parts),
                *policy_routes(parts.secrets, bridge.policies, bridge.engines, bridge.publisher),
            ),
            run=bridge.run,
            ready=bridge.ready,
            heartbeat=bridge.heartbeat,
            drain=bridge.drain,
        )
    finally:
        await bridge.engines.aclose()
