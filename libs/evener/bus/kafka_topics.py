"""Creates Evener's topics on a Kafka cluster; the first process to start does it."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from evener.bus.port import BusError, BusUnreachable
from evener.proto.errors import ConfigError
from evener.proto.topics import Topic, TopicSpec
from evener.runtime.retry import Backoff

REPLICAS: Final = 3
"""The number of replicas if the cluster has as many brokers. A record then counts when two have it."""
COMPACTED: Final = {"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
"""Settings of compacted topics. By default a segment of 1 GB or 7 days is compacted, and a starting process would read a week of
heartbeats."""
RECORD_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Lets the broker stamp records. Record times are compared with each other, and the writers have as many clocks as machines."""
OF_THE_TOPIC: Final = 1
"""Kafka's code for a setting that was made for the topic itself."""
VISIBLE: Final = Backoff(0.02, 5.0)
"""The pauses between looks at topics that were just created."""
VISIBLE_LOOKS: Final = 10

log = structlog.get_logger()


async def make_topics(admin: AIOKafkaAdminClient, prefix: str, topics: Mapping[Topic, TopicSpec], partitions: int) -> dict[str, int]:
    """Create missing topics, wait until they have leaders, return their partitions. Raises ConfigError if their number differs."""
    wanted = {str(spec.name): partitions if spec.partitioned else 1 for spec in topics.values()}
    there = await _described(admin)
    missing = [spec for spec in topics.values() if prefix + spec.name not in there]
    if missing:
        brokers = len((await admin.describe_cluster())["brokers"])
        _refuse_errors(await admin.create_topics([_new_topic(prefix, spec, wanted[spec.name], brokers) for spec in missing]))
        there = await _visible(admin, {prefix + name for name in wanted})
    for name, count in wanted.items():
        if there[prefix + name] != count:
            msg = f"topic {prefix}{name} has {there[prefix + name]} partitions, not {count}: keys would move"
            raise ConfigError(msg)
    await _stamp(admin, [prefix + spec.name for spec in topics.values() if spec not in missing])
    return wanted


def _new_topic(prefix: str, spec: TopicSpec, partitions: int, brokers: int) -> NewTopic:
    replicas = min(REPLICAS, brokers)
    configs = RECORD_TIME | {"min.insync.replicas": str(max(1, replicas - 1))}
    configs |= COMPACTED if spec.compacted else {"cleanup.policy": "delete"}
    return NewTopic(prefix + spec.name, partitions, replicas, topic_configs=configs)


async def _stamp(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Let the broker stamp the records of older topics. A process that may not alter them logs what to set."""
    altered = []
    for response in await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]) if names else ():
        for code, message, _, name, entries in response.resources:
            settings = {entry[0]: entry[1] for entry in entries}
            if code:
                _tell_unstamped(name, code, message)
            elif any(settings[key] != value for key, value in RECORD_TIME.items()):
                own = {entry[0]: entry[1] for entry in entries if entry[3] == OF_THE_TOPIC}  # what is not named anew is reset
                altered.append(ConfigResource(ConfigResourceType.TOPIC, name, own | RECORD_TIME))
    for response in await admin.alter_configs(altered) if altered else ():
        for code, message, _, name in response.resources:
            if code:
                _tell_unstamped(name, code, message)
            else:
                log.info("topic_altered", topic=name, settings=RECORD_TIME)


def _tell_unstamped(name: str, code: int, message: str | None) -> None:
    why = f"{for_code(code).__name__} {message or ''}".rstrip()
    log.warning("record_times_may_be_the_writers", topic=name, error=why, to_set=RECORD_TIME)


def _refuse_errors(response: Any) -> None:
    for name, code, message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            msg = f"topic {name} could not be made: {for_code(code).__name__} {message or ''}".rstrip()
            raise BusError(msg)


async def _visible(admin: AIOKafkaAdminClient, names: set[str]) -> dict[str, int]:
    """Wait until all topics are known with a leader for each partition."""
    for pause in islice(VISIBLE, VISIBLE_LOOKS):
        there = await _described(admin)
        if names <= there.keys():
            return there
        await asyncio.sleep(pause)
    msg = f"{len(names)} topics were made and do not have leaders yet"
    raise BusUnreachable(msg)


async def _described(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """Return the topics whose partitions all have leaders. It asks for all topics: asking by name would create missing ones."""
    described = await admin.describe_topics()
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in described
        if topic["partitions"] and all(partition["leader"] >= 0 for partition in topic["partitions"])
    }
