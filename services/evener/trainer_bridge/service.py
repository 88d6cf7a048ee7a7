"""The trainer-bridge service: merges scored sessions into groups, updates the engines' weights, and serves both over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from evener.bus.port import Reader
from evener.engines.registry import EngineAccess
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.runtime.tasks import Tasks
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.service.partitions import own_partitions
from evener.service.telemetry import metrics
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.engines import PolicyEngines
from evener.trainer_bridge.following import following_routes
from evener.trainer_bridge.groups import GroupReader
from evener.trainer_bridge.http import group_routes
from evener.trainer_bridge.merging import GROUP, Merging
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.policies_http import policy_routes
from evener.trainer_bridge.publisher import Publisher
from evener.trainer_bridge.reconcile import Reconciler
from evener.trainer_bridge.rollout_gate import RolloutGate

READER: Final = Reader("trainer_bridge", groups=(GROUP,))


class TrainerBridge:
    """Owns the partitions that the group assigns to this instance."""

    def __init__(self, config: Config, context: ServiceContext) -> None:
        events = EventLog(context.bus, context.waiting_blobs())
        self._config = config
        self._context = context
        self.groups = GroupReader(context.bus, EventLog(context.bus, context.answering_blobs()))
        self.policies = Policies(context.bus, events)
        told = metrics(context.registry)
        access = EngineAccess(ca_file=config.engine_ca_file, api_keys=config.engine_api_keys)
        self.engines = PolicyEngines(context.bus, context.fleet, events, told, load_seconds=config.load_seconds, access=access)
        self.gate = RolloutGate(self.policies, self.owns, config.load_seconds)
        self.publisher = Publisher(self.policies, self.engines, self.gate, told)
        self.reconciler = Reconciler(self.policies, self.engines, self.publisher, self.gate)
        self._serving: dict[int, asyncio.Lock] = {}
        """Partition to the lock that is held during a transaction."""
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.policies.refresh()
        await self.engines.start()
        async with Tasks() as tasks:
            tasks.create_task(self.groups.follow())
            tasks.create_task(self.policies.follow())
            tasks.create_task(self.engines.follow())
            tasks.create_task(self.reconciler.run())
            tasks.create_task(own_partitions(self._context.bus, GROUP, Topic.SCORED, self._context.instance_id, self.serve))

    def owns(self, policy: str) -> bool:
        """Return whether this instance owns a policy: it owns the partition of the policy's name."""
        return self._context.bus.partition_of(Topic.SCORED, policy) in self._serving and not self._stopping.is_set()

    async def serve(self, partition: int) -> None:
        """Take a partition over and merge its groups until cancelled. Raises Fenced once another instance has taken it."""
        context = self._context
        producer = await context.bus.producer(f"bridge-{partition}")
        merging = Merging(partition, producer, self._config, context, policies=self.policies, settled=self.gate.settled)
        try:
            start = await merging.restore()
            transaction = self._serving[partition] = asyncio.Lock()
            async for batch in context.bus.follow(Topic.SCORED, partition, start, READER):
                for first in range(0, len(batch), self._config.batch):
                    if self._stopping.is_set():
                        await asyncio.Event().wait()
                    async with transaction:
                        await merging.merge(batch[first : first + self._config.batch])
        finally:
            self._serving.pop(partition, None)
            await producer.aclose()

    async def drain(self) -> None:
        """Begin no new transaction, and wait for the open ones."""
        self._stopping.set()
        for transaction in [*self._serving.values()]:
            await transaction.acquire()
        await self.gate.all_settled()

    def heartbeat(self) -> Heartbeat:
        return self._context.heartbeat("trainer_bridge", stopping=self._stopping.is_set())

    def ready(self) -> dict[str, bool]:
        return {"taking": not self._stopping.is_set()}


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the bridge."""
    bridge = TrainerBridge(config, context)
    try:
        yield Service(
            name="trainer_bridge",
            routes=(
                *following_routes(context, config.followers),
                *group_routes(context.secrets, bridge.groups),
                *policy_routes(context.secrets, bridge.policies, bridge.engines, bridge.publisher),
            ),
            run=bridge.run,
            ready=bridge.ready,
            heartbeat=bridge.heartbeat,
            drain=bridge.drain,
        )
    finally:
        await bridge.engines.aclose()
