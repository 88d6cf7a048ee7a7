"""How Evener talks to a Kafka broker: limits, names with their prefix, and what is done the same way with every client."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError
from aiokafka.structs import RecordMetadata
from msgspec import Struct

from evener.bus.port import BusError, BusUnreachable, Outgoing, Position
from evener.bus.records import partition_for

REQUEST_MS: Final = 10_000
CLOSE_SECONDS: Final = 5.0
"""A client that cannot say good-bye in this time is cut off."""
CUT_SHORT_SECONDS: Final = 2.0
"""So long a start that is cancelled may take to its end."""
BATCH_BYTES: Final = 256 * 1024
MAX_REQUEST_BYTES: Final = 1_048_576
"""Above the bus's limit of a record: a record that passed that one fails at the broker only, if the topic allows less."""


class Cluster(Struct, frozen=True, kw_only=True):
    """A broker address, the names under which this bus lives there, and how its topics are divided."""

    servers: str
    prefix: str
    """Before every topic, transactional id and group, so that several buses can share a cluster."""
    partitions: dict[str, int]
    """Topic (without prefix) to its number of partitions."""
    compacted: frozenset[str]

    def place(self, topic: str, partition: int) -> TopicPartition:
        """Return a partition by the name that the broker knows."""
        return TopicPartition(self.prefix + topic, partition)

    def partition_of(self, record: Outgoing) -> int:
        """Return the partition that a record belongs to."""
        if record.partition is not None:
            return record.partition
        return partition_for(record.key, self.partitions[record.topic])


@contextmanager
def reaching(servers: str) -> Iterator[None]:
    """Name a broker that does not answer."""
    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError, TimeoutError, OSError) as cause:
        msg = f"no broker answers at {servers}"
        raise BusUnreachable(msg) from cause


@contextmanager
def asking(servers: str, what: str) -> Iterator[None]:
    """Name what a broker was asked for in vain, and a broker that does not answer."""
    try:
        with reaching(servers):
            yield
    except KafkaError as cause:
        msg = f"{what}: {cause!r}"
        raise BusError(msg) from cause


async def started(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> None:
    """Start a client; when cancelled, let the start come to its end first: one that is cut short leaves its connection open for ever."""
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
        bootstrap_servers=cluster.servers,
        acks="all",
        enable_idempotence=True,
        transactional_id=None if transactional_id is None else cluster.prefix + transactional_id,
        transaction_timeout_ms=timeout_ms,
        request_timeout_ms=REQUEST_MS,
        max_batch_size=BATCH_BYTES,
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
    """Hand a record to a producer; the future tells where it stands."""
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
    """Return where an acknowledged record stands."""
    return Position(record.topic, metadata.partition, metadata.offset)


async def discard(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for what it could not deliver."""
    # stop() alone waits for the broker for as long as records are undelivered, and fails in many ways when they fail under it
    producer._message_accumulator.fail_all(KafkaError("producer was closed"))  # noqa: SLF001 - aiokafka has no other way
    try:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await producer.stop()
    finally:
        await _cut_off(producer.client)
        if producer._txn_manager is not None:  # noqa: SLF001
            _see(producer._txn_manager.wait_for_transaction_end())  # noqa: SLF001 - a fencing is noted there, too


async def _cut_off(client: AIOKafkaClient) -> None:
    """Close a client for good. A fenced producer leaves requests running, which would open connections that nobody closes."""

    async def none(*_: object, **__: object) -> None: ...

    client._get_conn = none  # noqa: SLF001 - aiokafka has no other way
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS), client._get_conn_lock:  # noqa: SLF001 - one that opens now is closed with the others
            pass
    await client.close()


def _see(future: "asyncio.Future[Any] | None") -> None:
    """Take note of what a future failed of, also if nobody waits for it any more."""
    if future is not None:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
