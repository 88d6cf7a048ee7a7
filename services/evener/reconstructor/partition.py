"""One partition, replayed for ever: a TrajectoryBuilt for every seal, and the low-water mark."""

import time
from collections.abc import Sequence
from typing import Final

import structlog

from evener.blobs.port import Blobs
from evener.bus.port import Bus, GroupOffset, Position, Record
from evener.proto.errors import EvenerError
from evener.proto.spec import Strategy
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.core import Replay, Replayed
from evener.service.events import EventLog, header
from evener.service.faults import point
from evener.service.lost import lost_trajectory
from evener.service.telemetry import Metrics
from evener.tokens.trajectory import build

GROUP: Final = "reconstructor"
"""Divides the partitions, and holds each one's low-water mark: from where open sessions are read anew."""
BUILT_GROUP: Final = "reconstructor-built"
"""Holds the offset before which every seal has been built: sessions sealed there may begin before the mark, and be read in part."""

log = structlog.get_logger()


class Replayer:
    """Replays partitions of `sessions`, and sends what it builds."""

    def __init__(self, bus: Bus, blobs: Blobs, events: EventLog, metrics: Metrics, strategy: Strategy) -> None:
        self._bus = bus
        self._blobs = blobs
        self._events = events
        self._metrics = metrics
        self._strategy = strategy

    async def serve(self, partition: int) -> None:
        """Replay a partition from its mark, until cancelled."""
        replay = Replay()
        marked = await self._start(partition)
        built = await self._bus.committed(BUILT_GROUP, Topic.SESSIONS, partition) or 0
        async for batch in self._bus.follow(Topic.SESSIONS, partition, marked):
            end = batch[-1].offset + 1
            if await self._replay(replay, batch, built):  # noted before the mark: what is sealed from there on begins at the mark or later
                built = end
                await self._note(BUILT_GROUP, partition, built)
            mark = replay.mark(end, time.time())
            if mark > marked:
                await self._note(GROUP, partition, mark)
                marked = mark

    async def _start(self, partition: int) -> int:
        start = await self._bus.committed(GROUP, Topic.SESSIONS, partition)
        return start if start is not None else await self._bus.beginning(Topic.SESSIONS, partition)

    async def _replay(self, replay: Replay, batch: Sequence[Record], built: int) -> bool:
        """Fold records in, and build what they seal, unless that was done before. Return whether anything was built."""
        new = False
        for record in batch:
            sealed = await self._fold(replay, record)
            if sealed is not None and record.offset >= built:
                await point("reconstructor.sealed_read")
                await self._build(sealed, record)
                new = True
        return new

    async def _note(self, group: str, partition: int, offset: int) -> None:
        await self._bus.commit_offsets([GroupOffset(group, Position(Topic.SESSIONS, partition, offset))])

    async def _fold(self, replay: Replay, record: Record) -> Replayed | None:
        session_id = (header(record, HEADER_SESSION) or b"").decode() or record.key
        if replay.knows_sealed(session_id):
            return None
        try:
            event = await self._events.event(record)
        except EvenerError as bad:
            await self._events.dead_letter("reconstructor", record, str(bad))
            return None
        return replay.fold(session_id, event, record)

    async def _build(self, sealed: Replayed, record: Record) -> None:
        try:
            trajectory = build(sealed.session, records=await self._blobs.put(sealed.records), strategy=self._strategy)
        except Exception as bad:  # the one place where a session's damage is caught: its group must end
            log.exception("trajectory_not_built", session_id=sealed.session.session_id)
            await self._events.dead_letter("reconstructor", record, repr(bad))
            lost = await lost_trajectory(self._bus, sealed.session.session_id, repr(bad))
            if lost is None:
                return
            trajectory = lost
        session_id = sealed.session.session_id
        await self._events.send(Topic.BUILT, session_id, trajectory, session_id=session_id, group_id=trajectory.spec.group_id)
        await point("reconstructor.built")
        self._count(trajectory)
        delivered = trajectory.accounting.delivered
        log.info("trajectory_built", session_id=session_id, end=trajectory.end, rows=len(trajectory.rows), delivered=delivered)

    def _count(self, trajectory: TrajectoryBuilt) -> None:
        self._metrics.trajectories.labels(trajectory.end).inc()
        for row in trajectory.rows:
            self._metrics.rows.labels(row.fidelity).inc()
        if trajectory.doubts:
            self._metrics.doubts.inc()
            log.warning("trajectory_in_doubt", session_id=trajectory.session_id, doubts=list(trajectory.doubts))
