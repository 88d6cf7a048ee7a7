"""Removes the blobs that only the records of deleted tasks name. The log says who names what."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

import structlog
from msgspec import Struct

from evener.blobs.claims import moved
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord, decode
from evener.proto.sessions import DispatchEvent
from evener.proto.topics import HEADER_CLAIM, HEADER_GROUP, HEADER_SESSION, TOPICS, Topic
from evener.service.events import claim_of, header

NAMED_DIGEST: Final = re.compile(rb"\xa6digest\xd9\x40([0-9a-f]{64})")
"""The digest of a BlobRef in msgpack, however deep in a record. What merely looks like one keeps a blob, and removes none of others."""
READERS: Final = {
    Topic.SESSIONS: ("provider-gateway", "reconstructor"),
    Topic.BUILT: ("evaluator",),
    Topic.SCORED: ("trainer-bridge", "evaluator-groups"),
}
"""The groups that fetch the blobs of a topic's records, also again after a restart: from their committed offsets on."""
YIELD_RECORDS: Final = 500
"""The number of records after which others get their turn."""

log = structlog.get_logger()

PartitionOfTopic = tuple[Topic, int]
Readable = dict[PartitionOfTopic, int]
"""The last offset in each partition at which a record names a blob that the partition's readers may still fetch."""


class Swept(Struct, frozen=True, kw_only=True):
    """What became of the blobs that records of deleted tasks name."""

    removed: int
    """The number that are gone."""
    shared: int
    """The number that other tasks name too. They stay."""
    waiting: int
    """The number that somebody put lately, or that a reader may still fetch. They are looked at again."""


class Sweeper:
    """Reads the log twice: for blobs that the deleted tasks name, then for blobs that all others name."""

    def __init__(self, bus: Bus, blobs: Blobs) -> None:
        self._bus = bus
        self._blobs = blobs

    async def sweep(self, due: Collection[str], deleted: Collection[str], *, unused_seconds: float) -> Swept:
        """Remove blobs that the `due` tasks name and that no task outside of `deleted` names. Raises BusError, NotRead, NotRemoved.

        `unused_seconds`: an object that was put within this time stays, because a record that names it may be on its way.
        """
        named: dict[str, Readable] = {}
        async for record in self._records():
            if task_of(record) in due:
                for digest, must_wait in [*await self._named(record), *_kept_by_the_bridge(record)]:
                    places = named.setdefault(digest, {})
                    if must_wait:
                        places[Topic(record.topic), record.partition] = record.offset
        shared = set[str]()
        async for record in self._records():
            if task_of(record) not in deleted:
                shared.update(digest for digest, _ in await self._named(record) if digest in named)
        removed, committed = 0, dict[tuple[str, PartitionOfTopic], int]()
        for digest in named.keys() - shared:
            if await self._is_read(named[digest], committed):
                removed += await self._blobs.remove(digest, unused_seconds=unused_seconds)
        return Swept(removed=removed, shared=len(shared), waiting=len(named) - len(shared) - removed)

    async def _records(self) -> AsyncIterator[Record]:
        """Yield every record that the log still holds; of compacted topics, the last of each key."""
        for topic, spec in TOPICS.items():
            for partition in range(self._bus.partitions_of(topic)):
                number = 0
                async for record in self._of(topic, partition, compacted=spec.compacted):
                    number += 1
                    if number % YIELD_RECORDS == 0:
                        await asyncio.sleep(0)
                    yield record

    async def _of(self, topic: Topic, partition: int, *, compacted: bool) -> AsyncIterator[Record]:
        if compacted:
            for record in (await self._bus.last_values(topic, partition)).values():
                yield record
            return
        async for record in self._bus.read(topic, partition, await self._bus.beginning(topic, partition)):
            yield record

    async def _named(self, record: Record) -> list[tuple[str, bool]]:
        """Return the digests in a record, each with whether the readers of its topic fetch it. Raises NotRead."""
        value, claim = record.value or b"", None
        if header(record, HEADER_CLAIM) is not None:
            try:
                claim = claim_of(value)
                value = await self._blobs.get(claim)
            except NotRead:
                raise
            except (BadRecord, BlobError):  # gone already, or never readable
                value = b""
        found = dict.fromkeys(digests(value), record.topic in {Topic.BUILT, Topic.SCORED})
        if record.topic == Topic.SESSIONS and found:
            found |= dict.fromkeys(_fetched(value), True)
        if claim is not None:
            found[claim.digest] = record.topic in READERS
        return list(found.items())

    async def _is_read(self, places: Readable, committed: dict[tuple[str, PartitionOfTopic], int]) -> bool:
        """Return whether all readers have passed these places for good. `committed`: what is known of their offsets."""
        for place, offset in places.items():
            for group in READERS[place[0]]:
                if (group, place) not in committed:
                    committed[group, place] = await self._bus.committed(group, *place) or 0
                if committed[group, place] <= offset:
                    return False
        return True


def digests(value: bytes) -> Iterator[str]:
    """Yield the digests of all references in an event's bytes."""
    return (found.decode() for found in NAMED_DIGEST.findall(value))


def task_of(record: Record) -> str | None:
    """Return the id of the task that a record is about. None: it is about none."""
    if session_id := header(record, HEADER_SESSION):
        return session_id.decode(errors="replace").rpartition(".")[0]
    if group_id := header(record, HEADER_GROUP):
        return group_id.decode(errors="replace")
    match record.topic:
        case Topic.TASKS | Topic.SCHEDULER_STATE | Topic.BRIDGE_STATE:
            return record.key
        case Topic.DISPATCH:
            return _dispatched(record)
        case _:
            return None


def _kept_by_the_bridge(record: Record) -> Iterator[tuple[str, bool]]:
    """Yield the digest of a scored session itself: while its group is open, the bridge keeps it as a blob, which only its state names."""
    if record.topic == Topic.SCORED and record.value is not None:
        yield hashlib.sha256(record.value).hexdigest(), True


def _dispatched(record: Record) -> str | None:
    try:
        event = decode(record.value or b"")
    except BadRecord:
        return None
    return event.session_id.rpartition(".")[0] if isinstance(event, DispatchEvent) else None


def _fetched(value: bytes) -> Iterator[str]:
    """Yield the digests of an event's fields that were moved to the blob store. Readers of `sessions` fetch those alone."""
    try:
        event = decode(value)
    except BadRecord:
        return
    yield from (ref.digest for ref in moved(event))
