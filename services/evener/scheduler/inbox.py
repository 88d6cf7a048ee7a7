"""The queue of the writer: batches of the log, commands of clients, ticks of the clock."""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evener.bus.port import Bus, Position, Reader, Record
from evener.proto.codec import AnyEvent, BadRecord, tag_of
from evener.proto.sessions import AttemptEnded, SessionSealed, SessionStarted
from evener.proto.state import TaskState
from evener.proto.topics import HEADER_TYPE, Topic
from evener.scheduler.core import Draft
from evener.scheduler.housekeeping import Chores
from evener.service.events import EventLog, header
from evener.service.partitions import resumed_at
from evener.tokens.session import too_late

LENGTH: Final = 64
"""The number of items that may wait for the writer. Further senders wait."""
TRANSACTION_ITEMS: Final = 64
"""The number of items that one transaction takes."""
INBOX_TOPICS: Final = (Topic.SESSIONS, Topic.MERGED, Topic.KEPT)
"""The topics that the scheduler reads from its committed offsets."""
TAGS: Final = frozenset(tag_of(event).encode() for event in (SessionStarted, AttemptEnded, SessionSealed))
"""The events of `sessions` that matter here. All others are skipped by their header."""

TaskCommand = Callable[[Draft], TaskState | None]


class Batch(Struct, frozen=True):
    """Records of one partition."""

    position: Position
    """The position from which reading continues after them."""
    events: tuple[AnyEvent, ...]


class PendingCommand(Struct, frozen=True, eq=False):
    """A command of a client that waits for its answer."""

    command: TaskCommand
    answer: asyncio.Future[TaskState | None]


class ClockTick(Struct, frozen=True):
    """A tick of the clock, at which leases and deadlines are checked."""


class Wake(Struct, frozen=True):
    """The fleet changed: there may be free slots."""


Item = Batch | PendingCommand | ClockTick | Wake | Chores


class Inbox(asyncio.Queue[Item]):
    """A bounded queue of items. `put` waits while the writer is behind."""

    def __init__(self) -> None:
        super().__init__(LENGTH)

    def wake(self) -> None:
        """Wake the writer, unless it has items."""
        if self.empty():
            self.put_nowait(Wake())

    async def take(self) -> list[Item]:
        """Wait for an item; return all that there are, at most as many as one transaction takes."""
        items = [await self.get()]
        while len(items) < TRANSACTION_ITEMS and not self.empty():
            items.append(self.get_nowait())
        return items

    def refuse(self, error: Exception) -> None:
        """Answer every waiting client with an error."""
        while not self.empty():
            item = self.get_nowait()
            if isinstance(item, PendingCommand):
                fail(item, error)


def fail(asked: PendingCommand, error: Exception) -> None:
    """Answer a client with an error, unless it was answered or has disconnected."""
    if not asked.answer.done():
        asked.answer.set_exception(error)


async def follow(inbox: Inbox, bus: Bus, events: EventLog, *, group: str, topic: Topic, partition: int) -> None:
    """Put the records of a partition into the inbox, from the group's offset on, for ever."""
    async for records in bus.follow(topic, partition, await resumed_at(bus, group, topic, partition), Reader("scheduler", groups=(group,))):
        found = [await _event(events, record) for record in records if topic is not Topic.SESSIONS or header(record, HEADER_TYPE) in TAGS]
        position = Position(topic, partition, records[-1].offset + 1)
        await inbox.put(Batch(position, tuple(event for event in found if event is not None)))


async def _event(events: EventLog, record: Record) -> AnyEvent | None:
    """Return the event in a record, without fetching its blobs. None: the record was given up, or is void."""
    try:
        event = await events.light(record)
    except BadRecord as bad:
        await events.dead_letter("scheduler", record, str(bad))
        return None
    void = isinstance(event, SessionStarted) and too_late(event, record.timestamp_ms / 1000)
    return None if void else event
