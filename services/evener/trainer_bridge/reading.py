"""Reading records of the bridge: fetched only where versions have to be compared; bad ones are looked up in the log."""

import time
from typing import TypeVar

import structlog

from evener.bus.port import Bus, Record
from evener.proto.codec import AnyEvent, BadRecord
from evener.proto.state import GroupState
from evener.proto.topics import HEADER_SESSION
from evener.proto.trajectories import TrajectoryScored
from evener.service.events import EventLog, header
from evener.service.lost import lost_score, lost_trajectory

EventT = TypeVar("EventT")

log = structlog.get_logger()


class Reader:
    """Token arrays in the blob store stay there, and go on as references, unless the session has a `max_lag`."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events

    async def scored(self, record: Record) -> TrajectoryScored:
        """Return the session in a record. Raises BadRecord, also where its blobs are missing."""
        event = checked(await self._events.light(record), TrajectoryScored)
        return event if event.trajectory.spec.max_lag is None else checked(await self._events.event(record), TrajectoryScored)

    async def state(self, record: Record) -> GroupState:
        """Return the group in a record of the state. Raises BadRecord: a bridge without its state may not go on."""
        state = checked(await self._events.light(record), GroupState)
        lagging = any(scored.trajectory.spec.max_lag is not None for scored in state.scored)
        return checked(await self._events.event(record), GroupState) if lagging else state

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
