"""All that Evener uses of aiokafka's inside. Each function says why no public way will do.

Checked with the versions in CHECKED; `tests/unit/bus/test_kafka_private.py` says what to do at an upgrade.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

CHECKED: Final = frozenset({"0.14.0"})
"""Versions of aiokafka that were read, and passed the contract on a real broker."""


def sender_ended(producer: AIOKafkaProducer) -> bool:
    """Return whether a started producer ended itself: fenced, or in a state in which it cannot prove that it is not.

    It says so to nobody: `begin_transaction` goes on, and `send` waits until its time is up.
    """
    return bool(producer._sender.sender_task.done())  # noqa: SLF001


def follows(old: AIOKafkaProducer, new: AIOKafkaProducer) -> bool:
    """Return whether `new` is the next holder of a transactional id after `old`: each initialisation raises the epoch by one.

    The broker tells id and epoch at the start; no property of a producer shows them.
    """
    before, after = old._txn_manager, new._txn_manager  # noqa: SLF001
    return bool(after.producer_id == before.producer_id and after.producer_epoch == before.producer_epoch + 1)


def fail_undelivered(producer: AIOKafkaProducer, error: KafkaError) -> None:
    """Fail all records that a producer has not delivered. `stop` alone waits for the broker for as long as there are some."""
    producer._message_accumulator.fail_all(error)  # noqa: SLF001


def transaction_end(producer: AIOKafkaProducer) -> "asyncio.Future[Any] | None":
    """Return the future of a producer's last transaction, in which a fencing is noted that nobody awaits. None: it has none."""
    return None if producer._txn_manager is None else producer._txn_manager.wait_for_transaction_end()  # noqa: SLF001


async def forbid_connections(client: AIOKafkaClient, seconds: float) -> None:
    """Let a client open no connection any more; wait for one that opens now. Its `close` closes those that are open.

    A fenced producer leaves requests running, which would open connections that nobody closes.
    """

    async def none(*_: object, **__: object) -> None: ...

    client._get_conn = none  # noqa: SLF001
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), client._get_conn_lock:  # noqa: SLF001
            pass
