"""Agrees on the topics of a deployment on Kafka: creates missing topics, and compares their partitions with the agreed number.

The first process of a deployment writes the number into `fleet`, where every other finds it. Kafka lets anybody add partitions to a topic,
and a program that counts them would then place keys differently. So no process of Evener counts them.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from msgspec import structs

from evener.bus import kafka_reader
from evener.bus.kafka_client import Cluster
from evener.bus.kafka_sender import Sender
from evener.bus.kafka_topics import FoundTopic, check_settings, find_topics, make_topics
from evener.bus.partition_count import settled
from evener.bus.port import BusError, Header, Outgoing
from evener.proto.codec import decode, encode, tag_of
from evener.proto.errors import ConfigError
from evener.proto.fleet import PartitionsAgreed
from evener.proto.topics import HEADER_TYPE, RetentionDays, Topic, TopicSpec

KAFKA_PARTITIONS: Final = 64
"""The number of partitions of a new deployment: that many gateways can share the work."""
AGREEMENT_KEY: Final = "partitions"
"""The key of the agreement in `fleet`."""


async def agree(
    admin: AIOKafkaAdminClient, cluster: Cluster, specs: Sequence[TopicSpec], wanted: int | None, days: RetentionDays | None
) -> dict[str, int]:
    """Return the number of partitions of each topic. Raises ConfigError where it differs, BusError for a missing topic without `days`.

    `wanted`: the configured number. `days`: how long topics that are made here keep records. None: no topic is made, nothing is written.
    """
    there = await find_topics(admin, [cluster.prefix + spec.name for spec in specs])
    agreed = await agreed_partitions(cluster) if cluster.prefix + Topic.FLEET in there else None
    found = {str(spec.name): there[name].partitions for spec in specs if (name := cluster.prefix + spec.name) in there}
    count = settled(specs, found, wanted=wanted, agreed=agreed, default=KAFKA_PARTITIONS, prefix=cluster.prefix)
    partitions = {spec: count if spec.partitioned else 1 for spec in specs}
    missing = [spec for spec in specs if spec.name not in found]
    if days is None:
        _refuse_missing(cluster, missing)
    else:
        _refuse_other_makers(cluster, missing, await make_topics(admin, cluster.prefix, partitions, days), partitions)
        await kafka_reader.until_led(structs.replace(cluster, partitions={str(spec.name): number for spec, number in partitions.items()}))
        await check_settings(admin, cluster.prefix, [spec for spec in specs if spec not in missing], days)
        if agreed is None and Topic.FLEET in {spec.name for spec in specs}:
            await _write(cluster, count)
    return {str(spec.name): number for spec, number in partitions.items()}


async def agreed_partitions(cluster: Cluster) -> int | None:
    """Return the number that the deployment's first process wrote into `fleet`, a topic that is there. None: none has written it."""
    topic_partition = cluster.topic_partition(Topic.FLEET, 0)
    async with kafka_reader.open_consumer(cluster) as consumer:
        start, end = (
            (await consumer.beginning_offsets([topic_partition]))[topic_partition],
            (await consumer.end_offsets([topic_partition]))[topic_partition],
        )
    if start == end:
        return None
    agreed = None
    async for record in kafka_reader.read(cluster, Topic.FLEET, 0, start, end):
        if record.key == AGREEMENT_KEY and record.value is not None and isinstance(event := decode(record.value), PartitionsAgreed):
            agreed = event.partitions
    return agreed


async def _write(cluster: Cluster, count: int) -> None:
    event = PartitionsAgreed(partitions=count, agreed_at=time.time())
    sender = Sender(cluster)
    try:
        await sender.send(
            [Outgoing(topic=Topic.FLEET, key=AGREEMENT_KEY, value=encode(event), headers=(Header(HEADER_TYPE, tag_of(event).encode()),))]
        )
    finally:
        await sender.aclose()


def _refuse_missing(cluster: Cluster, missing: Sequence[TopicSpec]) -> None:
    if missing:
        msg = f"there is no topic {cluster.prefix}{missing[0].name} at {cluster.servers}: start the services first"
        raise BusError(msg)


def _refuse_other_makers(
    cluster: Cluster, missing: Sequence[TopicSpec], there: Mapping[str, FoundTopic], partitions: Mapping[TopicSpec, int]
) -> None:
    """Raise ConfigError if another process, with another configuration, made the topics at the same time."""
    for spec in missing:
        name = cluster.prefix + spec.name
        if there[name].partitions != partitions[spec]:
            msg = f"another process has made topic {name} with {there[name].partitions} partitions, not {partitions[spec]}"
            raise ConfigError(msg)
