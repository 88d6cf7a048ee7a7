"""What all Kafka clients share: limits, names with their prefix, starting and closing."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError
from aiokafka.structs import RecordMetadata
from msgspec import Struct

from evener.bus.kafka_private import fail_undelivered, forbid_connections, transaction_end
from evener.bus.port import BusError, BusUnreachable, Outgoing, Position
from evener.bus.records import partition_for
from evener.proto.topics import Topic, TopicSpec

REQUEST_MS: Final = 10_000
CLIENT_CLOSE_SECONDS: Final = 5.0
"""A client that cannot close cleanly within this time is cut off."""
CUT_SHORT_SECONDS: Final = 2.0
"""How long a cancelled start may take to finish."""
PRODUCER_BATCH_BYTES: Final = 256 * 1024
MAX_REQUEST_BYTES: Final = 1_048_576
"""Above the bus's limit of a record. A record within that limit fails only at the broker, if the topic allows less."""


class KafkaTimings(Struct, frozen=True, kw_only=True):
    """How long a broker is waited for."""

    send_seconds: float = 10.0
    """The time limit for the records of a send outside transactions."""
    acknowledge_seconds: float = 8.0
    """The time limit for the records of a transaction; less than the transaction's own."""


KAFKA_TIMINGS: Final = KafkaTimings()


class Cluster(Struct, frozen=True, kw_only=True):
    """A broker address, the prefix of this bus's names there, and the number of partitions of its topics."""

    servers: str
    prefix: str
    """The prefix of every topic, transactional id and group, so that several buses can share a cluster."""
    partitions: dict[str, int]
    """Topic (without the prefix) to its number of partitions."""
    compacted: frozenset[str]
    options: dict[str, Any]
    """The options that all clients share: how they connect, and as whom."""
    timings: KafkaTimings = KAFKA_TIMINGS

    def topic_partition(self, topic: str, partition: int) -> TopicPartition:
        """Return a partition under the broker's name."""
        return TopicPartition(self.prefix + topic, partition)

    def partition_of(self, record: Outgoing) -> int:
        """Return the partition that a record belongs to."""
        if record.partition is not None:
            return record.partition
        return partition_for(record.key, self.partitions[record.topic])


def compacted_of(topics: Mapping[Topic, TopicSpec]) -> frozenset[str]:
    """Return the names of the compacted ones among these topics."""
    return frozenset(str(spec.name) for spec in topics.values() if spec.compacted)


@contextmanager
def reaching(servers: str) -> Iterator[None]:
    """Raise BusUnreachable if no broker answers."""
    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError, TimeoutError, OSError) as cause:
        msg = f"no broker answers at {servers}"
        raise BusUnreachable(msg) from cause


@contextmanager
def asking(servers: str, what: str) -> Iterator[None]:
    """Raise BusError if a broker refuses a request, and BusUnreachable if none answers."""
    try:
        with reaching(servers):
            yield
    except KafkaError as cause:
        msg = f"{what}: {cause!r}"
        raise BusError(msg) from cause


async def started(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> None:
    """Start a client. A cancelled start is finished first: one that is cut short leaves its connection open for ever."""
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting], timeout=CUT_SHORT_SECONDS)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def start_producer(cluster: Cluster, transactional_id: str | None = None, timeout_ms: int = REQUEST_MS) -> AIOKafkaProducer:
    """Start an idempotent producer; with an id, a transactional one that fences the earlier holder. Raises BusUnreachable."""
    producer = AIOKafkaProducer(
        **cluster.options,
        acks="all",
        enable_idempotence=True,
        transactional_id=None if transactional_id is None else cluster.prefix + transactional_id,
        transaction_timeout_ms=timeout_ms,
        request_timeout_ms=REQUEST_MS,
        max_batch_size=PRODUCER_BATCH_BYTES,
        max_request_size=MAX_REQUEST_BYTES,
    )
    try:
        with reaching(cluster.servers):
            async with asyncio.timeout(REQUEST_MS / 1000):
                await started(producer)
    except BaseException:
        await discard(producer)
        raise
    return producer


async def put(producer: AIOKafkaProducer, cluster: Cluster, record: Outgoing) -> "asyncio.Future[RecordMetadata]":
    """Hand a record to a producer. The future returns the record's position."""
    future: asyncio.Future[RecordMetadata] = await producer.send(
        cluster.prefix + record.topic,
        value=record.value,
        key=record.key.encode(),
        partition=cluster.partition_of(record),
        headers=[(header.name, header.value) for header in record.headers],
    )
    _see(future)
    return future


def position_of(record: Outgoing, metadata: RecordMetadata) -> Position:
    """Return the position of an acknowledged record."""
    return Position(record.topic, metadata.partition, metadata.offset)


async def discard(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for records that it could not deliver."""
    fail_undelivered(producer, KafkaError("producer was closed"))  # stop() fails in many ways when they fail under it
    try:
        with suppress(Exception):
            async with asyncio.timeout(CLIENT_CLOSE_SECONDS):
                await producer.stop()
    finally:
        await forbid_connections(producer.client, CLIENT_CLOSE_SECONDS)
        await producer.client.close()
        _see(transaction_end(producer))


def _see(future: "asyncio.Future[Any] | None") -> None:
    """Retrieve the error of a future that nobody waits for any more."""
    if future is not None:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
