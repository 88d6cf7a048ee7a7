"""Reads `fleet` and `leases`: which instances are alive, and which attempts their runners have not named for a whole lease."""

import time
from collections.abc import Callable, Collection
from contextlib import aclosing

import structlog

from evener.bus.port import Outgoing, Record
from evener.proto.fleet import RunnerLeases, Running
from evener.proto.topics import Topic
from evener.runtime.tasks import Tasks
from evener.scheduler.config import Config
from evener.scheduler.fleet import Fleet, Leases
from evener.service.context import ServiceContext
from evener.service.events import plain
from evener.service.fleet_feed import FleetRecord

log = structlog.get_logger()


class FleetReader:
    """The fleet according to the log, and the leases of the attempts that its runners hold."""

    def __init__(self, config: Config, context: ServiceContext, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells monotonic seconds, the same as that of the context's feed."""
        self.fleet = Fleet(lease_seconds=config.lease_seconds)
        self.running: dict[str, tuple[Running, ...]] = {}
        """Runner id to the attempts that the runner named last."""
        self._config = config
        self._bus = context.bus
        self._feed = context.fleet
        self._clock = clock
        self._next = 0
        """The offset in `leases` to read on from."""
        self._began_at = self._looked_at = clock()
        self.leases = Leases(seconds=config.lease_seconds, began_at=self._looked_at)

    async def start(self) -> None:
        """Read `fleet` and `leases` to their ends. Leases run from now on."""
        self._next = await self._bus.end(Topic.LEASES, 0)
        for record in (await self._bus.last_values(Topic.LEASES, 0)).values():
            self._note(record)
        for told in await self._feed.now():
            self._read(told)
        self._began_at = self._looked_at = self._clock()
        self.leases = Leases(seconds=self._config.lease_seconds, began_at=self._looked_at)

    async def follow(self, wake: Callable[[], None]) -> None:
        """Read on for ever. `wake` is called after each batch."""
        async with Tasks() as tasks:
            tasks.create_task(self._follow_leases(wake))
            async with aclosing(self._feed.follow()) as batches:
                async for batch in batches:
                    for record in batch:
                        self._read(record)
                    wake()

    async def lost(self, held: Collection[Running]) -> list[Running]:
        """Return the held attempts that are lost. This is called every tick; the time by which a call is late counts for no lease."""
        await self._bus.check()
        now = self._clock()
        late = now - self._looked_at - self._config.tick_seconds
        self._looked_at = now
        if late > self._config.tick_seconds:
            self.leases.slept(late)
        if not self.leases.expired(held, now=now):
            return []
        async for record in self._bus.read(Topic.LEASES, 0, self._next):
            self._renew(record)
        return self.leases.expired(held, now=now)

    async def forget_the_dead(self) -> None:
        """Delete instances that were not heard for long from the log. An instance that lives on beats again. Raises NotCommitted."""
        dead = self.fleet.silent_since(self._clock() - self._config.forget_seconds, began_at=self._began_at)
        if dead:
            leased = [instance_id for instance_id in dead if instance_id in self.running]
            gone = [(Topic.FLEET, instance_id) for instance_id in dead] + [(Topic.LEASES, instance_id) for instance_id in leased]
            await self._bus.send([Outgoing(topic=topic, key=instance_id, value=None) for topic, instance_id in gone])
        for instance_id in dead:
            log.info("instance_forgotten", instance_id=instance_id)
            self.fleet.forget(instance_id)
            self.running.pop(instance_id, None)

    async def _follow_leases(self, wake: Callable[[], None]) -> None:
        async for records in self._bus.follow(Topic.LEASES, 0, self._next):
            for record in records:
                self._renew(record)
            wake()

    def _read(self, record: FleetRecord) -> None:
        if record.event is None:
            self.fleet.forget(record.key)
        self.fleet.read(record.event, now=record.heard_at)

    def _renew(self, record: Record) -> None:
        """Note the sessions that a runner holds, and renew their leases."""
        self._next = max(self._next, record.offset + 1)
        self._note(record)
        self.leases.sign(self.running.get(record.key, ()), now=self._clock())

    def _note(self, record: Record) -> None:
        if isinstance(event := plain(record), RunnerLeases):
            self.running[record.key] = event.running
        else:
            self.running.pop(record.key, None)
