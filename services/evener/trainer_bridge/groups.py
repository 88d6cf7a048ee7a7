"""Reads groups and sessions from the log: the groups that have ended as a stream, and one group or one session by its id.

The bridge that ends a group writes the place of the group's record into the group's state, in the same transaction. Every bridge follows
the states of all partitions, so each can answer for every group that is still remembered (`keep_ended_seconds`), and for its sessions.
A request reads only the states that were not followed yet: after the start of a bridge these are all of the partition, from the beginning
of the compacted topic. No request reads a topic of groups or sessions from its beginning.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog
from msgspec import Struct

from evener.bus.port import Bus, Record
from evener.proto.blobs import BlobRef
from evener.proto.codec import BadRecord
from evener.proto.spec import Purpose
from evener.proto.state import GroupState
from evener.proto.topics import GROUP_TOPIC, Topic
from evener.proto.trajectories import GroupMerged, GroupOutcome, TrajectoryScored
from evener.runtime.tasks import Tasks
from evener.service.events import EventLog, checked

log = structlog.get_logger()


class GroupQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups are requested. None in a field: any."""

    run_id: str | None = None
    purpose: Purpose | None = None
    after: float | None = None
    """Unix seconds: only groups that ended later."""

    def matches(self, event: GroupOutcome) -> bool:
        """Return whether a group is requested."""
        ended_at = event.merged_at if isinstance(event, GroupMerged) else event.failed_at
        wanted = self.run_id in {None, event.run_id} and self.purpose in {None, event.purpose}
        return wanted and (self.after is None or ended_at > self.after)


class GroupReader:
    """Reads groups by an index of their states, which it keeps up to date."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events
        self._states: Final[dict[str, GroupState]] = {}
        self._next: Final[dict[int, int]] = {}
        """State partition to the offset of the next record to read."""

    async def follow(self) -> None:
        """Read the states of all partitions for ever."""
        async with Tasks() as tasks:
            for partition in range(self._bus.partitions_of(Topic.BRIDGE_STATE)):
                tasks.create_task(self._follow(partition))

    async def ended(self, query: GroupQuery, sees: Callable[[str], bool]) -> AsyncIterator[GroupOutcome]:
        """Yield the requested groups with their blobs fetched, partition by partition, in the order of each partition.

        `sees`: of which teams.
        """
        purposes = Purpose if query.purpose is None else (query.purpose,)
        for topic in sorted({GROUP_TOPIC[purpose] for purpose in purposes}):
            for partition in range(self._bus.partitions_of(topic)):
                async for record, event in self._outcomes(topic, partition, await self._bus.beginning(topic, partition)):
                    if query.matches(event) and sees(event.team):
                        fetched = await self._events.event(record)
                        if isinstance(fetched, GroupOutcome):
                            yield fetched

    async def one(self, group_id: str) -> GroupOutcome | None:
        """Return a group that has ended, with its blobs fetched. None: it has not ended, or is no longer remembered."""
        state = await self._state(group_id)
        found = None if state is None else await self._end_of(state)
        fetched = None if found is None else await self._events.event(found[0])
        return fetched if isinstance(fetched, GroupOutcome) else None

    async def session(self, session_id: str) -> tuple[TrajectoryScored | None, GroupOutcome | None]:
        """Return the first score of a session and the end of its group, with arrays left in the blob store.

        None: there is none yet, or the group is no longer remembered.
        """
        group_id, _, index = session_id.rpartition(".")
        if (state := await self._state(group_id)) is None:
            return None, None
        found = await self._end_of(state)
        event = None if found is None else found[1]
        members = () if event is None else event.members
        scored = next((member.scored for member in members if member.session_id == session_id), None)
        blob = next((member.session for member in state.scored if str(member.index) == index), None)
        if scored is None and blob is not None:
            scored = await self._stored(blob)
        return scored, event

    async def _stored(self, blob: BlobRef) -> TrajectoryScored | None:
        """Return a session that no group's record holds. None: it was removed with its run."""
        try:
            return checked(await self._events.stored(blob), TrajectoryScored)
        except BadRecord:
            return None

    async def _state(self, group_id: str) -> GroupState | None:
        """Return the present state of a group. None: none of its sessions was scored, or the group is forgotten."""
        partition = self._bus.partition_of(Topic.SCORED, group_id)
        async for record in self._bus.read(Topic.BRIDGE_STATE, partition, self._next.get(partition, 0)):
            await self._take(record)
        return self._states.get(group_id)

    async def _end_of(self, state: GroupState) -> tuple[Record, GroupOutcome] | None:
        """Return the record of a group from the place that its state names. None: the group has not ended, or the log is trimmed."""
        topic, partition = GROUP_TOPIC[state.purpose], self._bus.partition_of(Topic.SCORED, state.group_id)
        if state.ended_at is None or state.offset < await self._bus.beginning(topic, partition):
            return None
        async for record, event in self._outcomes(topic, partition, state.offset):
            if event.group_id == state.group_id:
                return record, event
        return None

    async def _outcomes(self, topic: Topic, partition: int, start: int) -> AsyncIterator[tuple[Record, GroupOutcome]]:
        async for record in self._bus.read(topic, partition, start):
            event = await self._events.readable(record)
            if isinstance(event, GroupOutcome):
                yield record, event

    async def _follow(self, partition: int) -> None:
        async for batch in self._bus.follow(Topic.BRIDGE_STATE, partition, self._next.get(partition, 0)):
            for record in batch:
                await self._take(record)
                await asyncio.sleep(0)  # the state of a group of a thousand sessions is decoded for milliseconds

    async def _take(self, record: Record) -> None:
        if record.offset < self._next.get(record.partition, 0):  # `_state` and `follow` meet the same ones
            return
        self._next[record.partition] = record.offset + 1
        if record.value is None:
            self._states.pop(record.key, None)
        elif isinstance(state := await self._events.readable(record), GroupState):
            self._states[state.group_id] = state
