"""The topic `policies`: which versions trainers published, and the publishing itself. A policy's one writer is `policy-NAME`."""

import asyncio
from typing import Final

import structlog

from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord
from evener.proto.errors import EvenerError
from evener.proto.fleet import PolicyPublished, PolicyRetired
from evener.proto.topics import Topic
from evener.service.events import EventLog

PARTITION: Final = 0
"""`policies` has one partition, so that its order is total."""

log = structlog.get_logger()


class VersionRefused(EvenerError):
    """Versions of a policy only rise. Publish a number above the newest one."""


class Policies:
    """What was published, as far as it was read."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events
        self._published: dict[str, dict[int, PolicyPublished]] = {}
        self._read = 0
        self._lock = asyncio.Lock()

    def newest(self, policy: str) -> int | None:
        """Return the newest version that was not retired. None: none was published."""
        return max(self._published.get(policy, {}), default=None)

    async def refresh(self) -> None:
        """Read to the end as it is now."""
        async for record in self._bus.read(Topic.POLICIES, PARTITION, self._read):
            await self._take(record)

    async def follow(self) -> None:
        """Read on for ever."""
        async for batch in self._bus.follow(Topic.POLICIES, PARTITION, self._read):
            for record in batch:
                await self._take(record)

    async def publish(self, event: PolicyPublished) -> bool:
        """Publish a version; return False where it was published before. Raises VersionRefused and what a commit raises."""
        async with self._lock:
            producer = await self._bus.producer(f"policy-{event.policy}")
            try:
                await self.refresh()
                if self._known(event):
                    return False
                await producer.commit([await self._events.outgoing(Topic.POLICIES, f"{event.policy}@{event.version}", event)])
                await self.refresh()
                return True
            finally:
                await producer.aclose()

    def _known(self, event: PolicyPublished) -> bool:
        """Return whether exactly this was published. Raises VersionRefused for another that is not above the newest."""
        before = self._published.get(event.policy, {}).get(event.version)
        if before is not None and (before.location, before.digest) == (event.location, event.digest):
            return True
        newest = self.newest(event.policy)
        if newest is not None and event.version <= newest:
            msg = f"version {event.version} of {event.policy} is not above {newest}"
            raise VersionRefused(msg)
        return False

    async def _take(self, record: Record) -> None:
        if record.offset < self._read:
            return
        self._read = record.offset + 1
        if record.value is None:
            return
        try:
            event = await self._events.light(record)
        except BadRecord as bad:
            log.error("bad_policy_record", offset=record.offset, error=str(bad))
            return
        match event:
            case PolicyPublished():
                self._published.setdefault(event.policy, {})[event.version] = event
            case PolicyRetired():
                self._published.get(event.policy, {}).pop(event.version, None)
            case _:
                log.error("bad_policy_record", offset=record.offset, error=type(event).__name__)
