"""The bus on Apache Kafka, by aiokafka: implements the port with a broker.

One broker survives the death of a process, but not a power cut. With three or more brokers, every topic has three replicas and a record
counts when two have it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from msgspec import structs

from evener.bus import kafka_group, kafka_reader
from evener.bus.kafka_agreement import agree
from evener.bus.kafka_client import (
    KAFKA_TIMINGS,
    REQUEST_MS,
    Cluster,
    KafkaTimings,
    asking,
    compacted_of,
    reaching,
    start_producer,
    started,
)
from evener.bus.kafka_group import GroupOffsets
from evener.bus.kafka_login import client_options, refusal
from evener.bus.kafka_producer import TRANSACTION_MS, KafkaProducer
from evener.bus.kafka_security import PLAINTEXT, KafkaSecurity
from evener.bus.kafka_sender import Sender
from evener.bus.kafka_topics import find_topics
from evener.bus.port import BusUnreachable, GroupOffset, Membership, Outgoing, Position, Reader, ReaderLag, Record
from evener.bus.readings import Readings
from evener.bus.records import check, partition_for
from evener.proto.topics import DEFAULT_RETENTION, TOPICS, RetentionDays, Topic, TopicSpec
from evener.runtime.retry import Dependency

BROKER_CHECK_SECONDS: Final = 5.0
AGREE_SECONDS: Final = 120.0
"""A broker that makes hundreds of partitions for the first time, while other processes start, may answer late."""


@asynccontextmanager
async def open_kafka(
    servers: str,
    topics: Mapping[Topic, TopicSpec] = TOPICS,
    partitions: int | None = None,
    prefix: str = "",
    *,
    days: RetentionDays | None = DEFAULT_RETENTION,
    security: KafkaSecurity = PLAINTEXT,
    timings: KafkaTimings = KAFKA_TIMINGS,
) -> AsyncIterator["KafkaBus"]:
    """Open the bus at `servers` (host:port,...). Raises BusUnreachable, LoginRefused, BusError, ConfigError.

    `partitions` None: as many as there are, 64 on a new bus. `days`: how long topics that are made here keep records. None: no topic is
    made, and nothing is written but what is sent.
    """
    async with AsyncExitStack() as stack:
        options = client_options(servers, security)
        admin = await stack.enter_async_context(open_admin(options))
        cluster = Cluster(
            servers=servers,
            prefix=prefix,
            partitions={str(Topic.FLEET): 1},
            compacted=compacted_of(topics),
            options=options,
            timings=timings,
        )

        async def agreeing() -> dict[str, int]:
            with asking(servers, "topics"):
                return await agree(admin, cluster, tuple(topics.values()), partitions, days)

        agreed = await Dependency("bus").ask(agreeing, AGREE_SECONDS)
        cluster = structs.replace(cluster, partitions=agreed)
        lookup = await stack.enter_async_context(kafka_reader.open_consumer(cluster))
        bus = KafkaBus(cluster, admin, lookup, stack)
        stack.push_async_callback(bus.aclose)
        yield bus


@asynccontextmanager
async def open_admin(options: Mapping[str, Any]) -> AsyncIterator[AIOKafkaAdminClient]:
    """Open the client for questions about the cluster, by the options of all clients. Raises BusUnreachable, LoginRefused."""
    admin = AIOKafkaAdminClient(**options, request_timeout_ms=REQUEST_MS)
    try:
        try:
            with asking(options["bootstrap_servers"], "the cluster"):
                await started(admin)
        except BusUnreachable as unreachable:
            raise await refusal(options) or unreachable from unreachable
        yield admin
    finally:
        await admin.close()


class KafkaBus:
    """A `Bus` on a Kafka cluster."""

    def __init__(self, cluster: Cluster, admin: AIOKafkaAdminClient, lookup: AIOKafkaConsumer, stack: AsyncExitStack) -> None:
        self._cluster = cluster
        self._admin = admin
        self._lookup = lookup
        self._sender = Sender(cluster)
        self._readings = Readings()
        self._offsets = GroupOffsets(cluster, admin, stack)
        self._producers: list[KafkaProducer] = []

    def partitions_of(self, topic: str) -> int:
        return self._cluster.partitions[topic]

    def partition_of(self, topic: str, key: str) -> int:
        return partition_for(key, self._cluster.partitions[topic])

    async def send(self, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        check(records, (), self._cluster.partitions)
        return await self._sender.send(records)

    async def producer(self, transactional_id: str) -> KafkaProducer:
        started = await start_producer(self._cluster, transactional_id, TRANSACTION_MS)
        producer = KafkaProducer(self._cluster, transactional_id, started)
        self._producers = [kept for kept in self._producers if not kept.ended]
        self._producers.append(producer)
        return producer

    async def end(self, topic: str, partition: int) -> int:
        topic_partition = self._cluster.topic_partition(topic, partition)
        with asking(self._cluster.servers, f"offsets of topic {topic}"):
            return int((await self._lookup.end_offsets([topic_partition]))[topic_partition])

    async def beginning(self, topic: str, partition: int) -> int:
        topic_partition = self._cluster.topic_partition(topic, partition)
        with asking(self._cluster.servers, f"offsets of topic {topic}"):
            return int((await self._lookup.beginning_offsets([topic_partition]))[topic_partition])

    async def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        end = await self.end(topic, partition)
        if start >= end:
            return
        async for record in kafka_reader.read(self._cluster, topic, partition, start, end):
            yield record

    async def follow(self, topic: str, partition: int, start: int, reader: Reader | None = None) -> AsyncIterator[Sequence[Record]]:
        with self._readings.open(reader, topic, partition, start) as reading:
            async with aclosing(kafka_reader.follow(self._cluster, reading, start)) as batches:
                async for batch in batches:
                    yield batch

    async def renew_offsets(self) -> None:
        for reading in self._readings:
            for group in reading.reader.groups:
                offset = await self.committed(group, reading.topic, reading.partition)
                if offset is not None:
                    await self._offsets.commit([GroupOffset(group, Position(reading.topic, reading.partition, offset))])

    async def lags(self) -> list[ReaderLag]:
        readings = {reading: self._cluster.topic_partition(reading.topic, reading.partition) for reading in self._readings}
        with asking(self._cluster.servers, "ends of topics"):
            ends = await self._lookup.end_offsets([*set(readings.values())]) if readings else {}
        return [
            ReaderLag(
                reader=reading.reader.name,
                topic=reading.topic,
                partition=reading.partition,
                records=max(0, int(ends[topic_partition]) - await reading.position()),
            )
            for reading, topic_partition in readings.items()
        ]

    async def last_values(self, topic: str, partition: int) -> dict[str, Record]:
        if topic not in self._cluster.compacted:
            msg = f"topic {topic} is not compacted"
            raise ValueError(msg)
        last: dict[str, Record] = {}
        async for record in self.read(topic, partition):
            last.pop(record.key, None)
            if record.value is not None:
                last[record.key] = record
        return last

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        return await self._offsets.committed(group, topic, partition)

    async def commit_offsets(self, offsets: Iterable[GroupOffset]) -> None:
        kept = tuple(offsets)
        check((), kept, self._cluster.partitions)
        await self._offsets.commit(kept)

    @asynccontextmanager
    async def join(self, group: str, topic: str, name: str) -> AsyncIterator[Membership]:
        await self._offsets.until_coordinated(kafka_group.members_of(group), topic)
        async with kafka_group.join(self._cluster, group, topic, name) as membership:
            yield membership

    async def surplus(self) -> dict[str, int]:
        used = {self._cluster.prefix + topic: count for topic, count in self._cluster.partitions.items()}
        with asking(self._cluster.servers, "topics"):
            there = await find_topics(self._admin, used)
        return {name: there[name].partitions for name, count in used.items() if name in there and there[name].partitions > count}

    async def check(self) -> None:
        with reaching(self._cluster.servers):
            async with asyncio.timeout(BROKER_CHECK_SECONDS):
                await self._admin.describe_cluster()

    async def aclose(self) -> None:
        """Finish the work in progress and release all transactional ids."""
        await asyncio.gather(*(producer.aclose() for producer in self._producers), self._sender.aclose())
