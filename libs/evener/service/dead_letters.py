"""Reads dead letters, and replays the records that they hold: each at most once, whoever asks and however often.

A replay appends the record and its mark (`LetterReplayed`) in one transaction, under one transactional id for the whole deployment: of two
that replay at the same time one is fenced, and the other sees all marks.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct, structs

from evener.blobs.port import Blobs
from evener.bus.port import Bus, Header, Outgoing, Producer, Record
from evener.proto.codec import BadRecord
from evener.proto.fleet import DeadLetter, LetterReplayed
from evener.proto.ids import group_of
from evener.proto.letters import (
    MAX_DEAD_LETTERS,
    LetterQuery,
    Letters,
    LetterView,
    ReplayedRecord,
    ReplayResult,
    Replays,
    parse_position,
    position_text,
)
from evener.proto.state import TaskState
from evener.proto.topics import HEADER_GROUP, HEADER_SESSION, TOPICS, Topic
from evener.service.events import EventLog, header

WRITER: Final = "dead-letters"
"""The transactional id of replays."""


class DeadLetters:
    """The dead letters of a deployment."""

    def __init__(self, bus: Bus, blobs: Blobs) -> None:
        self._bus = bus
        self._events = EventLog(bus, blobs)
        self._replaying = asyncio.Lock()

    async def list(self, query: LetterQuery) -> Letters:
        """Return the letters of a query. Raises BusError, NotRead."""
        found = (await self._book()).wanted(query, await self._groups(query.run))
        return Letters(letters=tuple(found[:MAX_DEAD_LETTERS]), more=max(0, len(found) - MAX_DEAD_LETTERS))

    async def replay(self, positions: Sequence[str], query: LetterQuery | None, by: str) -> Replays:
        """Replay the records at these positions, and those of a query's open letters. `by`: who asked. Raises BusError, NotRead."""
        async with self._replaying:
            return await self._replay_all(positions, query, by)

    async def _replay_all(self, positions: Sequence[str], query: LetterQuery | None, by: str) -> Replays:
        groups = None if query is None else await self._groups(query.run)
        producer = await self._bus.producer(WRITER)  # what its last holder committed can be read from here on
        try:
            book = await self._book()
            found = () if query is None else (view.position for view in book.wanted(structs.replace(query, replayed=False), groups))
            wanted = [*dict.fromkeys([*positions, *found])]
            done = [await self._replay(producer, book, position, by) for position in wanted[:MAX_DEAD_LETTERS]]
        finally:
            await producer.aclose()
        return Replays(replays=tuple(done), more=max(0, len(wanted) - MAX_DEAD_LETTERS))

    async def _replay(self, producer: Producer, book: "_Book", position: str, by: str) -> ReplayedRecord:
        if position in book.replayed:
            return ReplayedRecord(position=position, result=ReplayResult.ALREADY)
        again = await self._again(book, position)
        if again is None:
            return ReplayedRecord(position=position, result=ReplayResult.GONE)
        topic, partition, offset = parse_position(position)
        mark = LetterReplayed(topic=topic, partition=partition, offset=offset, by=by, at=time.time())
        appended, _ = await producer.commit([again, await self._events.outgoing(Topic.DEAD_LETTERS, again.key, mark)])
        book.replayed[position] = mark.at
        return ReplayedRecord(
            position=position, result=ReplayResult.REPLAYED, to=position_text(appended.topic, appended.partition, appended.offset)
        )

    async def _again(self, book: "_Book", position: str) -> Outgoing | None:
        """Return the record to append again, from its dead letter or else from the log. None: neither has it."""
        topic, partition, offset = parse_position(position)
        if topic not in TOPICS or partition >= self._bus.partitions_of(topic):
            return None
        if (record := book.letter_of(position)) is not None:
            try:
                letter = await self._events.event(record)
            except BadRecord:  # its value is no longer in the blob store
                return None
            if isinstance(letter, DeadLetter) and isinstance(letter.value, bytes):
                headers = tuple(Header(name, value) for name, value in letter.headers)
                return Outgoing(topic=topic, key=letter.key, value=letter.value or None, headers=headers, partition=partition)
        async for found in self._bus.read(topic, partition, offset):  # a group that no trainer could read has no letter
            if found.offset != offset:
                break
            return Outgoing(topic=topic, key=found.key, value=found.value, headers=found.headers, partition=partition)
        return None

    async def _book(self) -> "_Book":
        book = _Book({}, {})
        start = await self._bus.beginning(Topic.DEAD_LETTERS, 0)
        async for record in self._bus.read(Topic.DEAD_LETTERS, 0, start):
            match await self._events.readable(record):
                case DeadLetter() as letter:
                    view = _view(letter, record)
                    book.letters[view.position, view.service] = view, record
                case LetterReplayed() as mark:
                    book.replayed[position_text(mark.topic, mark.partition, mark.offset)] = mark.at
                case _:
                    pass
        return book

    async def _groups(self, run_id: str | None) -> Collection[str] | None:
        """Return the ids of the groups of a run. None: no run is asked for."""
        if run_id is None:
            return None
        states = [await self._events.readable(record) for record in (await self._bus.last_values(Topic.SCHEDULER_STATE, 0)).values()]
        tasks = (state.submitted for state in states if isinstance(state, TaskState))
        return {group_of(task.task_id) for task in tasks if task.options.run_id == run_id}


class _Book(Struct, frozen=True):
    """The content of the topic `dead-letters`."""

    letters: dict[tuple[str, str], tuple[LetterView, Record]]
    """Position and service to the service's last letter about the position: one that was started again writes it again."""
    replayed: dict[str, float]
    """Position to the time at which its record was replayed."""

    def wanted(self, query: LetterQuery, groups: Collection[str] | None) -> list[LetterView]:
        """Return the letters of a query, the oldest first. `groups`: those of the wanted run."""
        views = (structs.replace(view, replayed_at=self.replayed.get(view.position)) for view, _ in self.letters.values())
        return sorted((view for view in views if _matches(view, query, groups)), key=lambda view: view.at)

    def letter_of(self, position: str) -> Record | None:
        """Return the record of a letter about a position. None: there is none."""
        return next((record for (about, _), (_, record) in self.letters.items() if about == position), None)


def _view(letter: DeadLetter, record: Record) -> LetterView:
    session, group = ((header(record, name) or b"").decode(errors="replace") for name in (HEADER_SESSION, HEADER_GROUP))
    return LetterView(
        position=position_text(letter.topic, letter.partition, letter.offset),
        service=letter.service,
        reason=letter.reason,
        session=session,
        group=group or session.rpartition(".")[0],
        at=letter.at,
    )


def _matches(view: LetterView, query: LetterQuery, groups: Collection[str] | None) -> bool:
    topic, _, _ = parse_position(view.position)
    exact = (query.service, view.service), (query.topic, topic), (query.session, view.session)
    return (
        all(wanted in {None, has} for wanted, has in exact)
        and (groups is None or view.group in groups)
        and (query.since is None or view.at >= query.since)
        and (query.until is None or view.at < query.until)
        and (query.replayed or view.replayed_at is None)
    )
