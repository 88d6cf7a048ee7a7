"""The evaluator: turns every built trajectory into a scored one. It is a plain consumer group, at least once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bound_contextvars

from evener.bus.offsets import Contiguous
from evener.bus.port import GroupOffset, Position, Reader, Record
from evener.evaluator.config import Config
from evener.evaluator.grading import Gradings
from evener.evaluator.groups import GroupEvaluator
from evener.graders.offer import offer_of
from evener.graders.port import Allowed
from evener.proto.codec import BadRecord
from evener.proto.fleet import GraderOffer, Heartbeat
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryBuilt, TrajectoryScored
from evener.runtime.faults import point
from evener.runtime.tasks import Tasks
from evener.sandboxes.registry import open_backends, troubles, usable
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog, checked, header
from evener.service.lost import lost_session
from evener.service.partitions import own_partitions, resumed_at
from evener.service.telemetry import metrics
from evener.service.tracing import context_of

GROUP: Final = "evaluator"

log = structlog.get_logger()
tracer = trace.get_tracer("evener.evaluator")


class PartitionProgress:
    """The open trajectories of one partition of `trajectories.built`, and how far its offset may go."""

    def __init__(self, number: int, start: int, backlog: int) -> None:
        self.number = number
        self.progress = Contiguous(start)
        self.room = asyncio.Semaphore(backlog)
        self.committed = start


class Evaluator:
    """Reads the partitions that the consumer group assigns to this instance."""

    def __init__(self, config: Config, context: ServiceContext, gradings: Gradings, offer: GraderOffer) -> None:
        self._config = config
        self._offer = offer
        self._context = context
        self._gradings = gradings
        self._groups = GroupEvaluator(config, context, gradings)
        self._events = EventLog(context.bus, context.waiting_blobs(), metrics(context.registry))
        self._partitions: dict[int, PartitionProgress] = {}
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        """The gradings, each until its score is in the log."""

    async def run(self) -> None:
        """Serve until cancelled."""
        async with Tasks() as tasks:
            tasks.create_task(self._groups.run())
            tasks.create_task(own_partitions(self._context.bus, GROUP, Topic.BUILT, self._context.instance_id, self.serve))

    async def serve(self, number: int) -> None:
        """Grade the trajectories of a partition, from the committed offset on, for ever."""
        bus = self._context.bus
        start = await resumed_at(bus, GROUP, Topic.BUILT, number)
        partition = self._partitions[number] = PartitionProgress(number, start, self._config.backlog)
        try:
            async with Tasks() as tasks:
                tasks.create_task(self._commit_for_ever(partition))
                async for batch in bus.follow(Topic.BUILT, number, start, Reader(GROUP, partition.progress.oldest_open, (GROUP,))):
                    for record in batch:
                        await self._take(partition, record, tasks)
        finally:
            if self._partitions.get(number) is partition:
                del self._partitions[number]

    async def drain(self) -> None:
        """Take no new trajectories, finish open gradings, and commit the progress."""
        self._stopping.set()
        if self._open:
            await asyncio.wait(self._open)
        for partition in self._partitions.values():
            await self._commit(partition)

    def heartbeat(self) -> Heartbeat:
        stopping = self._stopping.is_set()
        return self._context.heartbeat("evaluator", stopping=stopping, capacity=self._config.concurrency, graders=self._offer)

    async def _take(self, partition: PartitionProgress, record: Record, tasks: asyncio.TaskGroup) -> None:
        await partition.room.acquire()
        if self._stopping.is_set():
            await asyncio.Event().wait()
        partition.progress.handed_out(record.offset)
        grading = tasks.create_task(self._finish(partition, record))
        self._open.add(grading)
        grading.add_done_callback(self._open.discard)

    async def _finish(self, partition: PartitionProgress, record: Record) -> None:
        try:
            with (
                bound_contextvars(session_id=_session_of(record)),
                tracer.start_as_current_span("grade", context=context_of(record), kind=SpanKind.CONSUMER) as span,
            ):
                scored = await self._scored(record)
                if scored is not None:
                    await point("evaluator.graded")
                    _tell(span, scored)
                    spec = scored.trajectory.spec
                    session = scored.trajectory.session_id
                    await self._events.send(Topic.SCORED, spec.group_id, scored, session_id=session, group_id=spec.group_id)
            partition.progress.finished(record.offset)
        finally:
            partition.room.release()

    async def _scored(self, record: Record) -> TrajectoryScored | None:
        """Return the score of the record's session. None: the record names no session that the log knows."""
        try:
            trajectory = checked(await self._events.light(record), TrajectoryBuilt)
        except BadRecord as bad:  # its session counts as ungraded, so that its group ends
            await self._events.dead_letter(GROUP, record, str(bad))
            return await lost_session(self._context.bus, _session_of(record), str(bad))
        return await self._gradings.scored(trajectory, f"{record.partition}-{record.offset}")

    async def _commit_for_ever(self, partition: PartitionProgress) -> None:
        while True:
            await asyncio.sleep(self._config.commit_seconds)
            await self._commit(partition)

    async def _commit(self, partition: PartitionProgress) -> None:
        offset = partition.progress.next_offset
        if offset == partition.committed:
            return
        await self._context.bus.commit_offsets([GroupOffset(GROUP, Position(Topic.BUILT, partition.number, offset))])
        partition.committed = offset


def _session_of(record: Record) -> str:
    """Return the session of a record, also of one that cannot be read."""
    return (header(record, HEADER_SESSION) or record.key.encode()).decode(errors="replace")


def _tell(span: Span, scored: TrajectoryScored) -> None:
    span.set_attribute("evener.session.id", scored.trajectory.session_id)
    span.set_attribute("evener.grader", scored.grader)
    if scored.reward is not None:
        span.set_attribute("evener.reward", scored.reward)
    if scored.ungraded is not None:
        span.set_status(StatusCode.ERROR, scored.ungraded)


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the grading sandboxes and yield the evaluator."""
    async with contextlib.AsyncExitStack() as stack:
        root = Path(config.state) / "grading" / context.instance_id
        sandboxes = await stack.enter_async_context(open_backends(root, config.sandboxes))
        allowed = Allowed(endpoints=config.endpoints, modules=config.grader_modules)
        offer = await asyncio.to_thread(offer_of, allowed)
        gradings = Gradings(config, context.waiting_blobs(), context.answering_blobs(), sandboxes, metrics(context.registry))
        evaluator = Evaluator(config, context, gradings, offer)
        yield Service(
            name="evaluator",
            run=evaluator.run,
            ready=lambda: {"taking": not evaluator.heartbeat().stopping} | usable(sandboxes),
            warnings=lambda: troubles(sandboxes),
            heartbeat=evaluator.heartbeat,
            drain=evaluator.drain,
        )
