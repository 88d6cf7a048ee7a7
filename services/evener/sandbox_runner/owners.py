"""Which gateway owns which partition of `sessions`, according to `fleet`."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from evener.bus.port import Bus, Record
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.runtime.interrupt import Interrupt
from evener.service.events import plain

GATEWAY = "provider_gateway"


class Moved(Exception):
    """Another gateway owns the partition now."""


class Owners:
    """The last gateway that listed a partition owns it, until it no longer lists it."""

    def __init__(self) -> None:
        self._listed: dict[str, Heartbeat] = {}
        self._addresses: dict[int, str] = {}
        self._changed = asyncio.Event()
        self._watched: dict[Interrupt, tuple[int, Collection[str | None]]] = {}
        """Blocks that end when their partition moves to a gateway that they do not know."""

    async def follow(self, bus: Bus) -> None:
        """Keep up with `fleet` until cancelled."""
        start = await bus.end(Topic.FLEET, 0)
        self.read(sorted((await bus.last_values(Topic.FLEET, 0)).values(), key=lambda record: record.offset))
        async for batch in bus.follow(Topic.FLEET, 0, start):
            self.read(batch)

    def read(self, records: Iterable[Record]) -> None:
        """Apply records of `fleet`. Other records are ignored."""
        for record in records:
            if isinstance(event := plain(record), Heartbeat) and event.service == GATEWAY and event.address is not None:
                self._take(event, event.address)

    def address(self, partition: int) -> str | None:
        """Return the base URL of the owner. None: no gateway lists the partition."""
        return self._addresses.get(partition)

    async def moved(self, partition: int, known: Collection[str | None]) -> str:
        """Wait until a gateway that is not among the known ones owns the partition; return its base URL."""
        while (owner := self._moved(partition, known)) is None:
            await self._changed.wait()
        return owner

    @contextmanager
    def watched(self, partition: int, known: Collection[str | None]) -> Iterator[None]:
        """Raise Moved in this block when a gateway that is not among the known ones owns the partition."""
        interrupt = Interrupt()
        self._watched[interrupt] = partition, known
        try:
            with interrupt:
                yield
        finally:
            del self._watched[interrupt]

    def _moved(self, partition: int, known: Collection[str | None]) -> str | None:
        owner = self._addresses.get(partition)
        return None if owner in known else owner

    def _take(self, heartbeat: Heartbeat, address: str) -> None:
        before = self._listed.get(heartbeat.instance_id)
        self._listed[heartbeat.instance_id] = heartbeat
        for partition in set(before.partitions if before else ()) - set(heartbeat.partitions):
            if before is not None and self._addresses.get(partition) == before.address:
                del self._addresses[partition]
        self._addresses.update(dict.fromkeys(heartbeat.partitions, address))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for interrupt, (partition, known) in self._watched.items():
            if (owner := self._moved(partition, known)) is not None:
                interrupt.end(Moved(f"partition {partition} is owned by {owner} now"))
