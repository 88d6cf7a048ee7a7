"""Reads `fleet`: which instances are alive, and which attempts were not seen for a whole lease."""

import time
from collections.abc import Callable, Collection

import structlog

from evener.bus.port import Outgoing, Record
from evener.proto.codec import AnyEvent, BadRecord, decode
from evener.proto.fleet import Heartbeat, Running
from evener.proto.topics import Topic
from evener.scheduler.config import Config
from evener.scheduler.fleet import Fleet, Leases
from evener.service.context import ServiceContext

log = structlog.get_logger()


class FleetReader:
    """The fleet according to the log, and the leases of the attempts that its runners hold."""

    def __init__(self, config: Config, context: ServiceContext, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells monotonic seconds."""
        self.fleet = Fleet(lease_seconds=config.lease_seconds)
        self._config = config
        self._bus = context.bus
        self._clock = clock
        self._boot_id = context.boot_id
        """The boot id of this process, whose own records are not old."""
        self._next = 0
        self._began_at = self._looked_at = clock()
        self.leases = Leases(seconds=config.lease_seconds, began_at=self._looked_at)

    async def start(self) -> None:
        """Read `fleet` to its end. Leases run from now on."""
        self._next = await self._bus.end(Topic.FLEET, 0)
        self._began_at = self._looked_at = self._clock()
        for record in (await self._bus.last_values(Topic.FLEET, 0)).values():
            event = _event(record)
            ours = isinstance(event, Heartbeat) and event.boot_id == self._boot_id
            self.fleet.read(event, now=self._looked_at if ours else None)
        self.leases = Leases(seconds=self._config.lease_seconds, began_at=self._looked_at)

    async def follow(self, wake: Callable[[], None]) -> None:
        """Read on for ever. `wake` is called after each batch."""
        async for records in self._bus.follow(Topic.FLEET, 0, self._next):
            for record in records:
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
        async for record in self._bus.read(Topic.FLEET, 0, self._next):
            self._read(record)
        return self.leases.expired(held, now=now)

    async def forget_the_dead(self) -> None:
        """Delete instances that were not heard for long from `fleet`. An instance that lives on beats again. Raises NotCommitted."""
        dead = self.fleet.silent_since(self._clock() - self._config.forget_seconds, began_at=self._began_at)
        if dead:
            await self._bus.send([Outgoing(topic=Topic.FLEET, key=instance_id, value=None) for instance_id in dead])
        for instance_id in dead:
            log.info("instance_forgotten", instance_id=instance_id)
            self.fleet.forget(instance_id)

    def _read(self, record: Record) -> None:
        now, event = self._clock(), _event(record)
        if record.value is None:
            self.fleet.forget(record.key)
        self.fleet.read(event, now=now)
        self._next = max(self._next, record.offset + 1)
        if isinstance(event, Heartbeat):
            self.leases.sign(event.running, now=now)


def _event(record: Record) -> AnyEvent | None:
    """Return the event in a record of `fleet`. None: it cannot be read, and the next record of its key will replace it."""
    try:
        return None if record.value is None else decode(record.value)
    except BadRecord as bad:
        log.warning("fleet_record_unreadable", key=record.key, reason=str(bad))
        return None
