"""The embedded bus: one process, one SQLite file, group commit. It is not a small Kafka: a group has one member, and never rebalances."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final, TypeVar

from evener.bus import embedded_store as store
from evener.bus.embedded_lock import hold
from evener.bus.embedded_store import Log
from evener.bus.embedded_writer import Ends, Transaction, Writer
from evener.bus.port import BusError, Fenced, GroupOffset, Membership, NotCommitted, Outgoing, Position, Reader, ReaderLag, Record
from evener.bus.readings import Readings
from evener.bus.records import check, group_of_offsets, partition_for
from evener.proto.topics import TOPICS, Topic, TopicSpec
from evener.runtime.disk import says_full
from evener.runtime.faults import point_in_thread

FOLLOWED_SECONDS: Final = 0.002
"""The delay from a commit until followers are woken, so that each reads once for many commits, and not while answers leave."""

T = TypeVar("T")


@asynccontextmanager
async def open_embedded(
    folder: Path, topics: Mapping[Topic, TopicSpec] = TOPICS, partitions: int | None = None
) -> AsyncIterator["EmbeddedBus"]:
    """Open the bus in `folder`, which is created if it is missing. Raises BusHeld, BusError, ConfigError.

    `partitions` None: as many as there are, 4 on a new bus.
    """
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(hold(folder))
            writing = stack.enter_context(closing(await asyncio.to_thread(store.connect, folder)))
            logs = await asyncio.to_thread(store.prepare, writing, topics, partitions)
            ends = {log.number: store.end(writing, log) for log in logs.values()}
            reading = stack.enter_context(closing(await asyncio.to_thread(store.connect, folder)))
        except (OSError, sqlite3.Error) as cause:
            why = f"the disk of {folder} is full" if says_full(cause, folder) else cause
            msg = f"the bus in {folder} cannot be opened: {why}"
            raise BusError(msg) from cause
        bus = EmbeddedBus(logs, ends, writing, reading)
        stack.push_async_callback(bus.aclose)
        yield bus


class EmbeddedBus:
    """A `Bus` on one file. Writes run in the writer's thread, reads in a thread of their own."""

    def __init__(self, logs: dict[tuple[str, int], Log], ends: Ends, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        self._logs = logs
        self._partitions = dict(Counter(topic for topic, _ in logs))
        self._ends = ends
        self._grown = {log.number: asyncio.Event() for log in logs.values()}
        self._woken = ends
        """The ends of the logs when followers were last woken."""
        self._to_wake: asyncio.TimerHandle | None = None
        self._writer = Writer(writing, ends, self._note_growth)
        self._reading = reading
        self._readings = Readings()
        self._reader = ThreadPoolExecutor(1, "bus-reader")
        self._members: set[tuple[str, str]] = set()

    def partitions_of(self, topic: str) -> int:
        return self._partitions[topic]

    def partition_of(self, topic: str, key: str) -> int:
        return partition_for(key, self._partitions[topic])

    async def send(self, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        check(records, (), self._partitions)
        return await self._writer.do(lambda transaction: self._append(transaction, records))

    async def producer(self, transactional_id: str) -> "EmbeddedProducer":
        epoch = await self._writer.do(lambda transaction: store.take_over(transaction.connection, transactional_id))
        return EmbeddedProducer(self, transactional_id, epoch)

    async def commit_as(
        self, transactional_id: str, epoch: int, records: Sequence[Outgoing], offsets: Sequence[GroupOffset]
    ) -> tuple[Position, ...]:
        """Commit for the holder of `epoch`. Raises Fenced if there is a later holder, NotCommitted, RecordTooLarge."""
        check(records, offsets, self._partitions)
        group_of_offsets(offsets)

        def work(transaction: Transaction) -> tuple[Position, ...]:
            if store.epoch_of(transaction.connection, transactional_id) != epoch:
                msg = f"transactional id {transactional_id} was taken over"
                raise Fenced(msg)
            self._set_offsets(transaction, offsets)
            positions = self._append(transaction, records)
            point_in_thread(f"bus.committing.{transactional_id.partition('-')[0]}")
            return positions

        return await self._writer.do(work)

    async def flush(self) -> None:
        """Wait until everything requested so far is written."""
        await self._writer.do(lambda _: None)

    async def end(self, topic: str, partition: int) -> int:
        return self._ends[self._logs[topic, partition].number]

    async def beginning(self, topic: str, partition: int) -> int:
        log = self._logs[topic, partition]
        return await self._read(lambda connection: store.beginning(connection, log))

    async def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        log = self._logs[topic, partition]
        end = self._ends[log.number]
        while start < end:
            records = await self._next(log, start, end)
            for record in records:
                yield record
            start = records[-1].offset + 1 if records else end

    async def follow(self, topic: str, partition: int, start: int, reader: Reader | None = None) -> AsyncIterator[Sequence[Record]]:
        log = self._logs[topic, partition]
        with self._readings.open(reader, topic, partition, start) as reading:
            while True:
                grown, end = self._grown[log.number], self._ends[log.number]
                if start >= end:
                    await grown.wait()
                    continue
                records = await self._next(log, start, end)
                start = records[-1].offset + 1 if records else end
                if records:
                    yield records
                reading.handed_out(start)

    async def renew_offsets(self) -> None:
        """Return: this bus forgets nothing."""

    async def lags(self) -> list[ReaderLag]:
        return [
            ReaderLag(
                reader=reading.reader.name,
                topic=reading.topic,
                partition=reading.partition,
                records=max(0, self._ends[self._logs[reading.topic, reading.partition].number] - await reading.position()),
            )
            for reading in self._readings
        ]

    async def last_values(self, topic: str, partition: int) -> dict[str, Record]:
        log = self._logs[topic, partition]
        if not log.compacted:
            msg = f"topic {topic} is not compacted"
            raise ValueError(msg)
        return {record.key: record for record in await self._read(lambda connection: store.last_values(connection, log))}

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        log = self._logs[topic, partition]
        return await self._read(lambda connection: store.committed(connection, group, log))

    async def commit_offsets(self, offsets: Iterable[GroupOffset]) -> None:
        kept = tuple(offsets)
        check((), kept, self._partitions)
        await self._writer.do(lambda transaction: self._set_offsets(transaction, kept))

    @asynccontextmanager
    async def join(self, group: str, topic: str, name: str) -> AsyncIterator[Membership]:
        del name
        if (group, topic) in self._members:
            msg = f"group {group} of topic {topic} has a member already; the embedded bus allows only one"
            raise BusError(msg)
        self._members.add((group, topic))
        try:
            yield SoleMember(frozenset(range(self.partitions_of(topic))))
        finally:
            self._members.discard((group, topic))

    async def surplus(self) -> dict[str, int]:
        return {}

    async def check(self) -> None:
        await self._writer.do(lambda transaction: store.note_check(transaction.connection))

    async def aclose(self) -> None:
        """Finish the work in progress and stop both threads."""
        await self._writer.aclose()
        await asyncio.to_thread(self._reader.shutdown)

    def _append(self, transaction: Transaction, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        positions = []
        for record in records:
            partition = self.partition_of(record.topic, record.key) if record.partition is None else record.partition
            log = self._logs[record.topic, partition]
            offset = transaction.ends[log.number]
            store.append(transaction.connection, log, offset, record)
            transaction.ends[log.number] = offset + 1
            positions.append(Position(record.topic, partition, offset))
        return tuple(positions)

    def _set_offsets(self, transaction: Transaction, offsets: Sequence[GroupOffset]) -> None:
        for item in offsets:
            log = self._logs[item.position.topic, item.position.partition]
            store.commit_offset(transaction.connection, item.group, log, item.position.offset)

    def _note_growth(self, ends: Ends) -> None:
        """Note what was written. Followers are woken a little later, so that callers who wait for a commit go first."""
        self._ends = ends
        if self._to_wake is None:
            self._to_wake = asyncio.get_running_loop().call_later(FOLLOWED_SECONDS, self._wake)

    def _wake(self) -> None:
        self._to_wake = None
        for number, end in self._ends.items():
            if end > self._woken[number]:
                grown, self._grown[number] = self._grown[number], asyncio.Event()
                grown.set()
        self._woken = self._ends

    async def _next(self, log: Log, start: int, stop: int) -> list[Record]:
        return await self._read(lambda connection: store.read(connection, log, start, stop))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, query, self._reading)
        except sqlite3.Error as cause:
            msg = f"the bus file was not read: {cause}"
            raise BusError(msg) from cause


class EmbeddedProducer:
    """A `Producer`: the holder of one epoch of a transactional id."""

    def __init__(self, bus: EmbeddedBus, transactional_id: str, epoch: int) -> None:
        self.transactional_id = transactional_id
        self.epoch = epoch
        self._bus = bus
        self._closed = False

    async def commit(self, records: Sequence[Outgoing], offsets: Sequence[GroupOffset] = ()) -> tuple[Position, ...]:
        if self._closed:
            msg = f"the producer of {self.transactional_id} is closed"
            raise NotCommitted(msg)
        return await self._bus.commit_as(self.transactional_id, self.epoch, records, offsets)

    async def aclose(self) -> None:
        self._closed = True
        await self._bus.flush()


class SoleMember:
    """A `Membership` that owns all partitions and keeps them."""

    def __init__(self, partitions: frozenset[int]) -> None:
        self.partitions = partitions
        self.dividing = False
        self._told = False

    async def changed(self) -> frozenset[int]:
        if self._told:
            await asyncio.Event().wait()
        self._told = True
        return self.partitions
