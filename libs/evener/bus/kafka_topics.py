"""Makes Evener's topics on a Kafka cluster, once, whoever comes first."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from evener.bus.port import BusError, BusUnreachable
from evener.proto.errors import ConfigError
from evener.proto.topics import Topic, TopicSpec

REPLICAS: Final = 3
"""Where the cluster has as many brokers; then a record counts when two have it."""
COMPACTED: Final = {"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
"""By default a segment of 1 GB or 7 days is compacted: whoever starts would read a week of heartbeats."""
RECORD_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Record times are compared with each other, and those of the writers are of as many clocks as there are machines."""
OF_THE_TOPIC: Final = 1
"""What Kafka calls the source of a setting that was given for a topic itself."""
VISIBLE_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between looks at what was just made."""

log = structlog.get_logger()


async def make_topics(admin: AIOKafkaAdminClient, prefix: str, topics: Mapping[Topic, TopicSpec], partitions: int) -> dict[str, int]:
    """Make missing topics, wait until they have leaders, return their partitions. Raises ConfigError where their number differs."""
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
    """Have the broker stamp the records of topics that were made without it; whoever may not alter them is told what to set."""
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
    for pause in VISIBLE_PAUSES:
        there = await _described(admin)
        if names <= there.keys():
            return there
        await asyncio.sleep(pause)
    msg = f"{len(names)} topics were made and do not have leaders yet"
    raise BusUnreachable(msg)


async def _described(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """Return the topics whose partitions all have leaders. Asking for all of them: asking by name would make missing ones."""
    described = await admin.describe_topics()
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in described
        if topic["partitions"] and all(partition["leader"] >= 0 for partition in topic["partitions"])
    }
