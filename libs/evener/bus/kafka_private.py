"""All that Evener uses of aiokafka's inside. Each function says why no public way will do.

Checked with the versions in CHECKED_VERSIONS; `tests/unit/bus/test_kafka_private.py` says what to do at an upgrade.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

CHECKED_VERSIONS: Final = frozenset({"0.14.0"})
"""Versions of aiokafka that were read, and passed the contract on a real broker."""
EPOCH_BITS: Final = 16
"""The size of a producer's epoch."""


def sender_ended(producer: AIOKafkaProducer) -> bool:
    """Return whether a started producer ended itself: fenced, or in a state in which it cannot prove that it is not.

    It does not report this: `begin_transaction` continues, and `send` waits until its time is up.
    """
    return bool(producer._sender.sender_task.done())  # noqa: SLF001


def follows(old: AIOKafkaProducer, new: AIOKafkaProducer) -> bool:
    """Return whether `new` is the next holder of a transactional id after `old`: each initialisation raises the epoch by one.

    The broker tells id and epoch at the start; no property of a producer shows them.
    """
    before, after = old._txn_manager, new._txn_manager  # noqa: SLF001
    return bool(after.producer_id == before.producer_id and after.producer_epoch == before.producer_epoch + 1)


def epoch_of(producer: AIOKafkaProducer) -> int:
    """Return a number that is higher for each later holder of a started producer's transactional id.

    The broker raises the id's epoch, and draws a new producer id when that is used up. Neither is a property of a producer.
    """
    manager = producer._txn_manager  # noqa: SLF001
    return int(manager.producer_id) << EPOCH_BITS | int(manager.producer_epoch)


def leave_for_good(consumer: AIOKafkaConsumer) -> None:
    """Let the `stop` of a member with a name of its own tell the group that it leaves. aiokafka keeps its place, as if it had crashed."""
    consumer._coordinator._group_instance_id = None  # noqa: SLF001


def heed_errors(consumer: AIOKafkaConsumer) -> None:
    """Raise what stopped a member's coordination, if anything did, and let it try again: it waits until somebody has seen the error.

    Only the methods that read records say it, and a member that only divides never calls them.
    """
    consumer._coordinator.check_errors()  # noqa: SLF001


def gave_up(consumer: AIOKafkaConsumer) -> bool:
    """Return whether a member's coordination has ended for good."""
    return bool(consumer._coordinator._coordination_task.done())  # noqa: SLF001


def fail_undelivered(producer: AIOKafkaProducer, error: KafkaError) -> None:
    """Fail all records that a producer has not delivered. `stop` alone waits for the broker for as long as there are some.

    A batch that was never sent, such as that of a producer which was fenced first, also keeps the error for those who wait for a place in
    it. Nobody does, and asyncio would log an error that was never retrieved.
    """
    accumulator = producer._message_accumulator  # noqa: SLF001
    accumulator.fail_all(error)
    for batch in chain.from_iterable(accumulator._batches.values()):  # noqa: SLF001
        batch._drain_waiter.exception()  # noqa: SLF001


def transaction_end(producer: AIOKafkaProducer) -> "asyncio.Future[Any] | None":
    """Return the future of a producer's last transaction, in which a fencing is noted that nobody awaits. None: it has none."""
    return None if producer._txn_manager is None else producer._txn_manager.wait_for_transaction_end()  # noqa: SLF001


async def describe_topics(admin: AIOKafkaAdminClient, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the broker tells of topics, without their partitions of those that are missing.

    The admin's own request makes missing topics where the broker allows it, unless it asks for all of the cluster, perhaps thousands.
    """
    answer = await admin._send_request(MetadataRequest([*names], allow_auto_topic_creation=False))  # noqa: SLF001
    topics: list[dict[str, Any]] = answer.to_object()["topics"]
    return topics


async def forbid_connections(client: AIOKafkaClient, seconds: float) -> None:
    """Let a client open no connection any more; wait for one that opens now. Its `close` closes those that are open.

    A fenced producer leaves requests running, which would open connections that nobody closes.
    """

    async def none(*_: object, **__: object) -> None: ...

    client._get_conn = none  # noqa: SLF001
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), client._get_conn_lock:  # noqa: SLF001
            pass
