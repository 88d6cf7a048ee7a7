"""What happens on a real broker only: records that it refuses, transactions that stay open, owners that change in between."""

import asyncio
import gc
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import ConnectionGroup
from aiokafka.errors import InvalidTimestampError
from tests.support.waiting import eventually

from evener.bus.kafka import KafkaBus, open_kafka
from evener.bus.kafka_client import Cluster, KafkaTimings, discard, start_producer
from evener.bus.kafka_login import client_options
from evener.bus.kafka_security import PLAINTEXT
from evener.bus.port import BusUnreachable, Fenced, GroupOffset, NotCommitted, Outgoing, Position, RecordTooLarge
from evener.proto.topics import TOPICS, Topic
from evener.runtime.faults import at_point

pytestmark = pytest.mark.kafka

CALLS = Topic.SESSIONS
FEW = {CALLS: TOPICS[CALLS]}
SMALL_LIMIT = 20_000
SECONDS = 120.0
"""What a test waits for anything."""
SILENT_SECONDS = 5.0
"""How long a broker is waited for that is silent: more than one needs that works, on any machine."""
KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"


def record(value: bytes, partition: int = 0) -> Outgoing:
    return Outgoing(topic=CALLS, key="s1", value=value, partition=partition)


async def values(bus: KafkaBus, partition: int = 0) -> list[bytes | None]:
    await (await bus.producer("gateway-0")).aclose()
    async with asyncio.timeout(SECONDS):
        return [found.value async for found in bus.read(CALLS, partition)]


def cluster_of(servers: str, prefix: str) -> Cluster:
    """Return what a producer beside a bus needs to know."""
    options = client_options(servers, PLAINTEXT)
    return Cluster(servers=servers, prefix=prefix, partitions={CALLS: 4}, compacted=frozenset(), options=options)


@pytest.fixture
def prefix() -> str:
    return f"t{secrets.token_hex(4)}."


@pytest.fixture
async def bus(kafka_servers: str, prefix: str) -> AsyncIterator[KafkaBus]:
    async with open_kafka(kafka_servers, FEW, 4, prefix) as bus:
        yield bus


@pytest.fixture
async def strict_bus(kafka_servers: str, prefix: str) -> AsyncIterator[KafkaBus]:
    """A bus whose broker takes less than the bus's own limit, so that records fail inside a transaction."""
    async with open_kafka(kafka_servers, FEW, 4, prefix) as bus:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
        await admin.start()
        limit = {"max.message.bytes": str(SMALL_LIMIT)}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, prefix + CALLS, limit)])
        await admin.close()
        async with asyncio.timeout(SECONDS):
            with suppress(RecordTooLarge):
                while True:  # the broker keeps to its new limit a moment later
                    await bus.send([record(bytes(SMALL_LIMIT * 2), 3)])
        yield bus


async def test_record_that_the_broker_refuses_fails_its_own_commit_alone(strict_bus: KafkaBus) -> None:
    """aiokafka would commit the transaction without it and without an error; here its mates are there, once, and it is told."""
    producer = await strict_bus.producer("gateway-0")
    commits = [producer.commit([record(b"%d" % number)]) for number in range(8)]
    commits.insert(3, producer.commit([record(b"with it"), record(bytes(SMALL_LIMIT * 2))]))
    outcomes = await asyncio.gather(*commits, return_exceptions=True)

    assert isinstance(outcomes.pop(3), RecordTooLarge)
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    await producer.commit([record(b"the same holder goes on")])
    assert await values(strict_bus) == [*(b"%d" % number for number in range(8)), b"the same holder goes on"]


async def test_record_that_the_broker_refuses_does_not_stop_later_plain_ones(strict_bus: KafkaBus) -> None:
    """An idempotent producer is useless after a failed batch; it is replaced, and what failed beside it is sent again."""
    await strict_bus.send([record(b"0")])
    sends = [strict_bus.send([record(b"%d" % number)]) for number in range(1, 6)]
    sends.insert(2, strict_bus.send([record(bytes(SMALL_LIMIT * 2))]))
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    await strict_bus.send([record(b"6")])

    assert isinstance(outcomes.pop(2), RecordTooLarge)
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert sorted(await values(strict_bus)) == [b"%d" % number for number in range(7)]  # type: ignore[type-var] # no tombstones


