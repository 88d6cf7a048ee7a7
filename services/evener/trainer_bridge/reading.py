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
from evener.service.published import Published

EventT = TypeVar("EventT")

log = structlog.get_logger()


class Reader:
    """Token arrays in the blob store stay there, and go on as references, unless versions have to be looked at."""

    def __init__(self, bus: Bus, events: EventLog, policies: Published) -> None:
        self._bus = bus
        self._events = events
        self._policies = policies

    async def scored(self, record: Record) -> TrajectoryScored:
        """Return the session in a record. Raises BadRecord, also where its blobs are missing."""
        event = checked(await self._events.light(record), TrajectoryScored)
        return checked(await self._events.event(record), TrajectoryScored) if self._versions_count(event) else event

    async def state(self, record: Record) -> GroupState:
        """Return the group in a record of the state. Raises BadRecord: a bridge without its state may not go on."""
        state = checked(await self._events.light(record), GroupState)
        looked_at = any(self._versions_count(scored) for scored in state.scored)
        return checked(await self._events.event(record), GroupState) if looked_at else state

    def _versions_count(self, scored: TrajectoryScored) -> bool:
        """Return whether a session may be left out for the versions of its tokens."""
        spec = scored.trajectory.spec
        return spec.max_lag is not None or bool(self._policies.doubtful(spec.policy))

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
