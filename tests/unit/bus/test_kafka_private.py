"""What Evener uses of aiokafka's inside is there, in the version that is installed."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator
from importlib.metadata import version

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from evener.bus.kafka_private import CHECKED_VERSIONS, epoch_of, fail_undelivered, follows, forbid_connections, transaction_end

UPGRADE = (
    "aiokafka {} was not checked. Read what evener/bus/kafka_private.py uses of it in its producer, sender, transaction manager, client; "
    "run `pytest -m kafka tests/contract/test_bus.py tests/contract/test_bus_kafka.py` on a real broker; then add it to CHECKED."
)


@pytest.fixture
async def producer() -> AsyncIterator[AIOKafkaProducer]:
    """A transactional producer that was not started: nothing listens at its address."""
    made = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", transactional_id="t", enable_idempotence=True)
    yield made
    await made.stop()


def test_installed_version_was_checked() -> None:
    """Private names keep no promises."""
    installed = version("aiokafka")
    assert installed in CHECKED_VERSIONS, UPGRADE.format(installed)


async def test_epoch_of_a_transactional_id_is_known(producer: AIOKafkaProducer) -> None:
    """Each initialisation raises it by one: the next holder is told from any other."""
    later = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", transactional_id="t", enable_idempotence=True)
    producer._txn_manager.set_pid_and_epoch(7, 3)
    later._txn_manager.set_pid_and_epoch(7, 4)
    assert follows(producer, later)
    assert not follows(later, producer)
    assert epoch_of(producer) < epoch_of(later)
    await later.stop()


async def test_end_of_a_transaction_is_a_future(producer: AIOKafkaProducer) -> None:
    """None before the first one, and for a producer without transactions."""
    assert transaction_end(producer) is None
    producer._txn_manager.set_pid_and_epoch(7, 3)
    await producer.begin_transaction()
    assert isinstance(transaction_end(producer), asyncio.Future)
    plain = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9")
    assert transaction_end(plain) is None
    await plain.stop()


async def test_client_opens_no_connection_when_that_is_forbidden(producer: AIOKafkaProducer) -> None:
    """Whatever it was asked for is refused without a word."""
    assert inspect.iscoroutinefunction(producer.client._get_conn), "aiokafka opens connections elsewhere now"
    assert isinstance(producer.client._get_conn_lock, asyncio.Lock)
    await forbid_connections(producer.client, 1.0)
    assert await producer.client._get_conn(0) is None


async def test_error_of_a_batch_that_was_never_sent_is_retrieved(producer: AIOKafkaProducer) -> None:
    """That of a fenced producer's first records, too: its sender fails them before they are sent."""
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unseen.append(f"{told['message']}: {told.get('exception')!r}"))
    producer._txn_manager.set_pid_and_epoch(7, 3)
    await producer.begin_transaction()
    accumulator = producer._message_accumulator
    sent = await accumulator.add_message(TopicPartition("t", 0), b"key", b"value", 1.0)
    accumulator.fail_all(ProducerFenced())
    fail_undelivered(producer, KafkaError("closed"))
    assert isinstance(sent.exception(), ProducerFenced)
    accumulator._batches.clear()
    del sent
    gc.collect()

    assert unseen == []


async def test_undelivered_records_can_be_failed_and_the_sender_shows_its_task(producer: AIOKafkaProducer) -> None:
    """The task is made by `start`, which needs a broker."""
    fail_undelivered(producer, KafkaError("closed"))
    assert isinstance(inspect.getattr_static(producer._sender, "sender_task"), property)
