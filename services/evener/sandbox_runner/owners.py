"""Which gateway owns which partition of `sessions`, as `fleet` tells."""

import asyncio
from collections.abc import Collection, Iterable

from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord, decode
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic

GATEWAY = "provider_gateway"


class Owners:
    """The last gateway that listed a partition owns it, until it lists it no more."""

    def __init__(self) -> None:
        self._listed: dict[str, Heartbeat] = {}
        self._addresses: dict[int, str] = {}
        self._changed = asyncio.Event()

    async def follow(self, bus: Bus) -> None:
        """Keep up with `fleet` until cancelled."""
        start = await bus.end(Topic.FLEET, 0)
        self.read(sorted((await bus.last_values(Topic.FLEET, 0)).values(), key=lambda record: record.offset))
        async for batch in bus.follow(Topic.FLEET, 0, start):
            self.read(batch)

    def read(self, records: Iterable[Record]) -> None:
        """Take records of `fleet` into account; what is none of ours is left alone."""
        for record in records:
            try:
                event = decode(record.value or b"")
            except BadRecord:
                continue
            if isinstance(event, Heartbeat) and event.service == GATEWAY and event.address is not None:
                self._take(event, event.address)

    def address(self, partition: int) -> str | None:
        """Return the base URL of the owner. None: nobody lists the partition."""
        return self._addresses.get(partition)

    async def moved(self, partition: int, known: Collection[str | None]) -> str:
        """Wait until a gateway that is not among the known ones owns the partition, and return its base URL."""
        while (owner := self._addresses.get(partition)) is None or owner in known:
            await self._changed.wait()
        return owner

    def _take(self, heartbeat: Heartbeat, address: str) -> None:
        before = self._listed.get(heartbeat.instance_id)
        self._listed[heartbeat.instance_id] = heartbeat
        for partition in set(before.partitions if before else ()) - set(heartbeat.partitions):
            if before is not None and self._addresses.get(partition) == before.address:
                del self._addresses[partition]
        self._addresses.update(dict.fromkeys(heartbeat.partitions, address))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
