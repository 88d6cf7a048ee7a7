"""Reads and writes events on the bus: claim check, headers, dead letters. Every service uses it."""

import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, TypeVar, Unpack

import msgspec
import structlog
from opentelemetry.context import Context

from evener.blobs.claims import hydrate, inline_bytes, offload
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.bus.port import Bus, Header, Outgoing, Position, Record
from evener.proto.blobs import INLINE_LIMIT_BYTES, BlobRef
from evener.proto.codec import NOT_AN_EVENT, AnyEvent, BadRecord, decode, encode, tag_of
from evener.proto.fleet import DeadLetter
from evener.proto.letters import position_text
from evener.proto.sessions import Event
from evener.proto.topics import HEADER_CLAIM, HEADER_CRC, HEADER_GROUP, HEADER_SESSION, HEADER_TYPE, Topic
from evener.service.bad_records import BadRecords
from evener.service.telemetry import Metrics
from evener.service.tracing import context_of, trace_headers

CLAIM_BYTES: Final = 900_000
"""An event that is larger than this without its bulk fields (thousands of calls in a group) moves to the blob store as a whole."""

_refs: Final = msgspec.msgpack.Decoder(BlobRef)

T = TypeVar("T")
EventT = TypeVar("EventT")

log = structlog.get_logger()


class About(TypedDict, total=False):
    """The headers of a record besides its event's type."""

    session_id: str | None
    group_id: str | None
    trace: Context | None
    """The trace context of its cause. None: the current one."""
    partition: int | None
    """The partition. None: by the key."""


class EventLog:
    """A service's view of the bus. Services do not share one, because it counts bad records.

    `blobs` is a `Waited`, without a limit for readers of a stream and with a limit for endpoints.
    """

    def __init__(self, bus: Bus, blobs: Blobs, metrics: Metrics | None = None) -> None:
        """`metrics` are those of the service that gives up records."""
        self._bus = bus
        self._blobs = blobs
        self._metrics = metrics
        self._bad_records = BadRecords()

    def record(self, topic: Topic, key: str, event: Event, **about: Unpack[About]) -> Outgoing | None:
        """Return the record of an event. None: it needs the blob store, see `outgoing`."""
        value = encode(event)
        if len(value) > INLINE_LIMIT_BYTES:
            return None
        return _record(topic, key, event, value, **about)

    async def outgoing(self, topic: Topic, key: str, event: Event, **about: Unpack[About]) -> Outgoing:
        """Return the record of an event, its large fields in the blob store. Raises BlobError."""
        if inline_bytes(event) <= INLINE_LIMIT_BYTES and (small := self.record(topic, key, event, **about)) is not None:
            return small
        value, claimed = encode(await offload(event, self._blobs)), b""
        if len(value) > CLAIM_BYTES:
            value, claimed = msgspec.msgpack.encode(await self._blobs.put(value)), b"1"
        return _record(topic, key, event, value, claimed=claimed, **about)

    async def send(self, topic: Topic, key: str, event: Event, **about: Unpack[About]) -> Position:
        """Append an event outside any transaction. Raises NotCommitted, RecordTooLarge, BlobError."""
        (position,) = await self._bus.send([await self.outgoing(topic, key, event, **about)])
        return position

    async def event(self, record: Record) -> AnyEvent:
        """Return the event in a record with its blobs. Raises NotRead, BadRecord.

        A record is bad if it holds no event or a deletion, or if its blobs are missing or damaged.
        """
        event = await whole_event(record, self._blobs)
        self._bad_records.good(record)
        return event

    async def light(self, record: Record) -> AnyEvent:
        """Return the event in a record without fetching its blobs. Raises the same errors as `event`."""
        event = await light_event(record, self._blobs)
        self._bad_records.good(record)
        return event

    async def readable(self, record: Record) -> AnyEvent | None:
        """Return the same as `light`. None: the record is bad. Raises NotRead."""
        try:
            return await self.light(record)
        except BadRecord:
            return None

    async def store(self, event: Event) -> BlobRef:
        """Put an event, as it stands, into the blob store. Raises BlobError."""
        return await self._blobs.put(encode(event))

    async def stored(self, ref: BlobRef) -> AnyEvent:
        """Return an event that was put there. Raises BadRecord where it is missing or damaged, NotRead."""
        return decode(await _fetched(lambda: self._blobs.get(ref)))

    async def dead_letter(self, service: str, record: Record, reason: str) -> None:
        """Write a dead letter for a record. Raises TooManyBadRecords where a whole input is bad."""
        letter = DeadLetter(
            service=service,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            reason=reason,
            value=record.value or b"",
            headers=tuple((header.name, header.value) for header in record.headers),
            replay=f"evener dead-letters replay {position_text(record.topic, record.partition, record.offset)}",
            at=time.time(),
        )
        log.error("dead_letter", service=service, topic=record.topic, partition=record.partition, offset=record.offset, reason=reason)
        session_id, group_id = ((header(record, name) or b"").decode(errors="replace") for name in (HEADER_SESSION, HEADER_GROUP))
        await self.send(Topic.DEAD_LETTERS, record.key, letter, session_id=session_id, group_id=group_id, trace=context_of(record))
        if self._metrics is not None:
            self._metrics.dead_letters.labels(service, record.topic).inc()
        self._bad_records.bad(record)


