"""One contract for readers of the log, on both buses: they see what is committed, beside any writer, and leave nothing behind."""

import abc
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from evener.bus.embedded_lock import BUS_LOCK
from evener.bus.open import open_bus
from evener.bus.port import Bus, BusError, BusUnreachable, LogReader, Outgoing
from evener.bus.read_only import open_reader
from evener.proto.errors import ConfigError
from evener.proto.topics import Topic

PARTITIONS = 3


def record(value: bytes) -> Outgoing:
    return Outgoing(topic=Topic.SESSIONS, key="s1", value=value, partition=2)


async def values(log: LogReader, start: int = 0) -> list[bytes | None]:
    return [found.value async for found in log.read(Topic.SESSIONS, 2, start)]


class LogReaderContract(abc.ABC):
    """What every reader does."""

    url: str

    @pytest.fixture
    async def bus(self) -> AsyncIterator[Bus]:
        async with open_bus(self.url, partitions=PARTITIONS) as bus:
            yield bus

    def reader(self) -> AbstractAsyncContextManager[LogReader]:
        return open_reader(self.url)

    async def test_what_is_committed_is_read_while_the_bus_is_open(self, bus: Bus) -> None:
        producer = await bus.producer("gateway-2")
        await producer.commit([record(b"1"), record(b"2")])
        async with self.reader() as log:
            assert log.partitions_of(Topic.SESSIONS) == PARTITIONS
            assert await values(log) == [b"1", b"2"]
            await producer.commit([record(b"3")])
            await (await bus.producer("gateway-2")).aclose()
            assert await values(log) == [b"1", b"2", b"3"]
            end = await log.end(Topic.SESSIONS, 2)
            assert (await log.beginning(Topic.SESSIONS, 2), end) == (0, await bus.end(Topic.SESSIONS, 2))
            assert await values(log, end) == []
            assert [found async for found in log.read(Topic.TASKS, 0)] == []

    async def test_what_another_process_left_is_read(self) -> None:
        async with open_bus(self.url, partitions=PARTITIONS) as bus:
            await bus.send([record(b"1")])
        async with self.reader() as log:
            assert await values(log) == [b"1"]
        async with open_bus(self.url, partitions=PARTITIONS) as bus:
            assert await values(bus) == [b"1"]

    async def test_log_that_never_was_is_named_and_not_made(self) -> None:
        with pytest.raises(BusError):
            async with self.reader():
                pass


class TestEmbeddedReader(LogReaderContract):
    """On the file of the embedded bus."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.url = f"embedded:{tmp_path / 'bus'}"

    async def test_no_lock_is_taken(self, tmp_path: Path) -> None:
        async with open_bus(self.url):
            pass
        (tmp_path / "bus" / BUS_LOCK).unlink()
        async with self.reader():
            assert not (tmp_path / "bus" / BUS_LOCK).exists()

    async def test_file_of_another_program_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "bus").mkdir()
        (tmp_path / "bus" / "bus.sqlite").write_bytes(b"not a database, whatever its name says" * 100)
        with pytest.raises(BusError, match="is not a bus"):
            async with self.reader():
                pass


@pytest.mark.kafka
class TestKafkaReader(LogReaderContract):
    """On a real broker."""

    @pytest.fixture(autouse=True)
    def _topics(self, kafka_servers: str) -> None:
        self.servers, self.prefix = kafka_servers, f"t{secrets.token_hex(4)}."
        self.url = f"kafka://{kafka_servers}?prefix={self.prefix}"

    async def test_no_topic_is_made(self) -> None:
        with pytest.raises(BusError, match=f"there is no topic {self.prefix}"):
            async with self.reader():
                pass
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            assert [name for name in await admin.list_topics() if name.startswith(self.prefix)] == []
        finally:
            await admin.close()

    async def test_broker_that_is_not_there_is_named(self) -> None:
        with pytest.raises(BusUnreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
            async with open_reader("kafka://127.0.0.1:1"):
                pass


async def test_url_that_names_no_bus_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither embedded:FOLDER nor kafka"):
        async with open_reader("mysql://x"):
            pass
