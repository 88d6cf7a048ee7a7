"""Replays a partition for ever: sends a TrajectoryBuilt for every seal, and keeps the low-water mark."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bound_contextvars

from evener.bus.port import GroupOffset, Position, Reader, Record
from evener.proto.codec import BadRecord
from evener.proto.spec import Strategy
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.sessions_reader import SessionsReader
from evener.runtime.faults import point
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.lost import empty_trajectory
from evener.service.partitions import resumed_at
from evener.service.telemetry import metrics
from evener.service.tracing import context_of
from evener.tokens.kept import KeptSession, pack
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

GROUP: Final = "reconstructor"
"""The consumer group that divides the partitions. Its offset in each is the low-water mark, from which open sessions are read again."""
BUILT_GROUP: Final = "reconstructor-built"
"""Holds the offset before which every seal has been built. Sessions sealed there may begin before the mark, and be read in part."""
READER: Final = Reader("reconstructor", groups=(GROUP, BUILT_GROUP))

log = structlog.get_logger()
tracer = trace.get_tracer("evener.reconstructor")


class Replayer:
    """Replays partitions of `sessions`, and sends the trajectories that it builds."""

    def __init__(self, context: ServiceContext, strategy: Strategy) -> None:
        self._bus = context.bus
        self._blobs = context.waiting_blobs()
        self._metrics = metrics(context.registry)
        self._events = EventLog(self._bus, self._blobs, self._metrics)
        self._strategy = strategy

    async def serve(self, partition: int) -> None:
        """Replay a partition from its mark, until cancelled."""
        reading = SessionsReader(self._events)
        marked = await resumed_at(self._bus, GROUP, Topic.SESSIONS, partition)
        built = await self._bus.committed(BUILT_GROUP, Topic.SESSIONS, partition) or 0
        async for batch in self._bus.follow(Topic.SESSIONS, partition, marked, READER):
            end = batch[-1].offset + 1
            if await self._replay(reading, batch, built):  # noted before the mark: what is sealed from there on begins at the mark or later
                built = end
                await self._note(BUILT_GROUP, partition, built)
            mark = reading.replay.mark(end, time.time())
            if mark > marked:
                await self._note(GROUP, partition, mark)
                marked = mark

    async def _replay(self, reading: SessionsReader, batch: Sequence[Record], built: int) -> bool:
        """Fold in records, and build the sessions that they seal unless that was done before. Return whether anything was built."""
        new = False
        for record in batch:
            try:
                sealed = await reading.fold(record)
            except BadRecord as bad:
                await self._events.dead_letter("reconstructor", record, str(bad))
                continue
            if sealed is not None and record.offset >= built:
                await point("reconstructor.sealed_read")
                with (
                    bound_contextvars(session_id=sealed.session.session_id),
                    tracer.start_as_current_span("build", context=context_of(record), kind=SpanKind.CONSUMER) as span,
                ):
                    await self._build(sealed, record, span)
                new = True
        return new

    async def _note(self, group: str, partition: int, offset: int) -> None:
        await self._bus.commit_offsets([GroupOffset(group, Position(Topic.SESSIONS, partition, offset))])

    async def _build(self, sealed: KeptSession, record: Record, span: Span) -> None:
        session_id = sealed.session.session_id
        span.set_attribute("evener.session.id", session_id)
        records = await self._blobs.put(await asyncio.to_thread(pack, sealed.kept))
        try:
            trajectory = await asyncio.to_thread(build, sealed.session, records=records, strategy=self._strategy)
        except Exception as bad:  # the one place where a session's damage is caught: its group must end
            log.exception("trajectory_not_built", session_id=session_id)
            span.record_exception(bad)
            span.set_status(StatusCode.ERROR, repr(bad))
            await self._events.dead_letter("reconstructor", record, repr(bad))
            lost = _lost(sealed.session, repr(bad))
            if lost is None:
                return
            trajectory = lost
        await self._events.send(Topic.BUILT, session_id, trajectory, session_id=session_id, group_id=trajectory.spec.group_id)
        await point("reconstructor.built")
        self._count(trajectory)
        span.set_attribute("evener.termination_reason", trajectory.termination_reason)
        span.set_attribute("evener.rows", len(trajectory.rows))
        delivered = trajectory.accounting.delivered
        log.info(
            "trajectory_built", session_id=session_id, end=trajectory.termination_reason, rows=len(trajectory.rows), delivered=delivered
        )

    def _count(self, trajectory: TrajectoryBuilt) -> None:
        self._metrics.trajectories.labels(trajectory.termination_reason).inc()
        for row in trajectory.rows:
            self._metrics.rows.labels(row.fidelity).inc()
        if trajectory.inconsistencies:
            self._metrics.inconsistencies.inc()
            log.warning("trajectory_inconsistent", session_id=trajectory.session_id, inconsistencies=list(trajectory.inconsistencies))


def _lost(session: SessionLog, reason: str) -> TrajectoryBuilt | None:
    """Return the empty trajectory of a session that cannot be built. None: not even its spec is known."""
    seal, spec = session.sealed, session.spec
    return None if seal is None or spec is None else empty_trajectory(spec, seal, reason)