async def whole_event(record: Record, blobs: Blobs) -> AnyEvent:
    """Return the event in a record with its blobs. Raises NotRead, BadRecord."""
    light = await light_event(record, blobs)
    return await _fetched(lambda: hydrate(light, blobs))


async def light_event(record: Record, blobs: Blobs) -> AnyEvent:
    """Return the event in a record without its blobs, unless the whole event is one. Raises NotRead, BadRecord."""
    if record.value is None:
        msg = f"record {record.topic}/{record.partition}@{record.offset} is a deletion"
        raise BadRecord(msg)
    value = record.value
    if header(record, HEADER_CRC) not in {None, _crc(value)}:
        msg = f"record {record.topic}/{record.partition}@{record.offset} is not as it was written"
        raise BadRecord(msg)
    if header(record, HEADER_CLAIM) is not None:
        claim = claim_of(value)
        value = await _fetched(lambda: blobs.get(claim))
    return decode(value)


async def _fetched(fetch: Callable[[], Awaitable[T]]) -> T:
    """Fetch from the blob store. Raises BadRecord for a missing or damaged object. An unavailable store says nothing about the record."""
    try:
        return await fetch()
    except NotRead:
        raise
    except BlobError as failed:
        raise BadRecord(str(failed)) from failed


def _record(topic: Topic, key: str, event: Event, value: bytes, *, claimed: bytes = b"", **about: Unpack[About]) -> Outgoing:
    session_id, group_id = about.get("session_id"), about.get("group_id")
    named = {
        HEADER_TYPE: tag_of(event).encode(),
        HEADER_SESSION: session_id.encode() if session_id else None,
        HEADER_GROUP: group_id.encode() if group_id else None,
        HEADER_CLAIM: claimed or None,
        HEADER_CRC: _crc(value),
    }
    headers = tuple(Header(name, told) for name, told in named.items() if told is not None)
    headers += trace_headers(about.get("trace"))
    return Outgoing(topic=topic, key=key, value=value, headers=headers, partition=about.get("partition"))


def _crc(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(4, "big")


def claim_of(value: bytes) -> BlobRef:
    """Return the reference of an event that was moved to the blob store. Raises BadRecord."""
    try:
        return _refs.decode(value)
    except NOT_AN_EVENT as cause:
        msg = f"claim of {len(value)} bytes: {cause}"
        raise BadRecord(msg) from cause


def header(record: Record, name: str) -> bytes | None:
    """Return the value of a record's header. None: there is no such header."""
    return next((header.value for header in record.headers if header.name == name), None)


def checked(event: AnyEvent, kind: type[EventT]) -> EventT:
    """Return the event if it is of this kind. Raises BadRecord."""
    if isinstance(event, kind):
        return event
    msg = f"not a {kind.__name__} but {type(event).__name__}"
    raise BadRecord(msg)


def plain(record: Record) -> AnyEvent | None:
    """Return the event in a record that never has blobs, such as one of `fleet`. None: it is a deletion, or bad."""
    try:
        return decode(record.value or b"")
    except BadRecord:
        return None
