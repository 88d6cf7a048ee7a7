"""The log as it was at one moment, while services continue to write it."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from msgspec import Struct

from evener.audit.findings import Findings, Invariant
from evener.blobs.port import Blobs
from evener.bus.port import LogReader, Position, Record
from evener.proto.codec import AnyEvent, BadRecord
from evener.proto.fleet import DeadLetter, LetterReplayed
from evener.proto.topics import Topic
from evener.service.events import light_event, whole_event

BY_EFFECT: Final = (Topic.MERGED, Topic.KEPT, Topic.SCORED, Topic.BUILT, Topic.SESSIONS, Topic.TASKS, Topic.POLICIES, Topic.DEAD_LETTERS)
"""Later stages first: a record before its topic's end then has its causes before the ends of theirs, whatever is written meanwhile."""


class EventRecord(Struct, frozen=True, eq=False):
    """A record and the event in it, or why there is none."""

    record: Record
    event: AnyEvent | BadRecord

    @property
    def at(self) -> Position:
        """The record's position."""
        return Position(self.record.topic, self.record.partition, self.record.offset)


class Snapshot:
    """What was committed when it was taken."""

    def __init__(self, log: LogReader, blobs: Blobs, findings: Findings, ends: Mapping[tuple[Topic, int], int], tasks_ended: int) -> None:
        self._log = log
        self._blobs = blobs
        self._findings = findings
        self._ends = ends
        self.tasks_ended = tasks_ended
        """The end of `tasks` before anything else was looked at: a TaskEnded behind it may have its group behind the end of the groups."""
        self.letters: dict[Position, EventRecord] = {}
        """Dead letters, by the position of the record that could not be read."""

    def partitions(self, topic: Topic) -> range:
        """Return the numbers of a topic's partitions."""
        return range(self._log.partitions_of(topic))

    async def trimmed(self, topic: Topic, partition: int) -> bool:
        """Return whether a partition no longer holds its first records."""
        return await self._log.beginning(topic, partition) > 0

    async def read(self, topic: Topic, partition: int, wanted: Callable[[str], bool], *, light: bool = False) -> AsyncIterator[EventRecord]:
        """Read the records whose key is wanted. `light`: without blobs. Raises BusError, NotRead."""
        end = self._ends[topic, partition]
        start = await self._log.beginning(topic, partition)
        if start >= end:
            return
        decode = light_event if light else whole_event
        async for record in self._log.read(topic, partition, start):
            if record.offset >= end or record.value is None or not wanted(record.key):
                continue
            self._findings.count(Invariant.READABLE)
            try:
                yield EventRecord(record, await decode(record, self._blobs))
            except BadRecord as bad:
                read = EventRecord(record, bad)
                if read.at not in self.letters:
                    self._findings.breach(Invariant.READABLE, record.key, f"it cannot be read: {bad.args[0]}", read.at)
                yield read

    async def read_letters(self, wanted: Callable[[str], bool]) -> None:
        """Note the dead letters whose key is wanted. Those that nobody replayed are breaches."""
        replayed: set[Position] = set()
        for partition in self.partitions(Topic.DEAD_LETTERS):
            async for read in self.read(Topic.DEAD_LETTERS, partition, wanted, light=True):
                if isinstance(read.event, DeadLetter):
                    self.letters[Position(read.event.topic, read.event.partition, read.event.offset)] = read
                elif isinstance(read.event, LetterReplayed):
                    replayed.add(Position(read.event.topic, read.event.partition, read.event.offset))
        for lost, read in self.letters.items():
            if lost not in replayed and isinstance(letter := read.event, DeadLetter):
                self._findings.breach(Invariant.READABLE, letter.key, f"{letter.service} gave it up: {letter.reason}", read.at, lost)


async def take(log: LogReader, blobs: Blobs, findings: Findings) -> Snapshot:
    """Note where every topic ends now. Raises BusError."""
    tasks_ended = await log.end(Topic.TASKS, 0)
    ends = {(topic, partition): await log.end(topic, partition) for topic in BY_EFFECT for partition in range(log.partitions_of(topic))}
    return Snapshot(log, blobs, findings, ends, tasks_ended)
