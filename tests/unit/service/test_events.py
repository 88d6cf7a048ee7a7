"""Events on a real bus: headers, claim check, dead letters."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.proto.golden_events import CHOICE, EVENTS, SESSION
from tests.unit.service.services import open_parts

from evener.blobs import waited as waited_module
from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.blobs.waited import Waited
from evener.bus.port import Header, Outgoing, Record
from evener.proto.blobs import BlobRef
from evener.proto.codec import BadRecord, decode, encode
from evener.proto.fleet import DeadLetter, EngineLeft, Heartbeat, Running
from evener.proto.sessions import CallClosed
from evener.proto.topics import HEADER_CLAIM, HEADER_GROUP, HEADER_SESSION, HEADER_TRACE, HEADER_TYPE, Topic
from evener.service.events import EventLog, TooManyBadRecords, header
from evener.service.parts import Parts
from evener.service.telemetry import extract, set_up_traces, tracer

LEFT = EngineLeft(engine_id="e", left_at=1.0)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with open_parts(tmp_path) as parts:
        yield parts


@pytest.fixture
def events(parts: Parts) -> EventLog:
    return EventLog(parts.bus, parts.blobs)


async def last(parts: Parts, topic: Topic, partition: int = 0) -> Record:
    records = [record async for record in parts.bus.read(topic, partition)]
    return records[-1]


async def test_event_comes_back_with_its_headers(parts: Parts, events: EventLog) -> None:
    """A reader skips by type and session without decoding."""
    await events.send(Topic.FLEET, "e", LEFT, session_id="s", group_id="g")
    record = await last(parts, Topic.FLEET)

    assert await events.event(record) == LEFT
    assert header(record, HEADER_TYPE) == b"engine_left.v1"
    assert (header(record, HEADER_SESSION), header(record, HEADER_GROUP)) == (b"s", b"g")
    assert header(record, "nothing") is None


def large_call() -> CallClosed:
    """Return an event with a field that does not stay in its record."""
    (closed,) = (event for event in EVENTS if isinstance(event, CallClosed))
    large = b'{"role":"assistant","content":"' + b"x" * 400_000 + b'"}'
    return msgspec.structs.replace(closed, given_ids=None, choices=(msgspec.structs.replace(CHOICE, message=large),))


async def test_large_fields_travel_by_the_blob_store(parts: Parts, events: EventLog) -> None:
    """The record stays small; who reads it sees the bytes."""
    whole = large_call()
    partition = parts.bus.partition_of(Topic.SESSIONS, SESSION)
    await events.send(Topic.SESSIONS, SESSION, whole)
    record = await last(parts, Topic.SESSIONS, partition)

    assert record.value is not None
    assert len(record.value) < 10_000
    assert await events.event(record) == whole


async def test_trace_goes_with_the_record(parts: Parts, events: EventLog) -> None:
    """One trace from the task to the merged group."""
    set_up_traces("test")
    with tracer.start_as_current_span("submit") as span:
        await events.send(Topic.FLEET, "e", LEFT)
    traceparent = header(await last(parts, Topic.FLEET), HEADER_TRACE)

    assert traceparent is not None
    with tracer.start_as_current_span("dispatch", context=extract(traceparent)) as child:
        assert child.get_span_context().trace_id == span.get_span_context().trace_id


async def test_bad_record_becomes_a_dead_letter_with_the_way_back(parts: Parts, events: EventLog) -> None:
    """The reason, the record, and the command."""
    await parts.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"\x81")])
    record = await last(parts, Topic.FLEET)
    with pytest.raises(BadRecord) as bad:
        await events.event(record)
    await events.dead_letter("scheduler", record, str(bad.value))
    letter = decode((await last(parts, Topic.DEAD_LETTERS)).value or b"")

    assert isinstance(letter, DeadLetter)
    assert (letter.value, letter.key, letter.replay) == (b"\x81", "k", f"evener replay fleet 0 {record.offset}")


async def test_deletion_is_no_event(parts: Parts, events: EventLog) -> None:
    """Readers of compacted topics meet them."""
    await parts.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=None)])
    with pytest.raises(BadRecord, match="deletion"):
        await events.event(await last(parts, Topic.FLEET))


async def test_fifty_bad_records_in_a_row_stop_the_service(parts: Parts, events: EventLog) -> None:
    """Not the records are bad then. A good one starts the count anew."""
    await events.send(Topic.FLEET, "e", LEFT)
    good = await last(parts, Topic.FLEET)
    await parts.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"?")])
    bad = await last(parts, Topic.FLEET)
    for _ in range(49):
        await events.dead_letter("scheduler", bad, "bad")
    await events.event(good)
    for _ in range(49):
        await events.dead_letter("scheduler", bad, "bad")

    with pytest.raises(TooManyBadRecords, match="50 bad records in a row on fleet"):
        await events.dead_letter("scheduler", bad, "bad")


async def test_large_bad_record_is_kept_whole(parts: Parts, events: EventLog) -> None:
    """Its bytes go to the blob store; the dead letter stays small."""
    await parts.bus.send([Outgoing(topic=Topic.FLEET, key="k", value=b"?" * 950_000)])
    await events.dead_letter("scheduler", await last(parts, Topic.FLEET), "bad")
    record = await last(parts, Topic.DEAD_LETTERS)
    letter = await events.event(record)

    assert len(record.value or b"") < 10_000
    assert isinstance(letter, DeadLetter)
    assert letter.value == b"?" * 950_000


async def test_event_that_is_large_without_its_bulk_fields_moves_whole(parts: Parts, events: EventLog) -> None:
    """A group with thousands of calls: the record is a claim, and the reader does not notice."""
    beat = Heartbeat(
        instance_id="i",
        service="s",
        boot_id="b",
        running=tuple(Running(session_id=f"session-{number}", attempt=1) for number in range(40_000)),
        at=1.0,
    )
    await events.send(Topic.FLEET, "i", beat)
    record = await last(parts, Topic.FLEET)

    assert len(record.value or b"") < 200
    assert await events.event(record) == beat
    assert await events.light(record) == beat


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

    async def get(self, ref: BlobRef) -> bytes:
        self._reads -= 1
        if self._reads >= 0:
            msg = "the store does not answer"
            raise self._error(msg)
        return await self._blobs.get(ref)


async def claimed(parts: Parts) -> Record:
    """Return a record whose event is in the blob store whole."""
    claim = msgspec.msgpack.encode(await parts.blobs.put(encode(LEFT)))
    await parts.bus.send([Outgoing(topic=Topic.FLEET, key="e", value=claim, headers=(Header(HEADER_CLAIM, b"1"),))])
    return await last(parts, Topic.FLEET)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two looks at the store."""
    monkeypatch.setattr(waited_module, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(waited_module, "MISSING_PAUSES_SECONDS", (0.0,) * 4)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(("reads", "damaged"), [(100, False), (4, True)])
async def test_blob_that_cannot_be_read_for_a_moment_costs_no_record(parts: Parts, reads: int, *, damaged: bool) -> None:
    """A store that is away is waited for as long as it takes; what is missing or damaged gets four more looks."""

    def failing() -> EventLog:
        return EventLog(parts.bus, Waited(Failing(parts.blobs, reads, damaged=damaged)))

    record = await claimed(parts)
    assert await failing().light(record) == LEFT
    assert await failing().event(record) == LEFT

    whole = large_call()
    await EventLog(parts.bus, parts.blobs).send(Topic.SESSIONS, SESSION, whole)
    record = await last(parts, Topic.SESSIONS, parts.bus.partition_of(Topic.SESSIONS, SESSION))
    assert await failing().event(record) == whole


async def test_store_that_is_away_makes_no_record_bad(parts: Parts) -> None:
    """Whoever does not wait is told so by an error that may pass, and no dead letter is written for it."""
    await EventLog(parts.bus, parts.blobs).send(Topic.SESSIONS, SESSION, large_call())
    call = await last(parts, Topic.SESSIONS, parts.bus.partition_of(Topic.SESSIONS, SESSION))
    away = EventLog(parts.bus, Waited(Failing(parts.blobs, 100), 0.0))

    for read, record in ((away.light, await claimed(parts)), (away.event, call)):
        with pytest.raises(NotRead):
            await read(record)


async def test_record_whose_blob_is_missing_is_bad(parts: Parts, events: EventLog) -> None:
    """A claim and a field alike: the reader gives the record up and goes on."""
    empty = EventLog(parts.bus, open_blobs("memory://"))
    claim = await claimed(parts)
    await events.send(Topic.SESSIONS, SESSION, large_call())
    call = await last(parts, Topic.SESSIONS, parts.bus.partition_of(Topic.SESSIONS, SESSION))

    for read, record in ((empty.light, claim), (empty.event, claim), (empty.event, call)):
        with pytest.raises(BadRecord, match="is not in"):
            await read(record)


async def test_records_without_their_blobs_count_as_bad_in_a_row(parts: Parts) -> None:
    """A lost blob store stops the service and does not empty the log, though the records themselves can be read."""
    await EventLog(parts.bus, parts.blobs).send(Topic.SESSIONS, SESSION, large_call())
    record = await last(parts, Topic.SESSIONS, parts.bus.partition_of(Topic.SESSIONS, SESSION))
    empty = EventLog(parts.bus, open_blobs("memory://"))

    for _ in range(49):
        with pytest.raises(BadRecord):
            await empty.event(record)
        await empty.dead_letter("reconstructor", record, "its blobs are missing")

    with pytest.raises(BadRecord):
        await empty.event(record)
    with pytest.raises(TooManyBadRecords):
        await empty.dead_letter("reconstructor", record, "its blobs are missing")
