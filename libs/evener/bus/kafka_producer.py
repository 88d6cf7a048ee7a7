"""The transactional producer: concurrent commits share a transaction, and each learns about its own records.

A transaction of aiokafka may commit without one of its records, and after a failed record its producer is useless. Therefore a commit
counts when its own records were acknowledged and the transaction then committed. If any record fails, the transaction is aborted, the
producer is replaced under the same id, and each commit is repeated in a transaction of its own.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)
from aiokafka.structs import RecordMetadata
from msgspec import Struct

from evener.bus.kafka_client import CLIENT_CLOSE_SECONDS, Cluster, discard, position_of, put, start_producer
from evener.bus.kafka_private import epoch_of, follows, sender_ended
from evener.bus.port import BusError, BusUnreachable, Fenced, GroupOffset, NotCommitted, Outgoing, Position, RecordTooLarge
from evener.bus.records import check, group_of_offsets, record_bytes
from evener.runtime.faults import point

TRANSACTION_MS: Final = 10_000
"""The limit of an open transaction, which hides later records from readers. After it, the broker ends the transaction and fences its
writer."""
START_EVERY_SECONDS: Final = 0.005
"""The least time between two transactions. If the next one starts sooner, aiokafka waits 20 ms for the markers of the last one."""
TRANSACTION_BYTES: Final = 8 * 1024 * 1024
FENCING: Final = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)


class _Commit(Struct, frozen=True, kw_only=True, eq=False):
    records: Sequence[Outgoing]
    group: str | None
    offsets: Sequence[GroupOffset]
    size: int
    future: "asyncio.Future[tuple[Position, ...]]"


class _RecordFailed(Exception):
    """The broker refused a record, possibly that of another commit."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.error: BusError = NotCommitted(f"a record was refused: {cause!r}")
        if isinstance(cause, MessageSizeTooLargeError):
            self.error = RecordTooLarge("a record is above the broker's limit")


