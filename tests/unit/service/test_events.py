"""Events on a real bus: headers, claim check, dead letters."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from opentelemetry import propagate
from tests.unit.proto.golden_events import CHOICE, EVENTS, SESSION
from tests.unit.service.services import open_parts

from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.blobs.waited import BlobTimings, Waited
from evener.bus.port import Header, Outgoing, Record
from evener.proto.blobs import BlobRef
from evener.proto.codec import BadRecord, decode, encode
from evener.proto.fleet import DeadLetter, EngineLeft, RunnerLeases, Running
from evener.proto.sessions import CallClosed
from evener.proto.topics import HEADER_CLAIM, HEADER_GROUP, HEADER_SESSION, HEADER_TYPE, Topic
from evener.runtime.backoff import Backoff
from evener.service.bad_records import TooManyBadRecords
from evener.service.context import ServiceContext
from evener.service.events import EventLog, header
from evener.service.telemetry import metrics

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LEFT = EngineLeft(engine_id="e", left_at=1.0)


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path) as context:
        yield context


@pytest.fixture
def events(context: ServiceContext) -> EventLog:
    return EventLog(context.bus, context.blobs, metrics(context.registry))


async def last(context: ServiceContext, topic: Topic, partition: int = 0) -> Record:
    records = [record async for record in context.bus.read(topic, partition)]
    return records[-1]


async def test_event_comes_back_with_its_headers(context: ServiceContext, events: EventLog) -> None:
    """A reader skips by type and session without decoding."""
    await events.send(Topic.FLEET, "e", LEFT, session_id="s", group_id="g")
    record = await last(context, Topic.FLEET)

    assert await events.event(record) == LEFT
    assert header(record, HEADER_TYPE) == b"engine_left.v1"
    assert (header(record, HEADER_SESSION), header(record, HEADER_GROUP)) == (b"s", b"g")
    assert header(record, "nothing") is None


def large_call() -> CallClosed:
    """Return an event with a field that does not stay in its record."""
    (closed,) = (event for event in EVENTS if isinstance(event, CallClosed))
    large = b'{"role":"assistant","content":"' + b"x" * 400_000 + b'"}'
    return msgspec.structs.replace(closed, prompt_delta_ids=None, choices=(msgspec.structs.replace(CHOICE, message=large),))


async def test_large_fields_travel_by_the_blob_store(context: ServiceContext, events: EventLog) -> None:
    """The record stays small; who reads it sees the bytes."""
    whole = large_call()
    partition = context.bus.partition_of(Topic.SESSIONS, SESSION)
    await events.send(Topic.SESSIONS, SESSION, whole)
    record = await last(context, Topic.SESSIONS, partition)

    assert record.value is not None
    assert len(record.value) < 10_000
    assert await events.event(record) == whole


async def test_trace_context_continues_with_the_records(context: ServiceContext, events: EventLog) -> None:
    """A record carries the context of the span that wrote it, and a dead letter that of the record that was given up."""
    remote = propagate.extract({"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    await events.send(Topic.FLEET, "e", LEFT, trace=remote)
    record = await last(context, Topic.FLEET)
    await events.dead_letter("scheduler", record, "bad")
    letter = await last(context, Topic.DEAD_LETTERS)

    assert (header(record, "traceparent"), header(record, "tracestate")) == (TRACEPARENT.encode(), b"vendor=1")
    assert header(letter, "traceparent") == TRACEPARENT.encode()


async def test_bad_record_becomes_a_dead_letter_with_the_way_back(context: ServiceContext, events: EventLog) -> None:
    """The reason, the record, and the command."""
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"\x81")])
    record = await last(context, Topic.FLEET)
    with pytest.raises(BadRecord) as bad:
        await events.event(record)
    await events.dead_letter("scheduler", record, str(bad.value))
    letter = decode((await last(context, Topic.DEAD_LETTERS)).value or b"")

    assert isinstance(letter, DeadLetter)
    assert (letter.value, letter.key, letter.replay) == (b"\x81", "k", f"evener dead-letters replay fleet/0@{record.offset}")
    assert context.registry.get_sample_value("evener_dead_letters_total", {"service": "scheduler", "topic": "fleet"}) == 1


async def test_deletion_is_no_event(context: ServiceContext, events: EventLog) -> None:
    """Readers of compacted topics meet them."""
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=None)])
    with pytest.raises(BadRecord, match="deletion"):
        await events.event(await last(context, Topic.FLEET))


async def test_quarter_of_the_last_records_of_a_partition_may_be_bad(context: ServiceContext, events: EventLog) -> None:
    """More, and not the records are bad but the input, also if good ones stand between them."""
    await events.send(Topic.FLEET, "e", LEFT)
    good = await last(context, Topic.FLEET)
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"?")])
    bad = await last(context, Topic.FLEET)
    for _ in range(100):  # a fifth
        for _ in range(4):
            await events.event(good)
        await events.dead_letter("scheduler", bad, "bad")
    for _ in range(200):
        await events.event(good)

    for _ in range(49):  # a third of what was read since
        await events.event(good)
        await events.light(good)
        await events.dead_letter("scheduler", bad, "bad")
    with pytest.raises(TooManyBadRecords, match="50 of the last 146 records of partition 0 of fleet are bad"):
        await events.dead_letter("scheduler", bad, "bad")


async def test_bad_records_of_other_partitions_do_not_count(context: ServiceContext, events: EventLog) -> None:
    """A session that writes rubbish has one partition; the others go on."""
    await context.bus.send([Outgoing(topic=Topic.SESSIONS, key="k", value=b"?", partition=number) for number in (0, 1)])
    for number in (0, 1):
        record = await last(context, Topic.SESSIONS, number)
        for _ in range(49):
            await events.dead_letter("reconstructor", record, "bad")


async def test_large_bad_record_is_kept_whole(context: ServiceContext, events: EventLog) -> None:
    """Its bytes go to the blob store; the dead letter stays small."""
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"?" * 950_000)])
    await events.dead_letter("scheduler", await last(context, Topic.FLEET), "bad")
    record = await last(context, Topic.DEAD_LETTERS)
    letter = await events.event(record)

    assert len(record.value or b"") < 10_000
    assert isinstance(letter, DeadLetter)
    assert letter.value == b"?" * 950_000


async def test_event_that_is_large_without_its_bulk_fields_moves_whole(context: ServiceContext, events: EventLog) -> None:
    """A group with thousands of calls: the record is a claim, and the reader does not notice."""
    running = tuple(Running(session_id=f"session-{number}", attempt=1) for number in range(40_000))
    leases = RunnerLeases(runner_id="i", running=running, at=1.0)
    await events.send(Topic.LEASES, "i", leases)
    record = await last(context, Topic.LEASES)

    assert len(record.value or b"") < 200
    assert await events.event(record) == leases
    assert await events.light(record) == leases


class Failing:
    """A blob store whose first reads fail: it is away then, or (`damaged`) gives what is not the object."""

    def __init__(self, blobs: Blobs, reads: int, *, damaged: bool = False) -> None:
        self._blobs = blobs
        self._reads = reads
        self._error = BlobError if damaged else NotRead

    async def put(self, data: bytes) -> BlobRef:
        return await self._blobs.put(data)

    async def has(self, ref: BlobRef) -> bool:
        return await self._blobs.has(ref)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        return await self._blobs.remove(digest, unused_seconds=unused_seconds)

    async def get(self, ref: BlobRef) -> bytes:
        self._reads -= 1
        if self._reads >= 0:
            msg = "the store does not answer"
            raise self._error(msg)
        return await self._blobs.get(ref)


async def claimed(context: ServiceContext) -> Record:
    """Return a record whose event is in the blob store whole."""
    claim = msgspec.msgpack.encode(await context.blobs.put(encode(LEFT)))
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="e", value=claim, headers=(Header(HEADER_CLAIM, b"1"),))])
    return await last(context, Topic.FLEET)


NO_PAUSES = BlobTimings(away=Backoff(0.0, 0.0), missing=Backoff(0.0, 0.0))


@pytest.mark.parametrize(("reads", "damaged"), [(100, False), (4, True)])
async def test_blob_that_cannot_be_read_for_a_moment_costs_no_record(context: ServiceContext, reads: int, *, damaged: bool) -> None:
    """A store that is away is waited for as long as it takes; what is missing or damaged gets four more looks."""

    def failing() -> EventLog:
        return EventLog(context.bus, Waited(Failing(context.blobs, reads, damaged=damaged), timings=NO_PAUSES))

    record = await claimed(context)
    assert await failing().light(record) == LEFT
    assert await failing().event(record) == LEFT

    whole = large_call()
    await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, SESSION, whole)
    record = await last(context, Topic.SESSIONS, context.bus.partition_of(Topic.SESSIONS, SESSION))
    assert await failing().event(record) == whole


async def test_store_that_is_away_makes_no_record_bad(context: ServiceContext) -> None:
    """Whoever does not wait is told so by an error that may pass, and no dead letter is written for it."""
    await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, SESSION, large_call())
    call = await last(context, Topic.SESSIONS, context.bus.partition_of(Topic.SESSIONS, SESSION))
    away = EventLog(context.bus, Waited(Failing(context.blobs, 100), 0.0))

    for read, record in ((away.light, await claimed(context)), (away.event, call)):
        with pytest.raises(NotRead):
            await read(record)


async def test_record_whose_blob_is_missing_is_bad(context: ServiceContext, events: EventLog) -> None:
    """A claim and a field alike: the reader gives the record up and goes on."""
    empty = EventLog(context.bus, open_blobs("memory://"))
    claim = await claimed(context)
    await events.send(Topic.SESSIONS, SESSION, large_call())
    call = await last(context, Topic.SESSIONS, context.bus.partition_of(Topic.SESSIONS, SESSION))

    for read, record in ((empty.light, claim), (empty.event, claim), (empty.event, call)):
        with pytest.raises(BadRecord, match="is not in"):
            await read(record)


async def test_records_without_their_blobs_count_as_bad(context: ServiceContext) -> None:
    """A lost blob store stops the service and does not empty the log, though the records themselves can be read."""
    await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, SESSION, large_call())
    record = await last(context, Topic.SESSIONS, context.bus.partition_of(Topic.SESSIONS, SESSION))
    empty = EventLog(context.bus, open_blobs("memory://"))

    for _ in range(49):
        with pytest.raises(BadRecord):
            await empty.event(record)
        await empty.dead_letter("reconstructor", record, "its blobs are missing")

    with pytest.raises(BadRecord):
        await empty.event(record)
    with pytest.raises(TooManyBadRecords):
        await empty.dead_letter("reconstructor", record, "its blobs are missing")
