"""Compares the topics and brokers of a Kafka cluster with what Evener needs, and applies the difference. Comparing changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import TopicAuthorizationFailedError
from msgspec import Struct

from evener.bus.broker_settings import broken
from evener.bus.kafka import open_admin
from evener.bus.kafka_agreement import KAFKA_PARTITIONS, agree, agreed_partitions
from evener.bus.kafka_client import Cluster, asking, compacted_of
from evener.bus.kafka_login import client_options
from evener.bus.kafka_security import PLAINTEXT, KafkaSecurity
from evener.bus.kafka_topics import VISIBLE, FoundTopic, alter, broker_settings, brokers, find_topics, topic_settings
from evener.bus.port import BusError
from evener.bus.topic_settings import differing, replicas_for, settings_of
from evener.proto.topics import TOPICS, RetentionDays, Topic, TopicSpec

LOOKS: Final = 8
"""How often altered settings are read again: brokers learn of them a moment later."""


class Difference(Struct, frozen=True, kw_only=True):
    """A setting of a topic or broker that differs from the one that Evener needs."""

    subject: str
    """A topic or a broker."""
    setting: str
    has: str | None
    """The present value. None: there is none."""
    wanted: str
    mend: str | None = None
    """How somebody else mends it. None: `evener topics apply` does."""


class Layout:
    """The topics and brokers of one deployment's cluster."""

    def __init__(self, admin: AIOKafkaAdminClient, cluster: Cluster, partitions: int | None, days: RetentionDays) -> None:
        self._admin = admin
        self._cluster = cluster
        self._partitions = partitions
        self._days = days

    async def differences(self) -> list[Difference]:
        """Return all differences. Raises BusError, BusUnreachable."""
        with asking(self._cluster.servers, "topics"):
            there = await find_topics(self._admin, [self._name(spec) for spec in TOPICS.values()])
            count = await self._count(there)
            replicas = replicas_for(await brokers(self._admin))
            found: list[Difference] = []
            for spec in TOPICS.values():
                found += self._of_topic(spec, there.get(self._name(spec)), count if spec.partitioned else 1, replicas)
            return [*found, *await self._of_settings(there), *await self._of_brokers()]

    async def apply(self) -> list[Difference]:
        """Make topics and set settings; return what is still different. Raises ConfigError for another number of partitions, BusError."""
        with asking(self._cluster.servers, "topics"):
            there = await find_topics(self._admin, [self._name(spec) for spec in TOPICS.values()])
            refused = [difference async for difference in self._altered(there)]
            await agree(self._admin, self._cluster, tuple(TOPICS.values()), self._partitions, self._days)
        for pause in islice(VISIBLE, LOOKS):
            left = await self.differences()
            if all(difference.mend is not None for difference in left):
                break
            await asyncio.sleep(pause)
        told = {(difference.subject, difference.setting) for difference in refused}
        return [*refused, *(difference for difference in left if (difference.subject, difference.setting) not in told)]

    async def _altered(self, there: Mapping[str, FoundTopic]) -> AsyncIterator[Difference]:
        """Set the settings that differ; yield those that were refused."""
        wanted = self._wanted(there)
        found, _ = await topic_settings(self._admin, [*wanted])
        for name, settings in found.items():
            differences = differing(wanted[name], settings.all)
            if differences and (why := await alter(self._admin, name, {key: value for key, (_, value) in differences.items()})) is not None:
                for key, (has, value) in differences.items():
                    yield Difference(subject=name, setting=key, has=has, wanted=value, mend=f"it was refused: {why}")

    async def _count(self, there: Mapping[str, FoundTopic]) -> int:
        """Return the number of partitions that this deployment has, or will have."""
        agreed = await self._agreed() if self._cluster.prefix + Topic.FLEET in there else None
        found = [there[self._name(spec)].partitions for spec in TOPICS.values() if spec.partitioned and self._name(spec) in there]
        return agreed or self._partitions or min(found, default=KAFKA_PARTITIONS)

    async def _agreed(self) -> int | None:
        """Return the number of partitions that the deployment agreed on. None: none yet, or it may not be read here."""
        try:
            return await agreed_partitions(self._cluster)
        except BusError as refused:
            if isinstance(refused.__cause__, TopicAuthorizationFailedError):
                return None
            raise

    def _of_topic(self, spec: TopicSpec, found: FoundTopic | None, count: int, replicas: int) -> Iterator[Difference]:
        name = self._name(spec)
        if found is None:
            yield Difference(subject=name, setting="topic", has=None, wanted=f"{count} partitions, {replicas} replicas")
            return
        if found.partitions != count and not (found.partitions > count == self._partitions):
            mend = "partitions cannot be taken away, and with more of them keys would move: docs/bus.md says what can be done"
            yield Difference(subject=name, setting="partitions", has=str(found.partitions), wanted=str(count), mend=mend)
        if found.replicas < replicas:
            mend = "the cluster's operator adds replicas, with kafka-reassign-partitions"
            yield Difference(subject=name, setting="replicas", has=str(found.replicas), wanted=str(replicas), mend=mend)

    async def _of_settings(self, there: Mapping[str, FoundTopic]) -> list[Difference]:
        wanted = self._wanted(there)
        found, refused = await topic_settings(self._admin, [*wanted])
        differences = [
            Difference(subject=name, setting=key, has=has, wanted=value)
            for name, settings in found.items()
            for key, (has, value) in differing(wanted[name], settings.all).items()
        ]
        return [*differences, *_not_told(refused, "DescribeConfigs on the topic")]

    async def _of_brokers(self) -> list[Difference]:
        found, refused = await broker_settings(self._admin)
        differences = [
            Difference(
                subject=f"broker {broker}",
                setting=limit.setting,
                has=has,
                wanted=str(limit),
                mend=f"the cluster's operator sets it in the broker's properties: {limit.why}",
            )
            for broker, limit, has in broken(self._days, {broker: settings.all for broker, settings in found.items()})
        ]
        return [*differences, *_not_told({f"broker {broker}": why for broker, why in refused.items()}, "DescribeConfigs on the cluster")]

    def _wanted(self, there: Mapping[str, FoundTopic]) -> dict[str, dict[str, str]]:
        """Return the wanted settings of the topics that are there."""
        specs = {self._name(spec): spec for spec in TOPICS.values() if self._name(spec) in there}
        return {name: settings_of(spec, self._days, there[name].replicas) for name, spec in specs.items()}

    def _name(self, spec: TopicSpec) -> str:
        return self._cluster.prefix + spec.name


def _not_told(refused: Mapping[str, str], right: str) -> Iterator[Difference]:
    for subject, why in refused.items():
        yield Difference(subject=subject, setting="settings", has=f"not told: {why}", wanted="to be told", mend=f"grant {right}")


@asynccontextmanager
async def open_layout(
    servers: str, prefix: str, partitions: int | None, days: RetentionDays, security: KafkaSecurity = PLAINTEXT
) -> AsyncIterator[Layout]:
    """Open a look at a cluster; nothing is made. `partitions`: the configured number, if any. Raises BusUnreachable, LoginRefused."""
    options = client_options(servers, security)
    cluster = Cluster(servers=servers, prefix=prefix, partitions={str(Topic.FLEET): 1}, compacted=compacted_of(TOPICS), options=options)
    async with open_admin(options) as admin:
        yield Layout(admin, cluster, partitions, days)