class KafkaProducer:
    """A `Producer` by transactions on Kafka."""

    def __init__(self, cluster: Cluster, transactional_id: str, producer: AIOKafkaProducer) -> None:
        """Take over a producer started with `start_producer`."""
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._producer = producer
        self._waiting: deque[_Commit] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._fenced = False
        self._broken = False
        self._abort: asyncio.Task[None] | None = None
        self._last_start = 0.0
        self._worker = asyncio.create_task(self._work(), name=f"commits of {transactional_id}")

    @property
    def epoch(self) -> int:
        """The number of the present holder, which rises also when the producer is replaced under its id."""
        return epoch_of(self._producer)

    @property
    def ended(self) -> bool:
        """Whether the producer is fenced or closed, and has released its connections."""
        return self._worker.done()

    async def commit(self, records: Sequence[Outgoing], offsets: Sequence[GroupOffset] = ()) -> tuple[Position, ...]:
        check(records, offsets, self._cluster.partitions)
        group = group_of_offsets(offsets)
        if self._fenced:
            raise self._lost()
        if self._closing or self.ended:
            msg = f"the producer of {self.transactional_id} is closed"
            raise NotCommitted(msg)
        future: asyncio.Future[tuple[Position, ...]] = asyncio.get_running_loop().create_future()
        size = sum(map(record_bytes, records))
        self._waiting.append(_Commit(records=records, group=group, offsets=offsets, size=size, future=future))
        self._wake.set()
        return await future

    async def aclose(self) -> None:
        self._closing = True
        self._wake.set()
        _, late = await asyncio.wait([self._worker], timeout=CLIENT_CLOSE_SECONDS)
        if late:
            self._worker.cancel()
            await asyncio.wait(late)

    async def _work(self) -> None:
        """Commit what waits, until the producer is closed or fenced."""
        try:
            while await self._more():
                if batch := self._take():
                    await self._commit_together(batch)
        finally:
            _fail(self._waiting, self._lost() if self._fenced else NotCommitted("the producer was closed"))
            await self._let_go()

    async def _more(self) -> bool:
        """Wait for commits, and for the time of the next transaction. False: closed or fenced."""
        while not (self._waiting or self._closing or self._fenced):
            self._wake.clear()
            await self._wake.wait()
        if self._fenced or not self._waiting:
            return False
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._last_start + START_EVERY_SECONDS - loop.time()))
        self._last_start = loop.time()
        return True

    def _take(self) -> list[_Commit]:
        """Take commits off the queue, in order, as many as one transaction may hold. A transaction serves one consumer group."""
        batch: list[_Commit] = []
        size, group = 0, None
        while self._waiting:
            commit = self._waiting[0]
            size += commit.size
            if batch and (size > TRANSACTION_BYTES or (commit.group and group and commit.group != group)):
                break
            group = group or commit.group
            self._waiting.popleft()
            if not commit.future.cancelled():
                batch.append(commit)
        return batch

    async def _commit_together(self, batch: list[_Commit]) -> None:
        """Commit in one transaction; if a record fails, repeat each commit in one of its own."""
        try:
            done = await self._transaction(batch)
        except _RecordFailed as failed:
            if len(batch) == 1:
                _fail(batch, failed.error)
                return
            for commit in batch:
                await self._commit_together([commit])
        except BusError as error:
            _fail(batch, error)
        except BaseException:
            for commit in batch:
                commit.future.cancel()  # only the broker knows whether it happened
            raise
        else:
            _succeed(batch, done)

    async def _transaction(self, batch: list[_Commit]) -> list[tuple[Position, ...]]:
        """Commit `batch` in one transaction. Raises Fenced; NotCommitted or _RecordFailed, with nothing committed."""
        if self._broken:
            await self._replace()
        if self._fenced or sender_ended(self._producer):
            raise self._lost()
        try:
            done = await self._acknowledged(batch)
            if sender_ended(self._producer):
                raise self._lost()
            # without a time limit: once asked for, only the broker knows whether it happened
            await self._producer.commit_transaction()
        except (KafkaError, IllegalOperation, TimeoutError) as cause:
            if isinstance(cause, FENCING) or sender_ended(self._producer):
                raise self._lost() from cause
            self._broken = True
            if isinstance(cause, TimeoutError):
                raise self._no_answer() from cause
            raise _RecordFailed(cause) from cause
        return done

    async def _acknowledged(self, batch: list[_Commit]) -> list[tuple[Position, ...]]:
        """Open a transaction, send all records and offsets, and wait until the broker has acknowledged them."""
        async with asyncio.timeout(self._cluster.timings.acknowledge_seconds):
            await self._producer.begin_transaction()
            sent = [[await put(self._producer, self._cluster, record) for record in commit.records] for commit in batch]
            futures = [future for row in sent for future in row]
            outcomes = await asyncio.gather(*futures, self._send_offsets(batch), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:  # a wrong sequence number is the consequence of another one's failure
            raise min(errors, key=lambda error: isinstance(error, OutOfOrderSequenceNumber))
        return [_positions(commit, row) for commit, row in zip(batch, sent, strict=True)]

    async def _send_offsets(self, batch: list[_Commit]) -> None:
        offsets = {}
        for commit in batch:
            for item in commit.offsets:
                offsets[self._cluster.topic_partition(item.position.topic, item.position.partition)] = item.position.offset
        if offsets:
            group = next(commit.group for commit in batch if commit.group)
            await self._producer.send_offsets_to_transaction(offsets, self._cluster.prefix + group)

    async def _replace(self) -> None:
        """Abort, and start again under the same id. Raises NotCommitted, and Fenced if another process held the id in between."""
        old = self._producer
        if self._abort is None:
            self._abort = asyncio.create_task(old.abort_transaction())
        try:
            async with asyncio.timeout(self._cluster.timings.acknowledge_seconds):
                await asyncio.shield(self._abort)  # its success proves that the id is still ours
            await point("bus.replacing")
            new = await start_producer(self._cluster, self.transactional_id, TRANSACTION_MS)
        except (TimeoutError, BusUnreachable) as cause:
            raise self._no_answer() from cause
        except KafkaError as cause:
            raise self._lost() from cause
        if not follows(old, new):
            await discard(new)
            raise self._lost()
        self._producer, self._abort, self._broken = new, None, False
        await discard(old)

    def _lost(self) -> Fenced:
        """Note that the id is lost, and return the error that says so."""
        self._fenced = True
        return Fenced(f"transactional id {self.transactional_id} was taken over, or its hold timed out")

    def _no_answer(self) -> NotCommitted:
        return NotCommitted(f"no answer from the broker in {self._cluster.timings.acknowledge_seconds:.0f} s")

    async def _let_go(self) -> None:
        if self._abort is not None:
            self._abort.cancel()
            await asyncio.wait([self._abort])
        await discard(self._producer)


def _positions(commit: _Commit, futures: Sequence["asyncio.Future[RecordMetadata]"]) -> tuple[Position, ...]:
    return tuple(position_of(record, future.result()) for record, future in zip(commit.records, futures, strict=True))


def _succeed(commits: Iterable[_Commit], positions: Iterable[tuple[Position, ...]]) -> None:
    for commit, stands in zip(commits, positions, strict=True):
        if not commit.future.done():
            commit.future.set_result(stands)


def _fail(commits: Iterable[_Commit], error: BusError) -> None:
    for commit in commits:
        if not commit.future.done():
            commit.future.set_exception(error)
