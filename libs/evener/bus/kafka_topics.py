"""Looks at Evener's topics on a Kafka cluster, makes those that are missing, and alters settings."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code
from msgspec import Struct

from evener.bus.kafka_private import describe_topics
from evener.bus.port import BusError, BusUnreachable
from evener.bus.topic_settings import VITAL, differing, replicas_for, settings_of
from evener.proto.errors import ConfigError
from evener.proto.topics import RetentionDays, TopicSpec
from evener.runtime.backoff import Backoff

OF_THE_TOPIC: Final = 1
"""Kafka's code for a setting that was made for the topic itself."""
VISIBLE: Final = Backoff(0.02, 5.0)
"""The pauses between looks at topics that were just created."""
VISIBLE_LOOKS: Final = 12
HOW_TO_APPLY: Final = "`evener topics diff` shows all, and `evener topics apply` sets them"

log = structlog.get_logger()


class FoundTopic(Struct, frozen=True, kw_only=True):
    """A topic as the cluster has it."""

    partitions: int
    replicas: int


class FoundSettings(Struct, frozen=True, kw_only=True):
    """The settings of a topic or of a broker."""

    all: dict[str, str]
    own: dict[str, str]
    """The settings made for the topic itself. The broker resets those that an alteration does not name again."""


async def find_topics(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, FoundTopic]:
    """Return those of these topics that are there, and whose partitions all have leaders. Raises BusError where this may not be asked."""
    described = await describe_topics(admin, [*names])
    for topic in described:
        if topic["error_code"] == TopicAuthorizationFailedError.errno:
            msg = f"topic {topic['topic']} may not be described by this login: grant it Describe on the topic"
            raise BusError(msg)
    return {
        topic["topic"]: FoundTopic(partitions=len(partitions), replicas=min(len(partition["replicas"]) for partition in partitions))
        for topic in described
        if (partitions := topic["partitions"]) and all(partition["leader"] >= 0 for partition in partitions)
    }


async def make_topics(
    admin: AIOKafkaAdminClient, prefix: str, partitions: Mapping[TopicSpec, int], days: RetentionDays
) -> dict[str, FoundTopic]:
    """Create the topics that are missing and return all, once each partition has a leader. Raises BusError, BusUnreachable."""
    there = await find_topics(admin, [prefix + spec.name for spec in partitions])
    missing = [spec for spec in partitions if prefix + spec.name not in there]
    if not missing:
        return there
    replicas = replicas_for(await brokers(admin))
    new = [NewTopic(prefix + spec.name, partitions[spec], replicas, topic_configs=settings_of(spec, days, replicas)) for spec in missing]
    _refuse_errors(await admin.create_topics(new))
    return await _visible(admin, {prefix + spec.name for spec in partitions})


async def check_settings(admin: AIOKafkaAdminClient, prefix: str, specs: Iterable[TopicSpec], days: RetentionDays) -> None:
    """Log what differs from the wanted settings. Raises ConfigError where records would be lost, or never deleted."""
    named = {prefix + spec.name: spec for spec in specs}
    there = await find_topics(admin, named)
    settings, refused = await topic_settings(admin, [*named])
    if refused:
        log.warning("topics_not_compared", refused=refused)
    for name, found in settings.items():
        differences = differing(settings_of(named[name], days, there[name].replicas), found.all)
        if VITAL in differences:
            has, wanted = differences[VITAL]
            msg = f"topic {name} has {VITAL}={has}, not {wanted}: {HOW_TO_APPLY}"
            raise ConfigError(msg)
        if differences:
            log.warning("topic_differs", topic=name, has_and_wanted=differences, mend=HOW_TO_APPLY)


async def brokers(admin: AIOKafkaAdminClient) -> int:
    """Return the number of brokers of the cluster."""
    return len((await admin.describe_cluster())["brokers"])


async def topic_settings(admin: AIOKafkaAdminClient, names: Sequence[str]) -> tuple[dict[str, FoundSettings], dict[str, str]]:
    """Return the settings of topics, and why those of others are not told."""
    return await _settings(admin, [ConfigResource(ConfigResourceType.TOPIC, name) for name in names])


async def broker_settings(admin: AIOKafkaAdminClient) -> tuple[dict[str, FoundSettings], dict[str, str]]:
    """Return the settings of every broker by its id, and why those of others are not told."""
    ids = [str(broker["node_id"]) for broker in (await admin.describe_cluster())["brokers"]]
    return await _settings(admin, [ConfigResource(ConfigResourceType.BROKER, broker) for broker in ids])


async def alter(admin: AIOKafkaAdminClient, name: str, settings: Mapping[str, str]) -> str | None:
    """Set settings of a topic and leave its others. Return why it was refused. None: it was not."""
    found, refused = await topic_settings(admin, [name])
    if name in refused:
        return refused[name]
    resource = ConfigResource(ConfigResourceType.TOPIC, name, found[name].own | dict(settings))
    for response in await admin.alter_configs([resource]):
        for code, message, *_ in response.resources:
            if code:
                return _why(code, message)
    return None


async def _settings(admin: AIOKafkaAdminClient, resources: Sequence[ConfigResource]) -> tuple[dict[str, FoundSettings], dict[str, str]]:
    found: dict[str, FoundSettings] = {}
    refused: dict[str, str] = {}
    for response in await admin.describe_configs(list(resources)) if resources else ():
        for code, message, _, name, entries in response.resources:
            if code:
                refused[name] = _why(code, message)
            else:
                told = {entry[0]: entry[1] for entry in entries if entry[1] is not None}  # None: a secret
                own = {entry[0]: entry[1] for entry in entries if entry[3] == OF_THE_TOPIC}
                found[name] = FoundSettings(all=told, own=own)
    return found, refused


def _refuse_errors(response: Any) -> None:
    for name, code, message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            msg = f"topic {name} could not be made: {_why(code, message)}"
            raise BusError(msg)


def _why(code: int, message: str | None) -> str:
    return f"{for_code(code).__name__} {message or ''}".rstrip()


async def _visible(admin: AIOKafkaAdminClient, names: set[str]) -> dict[str, FoundTopic]:
    """Wait until all topics are known with a leader for each partition."""
    for pause in islice(VISIBLE, VISIBLE_LOOKS):
        there = await find_topics(admin, names)
        if names <= there.keys():
            return there
        await asyncio.sleep(pause)
    msg = f"{len(names)} topics were made and do not have leaders yet"
    raise BusUnreachable(msg)
