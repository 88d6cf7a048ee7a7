"""Readers of committed records: consumers with assigned partitions that belong to no group."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaError, KafkaTimeoutError

from evener.bus.kafka_client import REQUEST_MS, Cluster, reaching, started
from evener.bus.port import BusError, Header, Record
from evener.bus.readings import READ_RECORDS, Reading

MARKER_MS: Final = 20
"""The time after which a reader looks again: a fetch that holds only markers moves the position without waking the reader."""
LED_SECONDS: Final = 60.0
"""The time for the brokers to lead new partitions, which a busy machine takes for hundreds of them."""
IDLE_MS: Final = 3_600_000
FOLLOW: Final = {"fetch_max_wait_ms": 5000, "consumer_timeout_ms": 5000}
"""How long a follower's request waits at the broker for new records, and aiokafka for anything to do: a record ends both. By default they
wait 0.5 and 0.2 s, and a process that follows hundreds of idle partitions is never idle."""


@asynccontextmanager
async def open_consumer(cluster: Cluster, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Start a consumer that sees committed records only. Raises BusUnreachable."""
    consumer = AIOKafkaConsumer(
        **cluster.options,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        request_timeout_ms=REQUEST_MS,
        **options,
    )
    try:
        with reaching(cluster.servers):
            await started(consumer)
        yield consumer
    finally:
        await consumer.stop()


async def until_led(cluster: Cluster) -> None:
    """Wait until brokers lead all partitions of the cluster's topics. They do so a moment after a topic was made. Raises TimeoutError."""
    topic_partitions = [cluster.topic_partition(topic, number) for topic, count in cluster.partitions.items() for number in range(count)]
    async with open_consumer(cluster) as consumer, asyncio.timeout(LED_SECONDS):
        while True:
            with suppress(KafkaTimeoutError):
                await consumer.end_offsets(topic_partitions)
                return


async def read(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> AsyncIterator[Record]:
    """Read from `start` until the position is at `end`. Markers and aborted records leave gaps, so there may be no record."""
    topic_partition = cluster.topic_partition(topic, partition)
    async with open_consumer(cluster) as consumer:
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, start)
        while await consumer.position(topic_partition) < end:
            for record in await _batch(consumer, topic, partition, MARKER_MS):
                if record.offset < end:
                    yield record


async def follow(cluster: Cluster, reading: Reading, start: int) -> AsyncGenerator[Sequence[Record], None]:
    """Read from `start` for ever. While no broker answers, it waits."""
    topic, partition = reading.topic, reading.partition
    topic_partition = cluster.topic_partition(topic, partition)
    async with open_consumer(cluster, **FOLLOW) as consumer:
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, start)
        while True:
            with reading.waiting(lambda: consumer.position(topic_partition)):  # past markers and aborted records
                batch = await _batch(consumer, topic, partition, IDLE_MS)
            if batch:
                reading.handed_out(batch[0].offset)
                yield batch
                reading.handed_out(batch[-1].offset + 1)


async def _batch(consumer: AIOKafkaConsumer, topic: str, partition: int, timeout_ms: int) -> list[Record]:
    try:
        fetched = await consumer.getmany(timeout_ms=timeout_ms, max_records=READ_RECORDS)
    except KafkaError as cause:
        msg = f"partition {partition} of topic {topic} was not read: {cause!r}"
        raise BusError(msg) from cause
    return [_record(topic, raw) for batch in fetched.values() for raw in batch]


def _record(topic: str, raw: ConsumerRecord) -> Record:
    return Record(
        topic=topic,
        partition=raw.partition,
        offset=raw.offset,
        key=(raw.key or b"").decode(errors="replace"),
        value=raw.value,
        headers=tuple(Header(name, value) for name, value in raw.headers),
        timestamp_ms=raw.timestamp,
    )
