"""Reading records of the bridge: arrays are fetched only where versions have to be compared; bad records are looked up in the log."""

import asyncio
import time
from typing import TypeVar

import structlog

from evener.bus.port import Bus, Record
from evener.proto.codec import AnyEvent, BadRecord
from evener.proto.state import GroupState
from evener.proto.topics import HEADER_SESSION
from evener.proto.trajectories import Row, TrajectoryScored
from evener.service.events import EventLog, header
from evener.service.lost import lost_score, lost_trajectory
from evener.trainer_bridge.core import Versions, versions_in

EventT = TypeVar("EventT")

log = structlog.get_logger()


class Reader:
    """Token arrays in the blob store stay there, and go on as references."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events

    async def scored(self, record: Record) -> TrajectoryScored:
        """Return the session in a record. Raises BadRecord."""
        return checked(await self._events.light(record), TrajectoryScored)

    async def state(self, record: Record) -> GroupState:
        """Return the group in a record of the state. Raises BadRecord: a bridge without its state may not go on."""
        return checked(await self._events.light(record), GroupState)

    async def versions(self, state: GroupState) -> Versions:
        """Return the versions of all trainable tokens of a group, its arrays fetched where they are elsewhere."""
        found = await asyncio.gather(*(self._versions(scored) for scored in state.scored))
        return {scored.trajectory.session_id: versions for scored, versions in zip(state.scored, found, strict=True)}

    async def _versions(self, scored: TrajectoryScored) -> frozenset[int] | None:
        trajectory = scored.trajectory
        try:
            return frozenset[int]().union(*[await self._row_versions(row) for row in trajectory.rows])
        except BadRecord as missing:
            log.error("versions_not_read", session_id=trajectory.session_id, error=str(missing))
            return None

    async def _row_versions(self, row: Row) -> frozenset[int]:
        mask, versions = await asyncio.gather(self._events.fetched(row.mask), self._events.fetched(row.versions))
        return versions_in(mask, versions)

    async def lost(self, record: Record, reason: str) -> TrajectoryScored | None:
        """Return a bad record's session as an empty, ungraded one. None: the log does not know it."""
        session = (header(record, HEADER_SESSION) or b"").decode(errors="replace")
        trajectory = await lost_trajectory(self._bus, session, reason)
        if trajectory is None:
            log.error("session_unknown", session_id=session, partition=record.partition, offset=record.offset)
            return None
        return lost_score(trajectory, time.time())


def checked(event: AnyEvent, kind: type[EventT]) -> EventT:
    """Return the event if it is of this kind. Raises BadRecord."""
    if isinstance(event, kind):
        return event
    msg = f"not a {kind.__name__} but {type(event).__name__}"
    raise BadRecord(msg)
