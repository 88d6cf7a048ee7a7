"""Events on the bus: claim check, headers, dead letters. What every service reads and writes with."""

import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import structlog

from evener.blobs.claims import deflate, inflate
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.bus.port import Bus, Header, Outgoing, Position, Record
from evener.proto.blobs import BlobRef, Bulk
from evener.proto.codec import NOT_AN_EVENT, AnyEvent, BadRecord, decode, encode, tag_of
from evener.proto.errors import EvenerError
from evener.proto.fleet import DeadLetter
from evener.proto.sessions import Event
from evener.proto.topics import HEADER_CLAIM, HEADER_CRC, HEADER_GROUP, HEADER_SESSION, HEADER_TRACE, HEADER_TYPE, Topic
from evener.service.telemetry import inject

MAX_BAD_IN_A_ROW: Final = 50
CLAIM_BYTES: Final = 900_000
"""An event that is larger without its bulk fields (thousands of calls in a group) moves to the blob store whole."""

_refs: Final = msgspec.msgpack.Decoder(BlobRef)

T = TypeVar("T")

log = structlog.get_logger()


class TooManyBadRecords(EvenerError):
    """Not single records are bad, but what is read. Look at the dead letters: another program or version writes to this topic."""


class EventLog:
    """A service's view of the bus. Not shared between services: it counts bad records in a row.

    `blobs`: a `Waited`; without a limit for what follows a stream, with one for what answers somebody.
    """

    def __init__(self, bus: Bus, blobs: Blobs) -> None:
        self._bus = bus
        self._blobs = blobs
        self._bad_in_a_row = 0

    async def outgoing(
        self, topic: Topic, key: str, event: Event, *, session_id: str | None = None, group_id: str | None = None
    ) -> Outgoing:
        """Return the record of an event, its large fields in the blob store. Raises BlobError."""
        value, claimed = encode(await deflate(event, self._blobs)), b""
        if len(value) > CLAIM_BYTES:
            value, claimed = msgspec.msgpack.encode(await self._blobs.put(value)), b"1"
        named = {
            HEADER_TYPE: tag_of(event).encode(),
            HEADER_SESSION: session_id.encode() if session_id else None,
            HEADER_GROUP: group_id.encode() if group_id else None,
            HEADER_CLAIM: claimed or None,
            HEADER_CRC: _crc(value),
            HEADER_TRACE: inject(),
        }
        headers = tuple(Header(name, told) for name, told in named.items() if told is not None)
        return Outgoing(topic=topic, key=key, value=value, headers=headers)

    async def send(self, topic: Topic, key: str, event: Event, *, session_id: str | None = None, group_id: str | None = None) -> Position:
        """Append an event outside any transaction. Raises NotCommitted, RecordTooLarge, BlobError."""
        (position,) = await self._bus.send([await self.outgoing(topic, key, event, session_id=session_id, group_id=group_id)])
        return position

    async def event(self, record: Record) -> AnyEvent:
        """Return the event in a record, its blobs fetched. Raises NotRead, and BadRecord.

        A record is bad that holds no event or a deletion, or whose blobs are missing or damaged.
        """
        light = await self._decoded(record)
        event = await _fetched(lambda: inflate(light, self._blobs))
        self._bad_in_a_row = 0
        return event

    async def light(self, record: Record) -> AnyEvent:
        """Return the event in a record as it stands there, references to blobs included. Raises as `event`."""
        event = await self._decoded(record)
        self._bad_in_a_row = 0
        return event

    async def fetched(self, field: Bulk) -> bytes:
        """Return the bytes of a field of a light event. Raises BadRecord where their blob is missing or damaged, NotRead."""
        return field if isinstance(field, bytes) else await _fetched(lambda: self._blobs.get(field))

    async def _decoded(self, record: Record) -> AnyEvent:
        if record.value is None:
            msg = f"record {record.topic}/{record.partition}@{record.offset} is a deletion"
            raise BadRecord(msg)
        value = record.value
        if header(record, HEADER_CRC) not in {None, _crc(value)}:
            msg = f"record {record.topic}/{record.partition}@{record.offset} is not as it was written"
            raise BadRecord(msg)
        if header(record, HEADER_CLAIM) is not None:
            claim = claim_of(value)
            value = await _fetched(lambda: self._blobs.get(claim))
        return decode(value)

    async def dead_letter(self, service: str, record: Record, reason: str) -> None:
        """Give a record up and go on. Raises TooManyBadRecords at fifty in a row."""
        self._bad_in_a_row += 1
        letter = DeadLetter(
            service=service,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            reason=reason,
            value=record.value or b"",
            headers=tuple((header.name, header.value) for header in record.headers),
            replay=f"evener replay {record.topic} {record.partition} {record.offset}",
            at=time.time(),
        )
        log.error("dead_letter", service=service, topic=record.topic, partition=record.partition, offset=record.offset, reason=reason)
        session_id, group_id = ((header(record, name) or b"").decode(errors="replace") for name in (HEADER_SESSION, HEADER_GROUP))
        await self.send(Topic.DEAD_LETTERS, record.key, letter, session_id=session_id, group_id=group_id)
        if self._bad_in_a_row >= MAX_BAD_IN_A_ROW:
            msg = f"{service}: {self._bad_in_a_row} bad records in a row on {record.topic}"
            raise TooManyBadRecords(msg)


async def _fetched(fetch: Callable[[], Awaitable[T]]) -> T:
    """Fetch from the blob store. Raises BadRecord for what is missing or damaged; that the store is away says nothing of the record."""
    try:
        return await fetch()
    except NotRead:
        raise
    except BlobError as failed:
        raise BadRecord(str(failed)) from failed


def _crc(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(4, "big")


def claim_of(value: bytes) -> BlobRef:
    """Return where a claimed event lies. Raises BadRecord."""
    try:
        return _refs.decode(value)
    except NOT_AN_EVENT as cause:
        msg = f"claim of {len(value)} bytes: {cause}"
        raise BadRecord(msg) from cause


def header(record: Record, name: str) -> bytes | None:
    """Return the value of a record's header. None: it has none of that name."""
    return next((header.value for header in record.headers if header.name == name), None)