async def test_take_over_while_a_producer_is_replaced_fences_the_replaced_one(
    strict_bus: KafkaBus, kafka_servers: str, prefix: str
) -> None:
    """Between the abort and the new start somebody else may have taken the id: going on would write under stale state."""

    async def take_over() -> None:
        await discard(await start_producer(cluster_of(kafka_servers, prefix), "gateway-0", 60_000))

    producer = await strict_bus.producer("gateway-0")
    with at_point("bus.replacing", take_over):
        outcomes = await asyncio.gather(
            producer.commit([record(bytes(SMALL_LIMIT * 2))]), producer.commit([record(b"stale")]), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {Fenced}
    assert await values(strict_bus) == []


async def test_open_transaction_of_a_dead_producer_hides_but_does_not_hang(bus: KafkaBus, kafka_servers: str, prefix: str) -> None:
    """Reading to the end stops before it; when it has been ended, later records appear and its own never do."""
    cluster = cluster_of(kafka_servers, prefix)
    dead = await start_producer(cluster, "somebody", 60_000)
    await bus.send([record(b"before")])
    await dead.begin_transaction()
    await dead.send_and_wait(prefix + CALLS, value=b"never committed", key=b"s1", partition=0)
    await discard(dead)
    await bus.send([record(b"after")])

    assert await values(bus) == [b"before"]
    await discard(await start_producer(cluster, "somebody", 60_000))
    async with asyncio.timeout(SECONDS):
        async for batch in bus.follow(CALLS, 0, 0):
            if batch[-1].value == b"after":
                break
    assert await values(bus) == [b"before", b"after"]


async def test_take_over_aborts_what_the_earlier_holder_left_open(bus: KafkaBus, kafka_servers: str, prefix: str) -> None:
    """Half of a transaction of a killed owner is never read, and its successor does not wait for a time-out."""
    cluster = cluster_of(kafka_servers, prefix)
    killed = await start_producer(cluster, "gateway-0", 60_000)
    await killed.begin_transaction()
    await killed.send_and_wait(prefix + CALLS, value=b"half", key=b"s1", partition=0)

    successor = await bus.producer("gateway-0")
    await successor.commit([record(b"whole")])
    await discard(killed)
    assert await values(bus) == [b"whole"]


async def test_two_members_divide_the_partitions_and_one_inherits_them(bus: KafkaBus) -> None:
    """What a leaving instance served is given to the one that stays."""
    async with asyncio.timeout(SECONDS), bus.join("gateways", CALLS, "stays") as stays:
        async with bus.join("gateways", CALLS, "leaves") as leaves:
            await eventually(lambda: len(stays.partitions) == len(leaves.partitions) == 2)
            assert stays.partitions | leaves.partitions == frozenset(range(4))
        while await stays.changed() != frozenset(range(4)):
            pass


@contextmanager
def own_broker() -> Iterator[tuple[str, int]]:
    """A broker that a test may stop: its address, and the pid of its Java process."""
    with subprocess.Popen([sys.executable, str(KAFKA), "run", "--with-parent"], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        address = script.stdout.readline().strip()
        try:
            yield address, int(Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()[-1])
        finally:
            script.terminate()


async def stop(process: int) -> None:
    """Stop a process; return when none of its threads runs any more: until then it may still answer."""
    os.kill(process, signal.SIGSTOP)
    await eventually(lambda: stopped(process))


def stopped(process: int) -> bool:
    try:
        states = [stat.read_text().rpartition(") ")[2][0] for stat in Path(f"/proc/{process}/task").glob("*/stat")]
    except FileNotFoundError:  # a thread ended meanwhile
        return False
    return set(states) == {"T"}


async def test_silent_broker_fails_calls_in_time_and_the_holder_continues_afterwards(
    kafka_servers: str,
) -> None:
    """Log down: callers are told that nothing was committed, which stays true, and nobody has to take over."""
    assert kafka_servers  # the tools for a broker are here
    timings = KafkaTimings(acknowledge_seconds=SILENT_SECONDS, send_seconds=SILENT_SECONDS)
    with own_broker() as (servers, java):
        async with asyncio.timeout(SECONDS), open_kafka(servers, FEW, timings=timings) as bus:
            producer = await bus.producer("gateway-0")
            await producer.commit([record(b"before")])
            await bus.send([record(b"before", 1)])
            await stop(java)
            commits = [producer.commit([record(b"never %d" % number)]) for number in range(3)]
            lost = await asyncio.gather(*commits, bus.send([record(b"perhaps")]), return_exceptions=True)
            os.kill(java, signal.SIGCONT)

            assert {type(outcome) for outcome in lost} == {NotCommitted}
            await producer.commit([record(b"after")])
            await bus.send([record(b"after", 1)])
            assert [value for value in await values(bus) if value != b"perhaps"] == [b"before", b"after"]


async def test_first_question_for_an_offset_on_a_new_cluster_waits_for_its_coordinator(kafka_servers: str) -> None:
    """The broker makes the topic of all offsets when somebody first asks for one, and says until then that it has no coordinator."""
    assert kafka_servers  # the tools for a broker are here
    with own_broker() as (servers, _):
        async with asyncio.timeout(SECONDS), open_kafka(servers, FEW) as bus:
            assert await asyncio.gather(*(bus.committed(f"group-{number}", CALLS, 0) for number in range(8))) == [None] * 8


async def test_broker_that_is_not_there_is_named() -> None:
    """One line with the address, not a stack of socket errors."""
    with pytest.raises(BusUnreachable, match=r"no broker answers at 127\.0\.0\.1:9"):
        async with open_kafka("127.0.0.1:9"):
            pass


async def test_connection_that_opens_while_its_producer_is_closed_is_closed_too(bus: KafkaBus) -> None:
    """A fenced producer leaves requests running, and each may open a connection after all were closed: nobody would close that one."""
    producer = await start_producer(bus._cluster)
    client = producer.client
    opening = asyncio.ensure_future(client.ready(client.get_random_node(), group=ConnectionGroup.COORDINATION))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(discard(producer))
    await asyncio.sleep(0)
    await late
    await asyncio.gather(opening, client.ready(client.get_random_node(), group=ConnectionGroup.COORDINATION), return_exceptions=True)

    assert [conn for conn in client._conns.values() if conn.connected()] == []


@pytest.mark.parametrize("records", [[], [record(b"late")]], ids=["offsets alone", "a record that is never sent"])
async def test_fenced_commit_leaves_no_error_unseen(bus: KafkaBus, records: list[Outgoing]) -> None:
    """aiokafka notes the fencing in futures that it awaits at the transaction's end only, or where a batch is full."""
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unseen.append(f"{told['message']}: {told.get('exception')!r}"))
    first = await bus.producer("gateway-0")
    await first.commit([record(b"mine")])
    await bus.producer("gateway-0")
    with pytest.raises(Fenced):
        await first.commit(records, [GroupOffset("group", Position(CALLS, 0, 1))])
    await first.aclose()
    bus._producers.remove(first)
    del first
    gc.collect()
    await asyncio.sleep(0)

    assert unseen == []


async def test_producer_that_is_fenced_between_two_records_of_a_commit_says_so(kafka_servers: str, prefix: str) -> None:
    """Each first record of a topic waits for the broker, so that the fencing comes before the last of them."""
    topics = (Topic.SESSIONS, Topic.BUILT, Topic.SCORED, Topic.MERGED, Topic.KEPT)
    async with open_kafka(kafka_servers, {topic: TOPICS[topic] for topic in topics}, 1, prefix) as bus:
        first = await bus.producer("bridge-0")
        await bus.producer("bridge-0")
        with pytest.raises(Fenced):
            await first.commit([Outgoing(topic=topic, key="s1", value=b"mine", partition=0) for topic in topics])


AHEAD_SECONDS = 61 * 60


async def written_ahead(bus: KafkaBus, servers: str, name: str) -> float:
    """Let a writer append whose clock is 61 minutes ahead; return how far ahead of this clock the record's time is."""
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    try:
        at_ms = int((time.time() + AHEAD_SECONDS) * 1000)
        told = await producer.send_and_wait(name, b"early", key=b"s1", partition=0, timestamp_ms=at_ms)
    finally:
        await producer.stop()
    (found,) = [one async for one in bus.read(CALLS, 0, told.offset)]
    return found.timestamp_ms / 1000 - time.time()


async def has_the_brokers_time(bus: KafkaBus, servers: str, name: str) -> bool:
    """Whether a record of such a writer gets the broker's time; under its own it is refused, being an hour ahead."""
    try:
        return abs(await written_ahead(bus, servers, name)) < 60
    except InvalidTimestampError:
        return False


async def test_record_time_is_the_brokers(bus: KafkaBus, kafka_servers: str, prefix: str) -> None:
    """A runner whose clock is ahead would lose every start: its records would seem to come too late."""
    assert await has_the_brokers_time(bus, kafka_servers, prefix + CALLS)
