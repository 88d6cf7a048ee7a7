"""Appends records outside transactions, with one idempotent producer per process."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, OutOfOrderSequenceNumber

from evener.bus.kafka_client import Cluster, discard, position_of, put, start_producer
from evener.bus.port import BusUnreachable, NotCommitted, Outgoing, Position, RecordTooLarge


class Sender:
    """Sends and waits for all in-sync replicas.

    The broker refuses a batch as a whole, and after that the producer numbers all later batches wrongly. Therefore the producer is
    discarded, and every send that failed with it is repeated by a producer of its own: only the one at fault fails again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._thrown_away: set[asyncio.Task[None]] = set()

    async def send(self, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        """Append and return where each record stands. Raises NotCommitted, RecordTooLarge."""
        topics = ", ".join(sorted({record.topic for record in records}))
        try:
            return await self._send(records)
        except MessageSizeTooLargeError as cause:
            msg = f"a record for {topics} is above the broker's limit"
            raise RecordTooLarge(msg) from cause
        except (KafkaError, TimeoutError, BusUnreachable) as cause:
            msg = f"{topics} did not take a record: {cause!r}"
            raise NotCommitted(msg) from cause

    async def _send(self, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        shared = await self._healthy()
        try:
            return await self._send_by(shared, records)
        except (MessageSizeTooLargeError, OutOfOrderSequenceNumber):
            self._throw_away(shared)
        except (KafkaError, TimeoutError):
            self._throw_away(shared)
            raise
        own = await start_producer(self._cluster)
        try:
            return await self._send_by(own, records)
        finally:
            await discard(own)

    async def aclose(self) -> None:
        """Close all producers."""
        if self._producer is not None:
            self._throw_away(self._producer)
        await asyncio.gather(*self._thrown_away)

    async def _healthy(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await start_producer(self._cluster)
            return self._producer

    async def _send_by(self, producer: AIOKafkaProducer, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        async with asyncio.timeout(self._cluster.timings.send_seconds):
            futures = [await put(producer, self._cluster, record) for record in records]
            await asyncio.wait(futures)  # a caller that stops waiting cancels none of them
        return tuple(position_of(record, future.result()) for record, future in zip(records, futures, strict=True))

    def _throw_away(self, producer: AIOKafkaProducer) -> None:
        """Discard a producer. No caller waits for it to close."""
        if self._producer is producer:
            self._producer = None
            task = asyncio.create_task(discard(producer))
            self._thrown_away.add(task)
            task.add_done_callback(self._thrown_away.discard)
