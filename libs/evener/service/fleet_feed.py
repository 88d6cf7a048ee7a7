"""Reads `fleet` once for all that follow it in a process: who is alive, which gateway owns what, which engines there are."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct

from evener.bus.port import Bus, Record
from evener.proto.codec import AnyEvent, BadRecord, decode
from evener.proto.topics import Topic
from evener.runtime.change import Change

log = structlog.get_logger()


class FleetRecord(Struct, frozen=True, kw_only=True):
    """A record of `fleet` that can be read."""

    key: str
    offset: int
    event: AnyEvent | None
    """None: the key was deleted."""
    written_at: float
    """The time of the record, in Unix seconds."""
    heard_at: float | None
    """When this process read the record, in seconds of the feed's clock. None: the record was there before the process followed `fleet`."""


class FleetFeed:
    """The records of `fleet`. The log is read as long as anybody follows."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells monotonic seconds."""
        self._bus = bus
        self._clock = clock
        self._reading: _Reading | None = None

    async def follow(self) -> AsyncGenerator[Sequence[FleetRecord], None]:
        """Yield the last record of each key in the order of the log, perhaps none, and then what comes, for ever. Raises BusError."""
        if self._reading is None or self._reading.task.done():
            self._reading = _Reading(self._bus, self._clock)
        reading, inbox = self._reading, _Inbox()
        reading.add(inbox)
        try:
            while True:
                await reading.change.until(lambda: bool(inbox.batches) or reading.task.done())
                if not inbox.batches:
                    reading.task.result()
                yield inbox.batches.pop(0)
        finally:
            reading.inboxes.remove(inbox)
            if not reading.inboxes:
                self._reading = None if self._reading is reading else self._reading
                reading.task.cancel()
                await asyncio.gather(reading.task, return_exceptions=True)

    async def now(self) -> Sequence[FleetRecord]:
        """Return the last record of each key, in the order of the log. Raises BusError."""
        async with aclosing(self.follow()) as batches:
            return await anext(batches)


class _Inbox:
    """The records that one follower has not taken yet."""

    def __init__(self) -> None:
        self.batches: list[Sequence[FleetRecord]] = []


class _Reading:
    """One run through the topic, for all that follow it. It ends with the last of them, or with an error."""

    def __init__(self, bus: Bus, clock: Callable[[], float]) -> None:
        self.change: Final = Change()
        """Notes each batch, and the end."""
        self.inboxes: Final[list[_Inbox]] = []
        self._bus = bus
        self._clock = clock
        self._last: dict[str, FleetRecord] | None = None
        """The last record of each key. None: they are being read."""
        self.task: Final = asyncio.create_task(self._read(), name="fleet")
        self.task.add_done_callback(lambda _: self.change.note())

    def add(self, inbox: _Inbox) -> None:
        """Give a follower the known records, and from now on all new ones."""
        self.inboxes.append(inbox)
        if self._last is not None:
            inbox.batches.append(_in_order(self._last))

    async def _read(self) -> None:
        start = await self._bus.end(Topic.FLEET, 0)
        self._last = {one.key: one for one in _readable((await self._bus.last_values(Topic.FLEET, 0)).values(), None)}
        self._hand_out(_in_order(self._last))
        async for batch in self._bus.follow(Topic.FLEET, 0, start):
            records = _readable(batch, self._clock())
            for record in records:
                if record.event is None:
                    self._last.pop(record.key, None)
                else:
                    self._last[record.key] = record
            self._hand_out(records)

    def _hand_out(self, batch: Sequence[FleetRecord]) -> None:
        for inbox in self.inboxes:
            inbox.batches.append(batch)
        self.change.note()


def _in_order(last: dict[str, FleetRecord]) -> Sequence[FleetRecord]:
    return sorted(last.values(), key=lambda record: record.offset)


def _readable(records: Iterable[Record], heard_at: float | None) -> list[FleetRecord]:
    """Return what can be read. A record that cannot be is replaced by the next one of its key."""
    found = []
    for record in records:
        try:
            event = None if record.value is None else decode(record.value)
        except BadRecord as bad:
            log.warning("fleet_record_unreadable", offset=record.offset, key=record.key, reason=str(bad))
            continue
        written_at = record.timestamp_ms / 1000
        found.append(FleetRecord(key=record.key, offset=record.offset, event=event, written_at=written_at, heard_at=heard_at))
    return found
