"""Consumer groups: who reads which partition, and where each group continues.

Groups only divide partitions; `follow` reads the records. The members of group G join under the name `G.members`, because a broker accepts
plain offset commits from outside only for a group without members. Members have names (Kafka's static membership): one that was killed and
comes back within the session time-out gets what it had, and nothing moves. One that stops leaves at once.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError

from evener.bus.kafka_assignor import FewestMoves
from evener.bus.kafka_client import Cluster, asking
from evener.bus.kafka_private import gave_up, heed_errors, leave_for_good
from evener.bus.kafka_reader import open_consumer
from evener.bus.port import BusError, GroupOffset, Membership, NotCommitted
from evener.runtime.backoff import Backoff

SESSION_MS: Final = 6000
HEARTBEAT_MS: Final = 1000
NEVER_MS: Final = 2**31 - 1
MEMBERS_SUFFIX: Final = ".members"
NO_COORDINATOR: Final = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)
"""Transient errors: a cluster's first group finds no coordinator, and after a broker's restart the coordinators load."""
COORDINATOR_SECONDS: Final = 30.0
COORDINATOR_PAUSES: Final = Backoff(0.1, 1.0)
HEED_SECONDS: Final = 1.0
"""The interval at which a member looks whether its coordination waits with an error."""

log = structlog.get_logger()


class KafkaMembership(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka ships no types
    """A `Membership` that hears of each rebalance from aiokafka."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.partitions: frozenset[int] = frozenset()
        self.dividing = True
        self._consumer = consumer
        self._assignments = 0
        self._told = 0
        self._assigned = asyncio.Event()

    async def changed(self) -> frozenset[int]:
        while self._told == self._assignments:
            self._assigned.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEED_SECONDS):
                    await self._assigned.wait()
            self._heed()
        self._told = self._assignments
        return self.partitions

    def _heed(self) -> None:
        """Let the coordination go on after an error. Raises BusError if it has ended."""
        try:
            heed_errors(self._consumer)
        except KafkaError as error:
            if gave_up(self._consumer):
                msg = f"the membership of a consumer group ended: {error!r}"
                raise BusError(msg) from error
            log.warning("membership_failed", error=repr(error))

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Note that a rebalance begins. aiokafka takes everything from every member, and most of it comes back: nothing is lost yet."""
        del revoked
        self.dividing = True

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Note that a rebalance ended."""
        self._consumer.pause(*assigned)  # this consumer divides and does not read
        self.partitions = frozenset(topic_partition.partition for topic_partition in assigned)
        self.dividing = False
        self._assignments += 1
        self._assigned.set()


def members_of(group: str) -> str:
    """Return the name under which the members of a group join."""
    return group + MEMBERS_SUFFIX


@asynccontextmanager
async def join(cluster: Cluster, group: str, topic: str, name: str) -> AsyncIterator[Membership]:
    """Be a member while the block runs. The first assignment comes some time after the block began."""
    async with open_consumer(
        cluster,
        group_id=cluster.prefix + members_of(group),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_interval_ms=NEVER_MS,
        group_instance_id=name,
        partition_assignment_strategy=(FewestMoves(cluster.partitions[topic]),),
    ) as consumer:
        member = KafkaMembership(consumer)
        consumer.subscribe([cluster.prefix + topic], listener=member)
        try:
            yield member
        finally:
            leave_for_good(consumer)


class GroupOffsets:
    """Reads and writes the offsets at which groups continue, without being a member of any."""

    def __init__(self, cluster: Cluster, admin: AIOKafkaAdminClient, stack: AsyncExitStack) -> None:
        """Consumers opened on the way are closed with `stack`."""
        self._cluster = cluster
        self._admin = admin
        self._stack = stack
        self._consumers: dict[str, AIOKafkaConsumer] = {}
        self._topic_partitions: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        self._busy = asyncio.Lock()

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the committed offset. Raises BusUnreachable, BusError."""
        topic_partition = self._cluster.topic_partition(topic, partition)
        with asking(self._cluster.servers, f"offsets of group {group}"):
            async with asyncio.timeout(COORDINATOR_SECONDS):
                for pause in COORDINATOR_PAUSES:
                    if (offset := await self._asked(group, topic_partition)) is not None:
                        return None if offset < 0 else offset
                    await asyncio.sleep(pause)
        raise AssertionError

    async def until_coordinated(self, group: str, topic: str) -> None:
        """Wait until a broker coordinates the group. aiokafka would ask ten times a second, and log an error each time."""
        await self.committed(group, topic, 0)

    async def commit(self, offsets: Iterable[GroupOffset]) -> None:
        """Commit offsets. Raises NotCommitted."""
        by_group: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for item in offsets:
            by_group[item.group][self._cluster.topic_partition(item.position.topic, item.position.partition)] = item.position.offset
        async with self._busy:
            for group, topic_partitions in by_group.items():
                consumer = await self._consumer(group, set(topic_partitions))
                try:
                    await consumer.commit(topic_partitions)
                except KafkaError as cause:
                    msg = f"offsets of group {group} were not committed: {cause!r}"
                    raise NotCommitted(msg) from cause

    async def _asked(self, group: str, topic_partition: TopicPartition) -> int | None:
        """Return the committed offset, -1 if there is none. None: the group's coordinator is missing, or still loading."""
        try:
            found = await self._admin.list_consumer_group_offsets(self._cluster.prefix + group, partitions=[topic_partition])
        except NO_COORDINATOR:
            return None
        if topic_partition not in found:  # aiokafka drops the error of an answer without partitions
            return None
        return int(found[topic_partition].offset)

    async def _consumer(self, group: str, topic_partitions: set[TopicPartition]) -> AIOKafkaConsumer:
        """Return the group's consumer. aiokafka lets it commit only what is assigned to it."""
        if group not in self._consumers:
            opened = open_consumer(self._cluster, group_id=self._cluster.prefix + group)
            self._consumers[group] = await self._stack.enter_async_context(opened)
        consumer = self._consumers[group]
        if not topic_partitions <= self._topic_partitions[group]:
            self._topic_partitions[group] |= topic_partitions
            consumer.assign(list(self._topic_partitions[group]))
            consumer.pause(*self._topic_partitions[group])
        return consumer
