"""Groups straight from Kafka: `trajectories.merged`, read committed, by assignment, from given offsets."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from aiokafka.admin import AIOKafkaAdminClient

from evener.blobs.open import open_blobs
from evener.blobs.waited import ANSWER_SECONDS, Waited
from evener.bus.kafka import open_kafka
from evener.bus.kafka_client import REQUEST_MS, asking, started
from evener.bus.open import KAFKA
from evener.bus.port import BusError
from evener.client.views import Delivered
from evener.proto.errors import ConfigError
from evener.proto.topics import TOPICS, Topic
from evener.service.delivered import check_position, delivered
from evener.service.events import EventLog


async def delivered_by_kafka(url: str, blobs: str, position: Mapping[int, int], *, follow: bool) -> AsyncGenerator[Delivered, None]:
    """Yield groups from a position. Raises ConfigError, BusError, PositionUnknown."""
    named = KAFKA.fullmatch(url)
    if named is None or not blobs:
        msg = f"bus {url!r} with blobs {blobs!r}: write kafka://HOST:PORT[,HOST:PORT][?prefix=NAME], and where the deployment's blobs are"
        raise ConfigError(msg)
    servers, prefix = named["servers"], named["prefix"] or ""
    count = await _partitions(servers, prefix + Topic.MERGED)
    async with open_kafka(servers, {Topic.MERGED: TOPICS[Topic.MERGED]}, count, prefix) as bus:
        await check_position(bus, position)
        events = EventLog(bus, Waited(open_blobs(blobs), ANSWER_SECONDS))
        async with aclosing(delivered(bus, events, position, follow=follow)) as frames:
            async for frame in frames:
                yield frame


async def _partitions(servers: str, topic: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=REQUEST_MS)
    try:
        with asking(servers, f"partitions of {topic}"):
            await started(admin)
            described = await admin.describe_topics()  # asking for one by name would make it
    finally:
        await admin.close()
    found = next((len(one["partitions"]) for one in described if one["topic"] == topic), 0)
    if not found:
        msg = f"there is no topic {topic} at {servers}: start the services first"
        raise BusError(msg)
    return found
