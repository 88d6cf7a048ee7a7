"""The rates of `make bench-bus`: call events of about 2 KB through one process, encoded and decoded, and commits at a steady rate.

A commit is that of a call: its record in a transaction of the partition's own producer, beside the others that end meanwhile.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from proofs.figures import percentile

from evener.blobs.open import MEMORY, open_blobs
from evener.bus.port import Bus, GroupOffset, Position, Record
from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.codec import encode
from evener.proto.sessions import CallClosed, Choice, FinishReason
from evener.proto.topics import Topic
from evener.service.events import EventLog

EVENTS: Final = 60_000
EVENT_BYTES: Final = range(1900, 2300)
TOKENS: Final = 120
AT_ONCE: Final = 250
"""Events that one send, or one transaction, carries."""
SENDERS: Final = 8
RATES: Final = (50, 300, 1000)
PACED_SECONDS: Final = 8.0
APPENDS: Final = 500
GROUP: Final = "bench"
SEED: Final = 7


def call_event(number: int) -> CallClosed:
    """Return the end of a call with TOKENS sampled tokens."""
    drawn = np.random.default_rng(number)
    choice = Choice(
        sampled_ids=pack_int32(drawn.integers(0, 49_152, TOKENS)),
        logprobs=pack_float32(-drawn.exponential(0.7, TOKENS)),
        versions=pack_int32(np.full(TOKENS, 3)),
        finish_reason=FinishReason.STOP,
        message=msgspec.json.encode({"role": "assistant", "content": "word " * 50}),
    )
    return CallClosed(
        session_id=f"run.task-{number}.0",
        attempt=1,
        call_id=f"c{number}",
        request_id=f"r{number}",
        choices=(choice,),
        answer_id=f"r{number}",
        answer_created=1_790_000_000,
        closed_at=1_790_000_000.0 + number,
    )


CALLS: Final = tuple(call_event(number) for number in range(1000))
"""The record that is written again and again: making events is not measured."""


class BusFigures(Struct, frozen=True, kw_only=True):
    """The rates of one bus with call events, in events a second, through one process."""

    event_bytes: int
    events_per_s: float
    """Encoded and appended."""
    consumed_per_s: float
    """Read back, checked and decoded."""
    transacted_per_s: float
    """Read, decoded, encoded again and written to another topic, with the offset read, in transactions."""
    append_ms_p50: float
    """One awaited append outside any transaction, one after another."""
    commit_ms: dict[str, dict[str, float]]
    """p50, p90 and p99 of a call's commit, by the rate (calls a second) at which calls end, spread over all partitions."""


async def measure_rates(bus: Bus) -> BusFigures:
    """Measure a bus that no other program uses."""
    size = len(encode(CALLS[0]))
    if size not in EVENT_BYTES:
        msg = f"a call event has {size} bytes, not about 2 KB"
        raise ValueError(msg)
    events = EventLog(bus, open_blobs(MEMORY))
    await _append(bus, events, EVENTS // 10)  # a broker's first seconds are those of its compiler
    starts = await _ends(bus, Topic.SESSIONS)
    return BusFigures(
        event_bytes=size,
        events_per_s=await _append(bus, events, EVENTS),
        consumed_per_s=await _consume(bus, events, starts),
        transacted_per_s=await _pass_on(bus, events, starts),
        append_ms_p50=await _append_ms(events),
        commit_ms=await _commit_ms(bus, events),
    )


async def _commit_ms(bus: Bus, events: EventLog) -> dict[str, dict[str, float]]:
    partitions = bus.partitions_of(Topic.SESSIONS)
    producers = [await bus.producer(f"gateway-{number}") for number in range(partitions)]
    drawn = random.Random(SEED)  # noqa: S311 - a seeded bench
    found = {}
    for rate in RATES:
        taken: list[float] = []

        async def commit(number: int, taken: list[float] = taken) -> None:
            partition = drawn.randrange(partitions)
            event = CALLS[number % len(CALLS)]
            began = time.perf_counter()
            record = await events.outgoing(Topic.SESSIONS, event.session_id, event, session_id=event.session_id, partition=partition)
            await producers[partition].commit([record])
            taken.append(time.perf_counter() - began)

        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(PACED_SECONDS * rate)):
                await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
                tasks.create_task(commit(number))
        found[str(rate)] = {f"p{share}": percentile(taken, share / 100) * 1000 for share in (50, 90, 99)}
    return found


async def _append_ms(events: EventLog) -> float:
    taken = []
    for number in range(APPENDS):
        event = CALLS[number % len(CALLS)]
        began = time.perf_counter()
        await events.send(Topic.SESSIONS, event.session_id, event, session_id=event.session_id)
        taken.append(time.perf_counter() - began)
    return percentile(taken, 0.5) * 1000


async def _append(bus: Bus, events: EventLog, count: int) -> float:
    numbers = iter(range(count))

    async def sender() -> None:
        while chunk := list(islice(numbers, AT_ONCE)):
            made = [CALLS[number % len(CALLS)] for number in chunk]
            await bus.send([await events.outgoing(Topic.SESSIONS, event.session_id, event, session_id=event.session_id) for event in made])

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return count / (time.perf_counter() - start)


async def _consume(bus: Bus, events: EventLog, starts: Sequence[int]) -> float:
    count = 0

    async def reader(partition: int) -> None:
        nonlocal count
        async for record in bus.read(Topic.SESSIONS, partition, starts[partition]):
            await events.event(record)
            count += 1

    start = time.perf_counter()
    await asyncio.gather(*(reader(partition) for partition in range(len(starts))))
    return count / (time.perf_counter() - start)


async def _pass_on(bus: Bus, events: EventLog, starts: Sequence[int]) -> float:
    """Read, decode, encode and write: outputs and offsets in one transaction, as the bridge does, one partition after the other."""
    count = 0

    async def stage(partition: int) -> None:
        nonlocal count
        producer = await bus.producer(f"bench-{partition}")
        async for records in _chunks(bus, partition, starts[partition]):
            made = [await events.event(record) for record in records]
            out = [await events.outgoing(Topic.BUILT, record.key, event) for record, event in zip(records, made, strict=True)]
            done = GroupOffset(GROUP, Position(Topic.SESSIONS, partition, records[-1].offset + 1))
            await producer.commit(out, [done])
            count += len(records)
        await producer.aclose()

    start = time.perf_counter()
    await asyncio.gather(*(stage(partition) for partition in range(len(starts))))
    return count / (time.perf_counter() - start)


async def _chunks(bus: Bus, partition: int, start: int) -> AsyncIterator[list[Record]]:
    chunk = []
    async for record in bus.read(Topic.SESSIONS, partition, start):
        chunk.append(record)
        if len(chunk) == AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _ends(bus: Bus, topic: Topic) -> list[int]:
    return [await bus.end(topic, partition) for partition in range(bus.partitions_of(topic))]
