"""Reads what the log still says about a session whose trajectory cannot be read: enough to count it, so that its group ends."""

import time
from typing import Final

import structlog

from evener.bus.port import Bus, Record
from evener.proto.codec import tag_of
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import SessionGivenUp, SessionSealed, SessionStarted
from evener.proto.spec import SessionSpec
from evener.proto.topics import HEADER_SESSION, HEADER_TYPE, Topic
from evener.proto.trajectories import Accounting, TrajectoryBuilt, TrajectoryScored
from evener.service.events import header, plain

TOLD_EVENTS: Final = frozenset(tag_of(event).encode() for event in (SessionStarted, SessionGivenUp, SessionSealed))

log = structlog.get_logger()


async def lost_session(bus: Bus, session_id: str, reason: str) -> TrajectoryScored | None:
    """Return a sealed session as an empty, ungraded one, its tokens excluded as `dead_letter`. None: the log was trimmed."""
    partition = bus.partition_of(Topic.SESSIONS, session_id)
    spec: SessionSpec | None = None
    seal: SessionSealed | None = None
    async for record in bus.read(Topic.SESSIONS, partition, await bus.beginning(Topic.SESSIONS, partition)):
        match _event(record, session_id):
            case SessionStarted() | SessionGivenUp() as told:
                spec = told.spec
            case SessionSealed() as sealed:
                seal = seal or sealed
    if seal is None or (spec := seal.spec or spec) is None:
        log.error("session_unknown", session_id=session_id)
        return None
    trajectory = empty_trajectory(spec, seal, reason)
    return TrajectoryScored(
        trajectory=trajectory, ungraded=ExclusionReason.DEAD_LETTER.value, grader=spec.grader.name, scored_at=time.time()
    )


def _event(record: Record, session_id: str) -> object:
    """Return an event of the session that is needed; None for any other record, which its header tells, and for a bad one."""
    if header(record, HEADER_SESSION) != session_id.encode() or header(record, HEADER_TYPE) not in TOLD_EVENTS:
        return None
    return plain(record)


def empty_trajectory(spec: SessionSpec, seal: SessionSealed, reason: str) -> TrajectoryBuilt:
    """Return the trajectory of a session of which only the end is certain."""
    tokens = seal.sampled_tokens
    return TrajectoryBuilt(
        session_id=seal.session_id,
        attempt=seal.attempt,
        spec=spec,
        termination_reason=seal.termination_reason,
        detail=seal.detail,
        accounting=Accounting(sampled=tokens, excluded={ExclusionReason.DEAD_LETTER: tokens} if tokens else {}),
        rule=0,
        rows_digest=seal.rows_digest,
        inconsistencies=(reason,),
        sealed_at=seal.sealed_at,
    )
