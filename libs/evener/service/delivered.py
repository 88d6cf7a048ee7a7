"""`trajectories.merged` as trainers read it: from a position, in the order of the log, with the position after every group."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord
from evener.proto.delivered import Delivered, GroupPosition
from evener.proto.errors import EvenerError
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupOutcome
from evener.service.events import EventLog
from evener.service.tracing import context_of, ending

AHEAD: Final = 4
"""The number of groups that are fetched ahead."""
CANCEL_SECONDS: Final = 1.0
"""Longer than a reader takes to end that has heard of it."""

log = structlog.get_logger()
tracer = trace.get_tracer("evener.delivery")


class Ready(Struct, frozen=True):
    """A group that was fetched. The span of its delivery starts when it is delivered: one that is never delivered has none."""

    group: Delivered
    cause: Context
    began: int
    """When its fetching began, in nanoseconds of Unix time."""


class PositionUnknown(EvenerError):
    """The log does not have this position. Start at a position that was saved from this log, or without one at the oldest record."""


async def check_position(bus: Bus, position: Mapping[int, int]) -> None:
    """Raise PositionUnknown for a position that this log does not have."""
    count = bus.partitions_of(Topic.MERGED)
    for partition, offset in position.items():
        if not 0 <= partition < count:
            msg = f"there are {count} partitions, and no number {partition}"
            raise PositionUnknown(msg)
        end = await bus.end(Topic.MERGED, partition)
        if offset > end:
            msg = f"partition {partition} ends at {end}, before the position {offset}"
            raise PositionUnknown(msg)
        beginning = await bus.beginning(Topic.MERGED, partition)
        if offset < beginning:
            msg = f"partition {partition} begins at {beginning}, after the position {offset}: the log has dropped untrained groups"
            raise PositionUnknown(msg)


async def delivered(
    bus: Bus, events: EventLog, position: Mapping[int, int], *, follow: bool, sees: Callable[[str], bool] = lambda _: True
) -> AsyncGenerator[Delivered, None]:
    """Yield groups with their blobs, and the positions of records that cannot be read: partition by partition in its order, as they come.

    `position`: partition to the offset to begin with; other partitions are read from their beginning. `follow`: for ever, otherwise to the
    end of the log at the time of the call. `sees`: of which teams. Raises NotRead if `events` does not wait for the blob store.
    """
    count = bus.partitions_of(Topic.MERGED)
    ready: asyncio.Queue[Ready | None] = asyncio.Queue(AHEAD)

    async def read(partition: int) -> None:
        async with aclosing(_records(bus, partition, position.get(partition, 0), follow=follow)) as records:
            async for record in records:
                began = time.time_ns()
                if (group := await _delivered(record, events, sees)) is not None:
                    await ready.put(Ready(group, context_of(record), began))
        await ready.put(None)

    readers = [asyncio.create_task(read(partition)) for partition in range(count)]
    try:
        open_readers = count
        while open_readers:
            one = await _next(ready, readers)
            if one is None:
                open_readers -= 1
            else:
                span = tracer.start_span("deliver", context=one.cause, kind=SpanKind.CONSUMER, start_time=one.began)
                with ending([span]):
                    yield one.group
    finally:
        await _cancelled(readers)


async def _cancelled(readers: list[asyncio.Task[None]]) -> None:
    """Cancel all readers. Before Python 3.12 `asyncio.wait_for`, which aiokafka uses, may swallow a cancellation, so it is repeated."""
    while left := {reader for reader in readers if not reader.done()}:
        for reader in left:
            reader.cancel()
        await asyncio.wait(left, timeout=CANCEL_SECONDS)
    await asyncio.gather(*readers, return_exceptions=True)


async def _next(ready: asyncio.Queue[Ready | None], readers: list[asyncio.Task[None]]) -> Ready | None:
    """Return the next item that is ready, or raise the error of a reader."""
    taking = asyncio.ensure_future(ready.get())
    try:
        running = {reader for reader in readers if not reader.done()}
        while not taking.done():
            await asyncio.wait({taking, *running}, return_when=asyncio.FIRST_COMPLETED)
            for reader in {reader for reader in running if reader.done()}:
                reader.result()
                running.discard(reader)
        return taking.result()
    finally:
        taking.cancel()


async def _records(bus: Bus, partition: int, start: int, *, follow: bool) -> AsyncGenerator[Record, None]:
    if not follow:
        async for record in bus.read(Topic.MERGED, partition, start):
            yield record
        return
    async for batch in bus.follow(Topic.MERGED, partition, start):
        for record in batch:
            yield record


async def _delivered(record: Record, events: EventLog, sees: Callable[[str], bool]) -> Delivered | None:
    """Return the group in a record. None: it is not to be seen. Raises NotRead: the position must not pass it yet.

    A bad record is logged and told to the reader, but becomes no dead letter: readers are many, may start again, and may not be allowed to
    write. It can be replayed all the same.
    """
    position = GroupPosition(partition=record.partition, offset=record.offset, next_offset=record.offset + 1)
    try:
        event = await events.event(record)
    except BadRecord as bad:
        log.error("bad_group_skipped", partition=record.partition, offset=record.offset, error=str(bad), replay=position.replay)
        return Delivered(position=position, group=None)
    if not isinstance(event, GroupOutcome) or not sees(event.team):
        return None
    return Delivered(position=position, group=event)
