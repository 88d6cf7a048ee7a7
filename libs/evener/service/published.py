"""Reads the topic `policies`: which versions were staged, published and retired, and how engines label them."""

import hashlib
from typing import Final

import structlog

from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord
from evener.proto.fleet import EngineJoined, PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.topics import Topic
from evener.service.events import EventLog

PARTITION: Final = 0
"""The only partition of `policies`, so that its order is total."""
DIGEST_CHARACTERS: Final = 12
"""The number of digest characters in a label."""
JOIN: Final = 8
"""The number of characters that stand for one joining of an engine."""

log = structlog.get_logger()

Version = PolicyStaged | PolicyPublished | PolicyRetired
"""The last event of a version."""


def loaded_label(version: PolicyStaged | PolicyPublished) -> str:
    """Return the label of an engine's weights after it loaded a version. Like all labels it ends with the version's number."""
    return f"{version.policy}:{(version.digest or '')[:DIGEST_CHARACTERS]}@{version.version}"


def proven_label(version: PolicyStaged | PolicyPublished, joined: EngineJoined) -> str:
    """Return the label after the engine has proven, since it joined, that it samples from these weights. Only then it gets calls."""
    stem, _, number = loaded_label(version).rpartition("@")
    join = hashlib.sha256(f"{joined.engine_id} {joined.joined_at}".encode()).hexdigest()[:JOIN]
    return f"{stem}:{join}@{number}"


def without_proof(label: str) -> str:
    """Return the label that a version had before the proof. Other labels are returned unchanged."""
    stem, at, number = label.rpartition("@")
    return ":".join(stem.split(":")[:2]) + at + number


def digest_in(label: str) -> str:
    """Return the characters of a digest in a label. Empty: there are none."""
    return without_proof(label).rpartition("@")[0].partition(":")[2]


class Published:
    """The versions that were published, as far as the topic was read."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events
        self._versions: dict[str, dict[int, Version]] = {}
        self._read = 0

    def policies(self) -> tuple[str, ...]:
        """Return the names of all policies in the topic."""
        return tuple(sorted(self._versions))

    def versions(self, policy: str) -> tuple[Version, ...]:
        """Return the last event of each version of a policy, by rising version."""
        return tuple(said for _, said in sorted(self._versions.get(policy, {}).items()))

    def current(self, policy: str) -> PolicyPublished | None:
        """Return the newest version that is published and not retired. None: there is none."""
        published = [said for said in self.versions(policy) if isinstance(said, PolicyPublished)]
        return published[-1] if published else None

    def newest(self, policy: str) -> int | None:
        """Return the number of the current version. None: there is none."""
        current = self.current(policy)
        return None if current is None else current.version

    def unproven_versions(self, policy: str) -> frozenset[int]:
        """Return the versions whose tokens must not be trained: rolled back, or not proven yet."""
        return frozenset(said.version for said in self.versions(policy) if not isinstance(said, PolicyPublished))

    async def refresh(self) -> None:
        """Read to the current end of the topic."""
        async for record in self._bus.read(Topic.POLICIES, PARTITION, self._read):
            await self._take(record)

    async def follow(self) -> None:
        """Read further events for ever."""
        async for batch in self._bus.follow(Topic.POLICIES, PARTITION, self._read):
            for record in batch:
                await self._take(record)

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
        if isinstance(event, Version):
            self._versions.setdefault(event.policy, {})[event.version] = event
        else:
            log.error("bad_policy_record", offset=record.offset, error=type(event).__name__)
