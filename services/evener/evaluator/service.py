"""The evaluator: every built trajectory becomes a scored one. A plain consumer group, at least once."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from evener.blobs.waited import Waited
from evener.bus.offsets import Contiguous
from evener.bus.port import GroupOffset, Position, Record
from evener.evaluator.config import Config
from evener.evaluator.grading import Gradings
from evener.proto.codec import BadRecord
from evener.proto.fleet import Heartbeat
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryBuilt, TrajectoryScored
from evener.sandboxes.local import open_local
from evener.service.events import EventLog, header
from evener.service.faults import point
from evener.service.lost import lost_score, lost_trajectory
from evener.service.partitions import own_partitions
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics

GROUP: Final = "evaluator"

log = structlog.get_logger()


class Partition:
    """What is open in one partition of `trajectories.built`, and how far its offset may go."""

    def __init__(self, number: int, start: int, backlog: int) -> None:
        self.number = number
        self.start = start
        self.progress = Contiguous(start)
        self.room = asyncio.Semaphore(backlog)
        self.committed = start


class Evaluator:
    """Reads the partitions that the group assigns to this instance."""

    def __init__(self, config: Config, parts: Parts, gradings: Gradings) -> None:
        self._config = config
        self._parts = parts
        self._gradings = gradings
        self._events = EventLog(parts.bus, Waited(parts.blobs))
        self._partitions: dict[int, Partition] = {}
        self._stopping = asyncio.Event()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        await own_partitions(self._parts.bus, GROUP, Topic.BUILT, self.serve, keep=False)

    async def serve(self, number: int) -> None:
        """Grade what a partition holds, from the committed offset on, for ever."""
        bus = self._parts.bus
        start = await bus.committed(GROUP, Topic.BUILT, number)
        if start is None:
            start = await bus.beginning(Topic.BUILT, number)
        partition = self._partitions[number] = Partition(number, start, self._config.backlog)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_for_ever(partition))
                async for batch in bus.follow(Topic.BUILT, number, start):
                    for record in batch:
                        await self._take(partition, record, tasks)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            if self._partitions.get(number) is partition:
                del self._partitions[number]

    async def drain(self) -> None:
        """Take nothing new, finish what is open, commit how far that went."""
        self._stopping.set()
        await self._idle.wait()
        for partition in self._partitions.values():
            await self._commit(partition)

    def heartbeat(self) -> Heartbeat:
        parts = self._parts
        return Heartbeat(
            instance_id=f"{parts.instance_id}-evaluator",
            service="evaluator",
            address=parts.address,
            boot_id=parts.boot_id,
            capacity=self._config.concurrency,
            stopping=self._stopping.is_set(),
            at=time.time(),
        )

    async def _take(self, partition: Partition, record: Record, tasks: asyncio.TaskGroup) -> None:
        await partition.room.acquire()
        if self._stopping.is_set():
            await asyncio.Event().wait()
        partition.progress.handed_out(record.offset)
        self._open += 1
        self._idle.clear()
        tasks.create_task(self._finish(partition, record))

    async def _finish(self, partition: Partition, record: Record) -> None:
        try:
            scored = await self._scored(record)
            if scored is not None:
                await point("evaluator.graded")
                spec = scored.trajectory.spec
                session = scored.trajectory.session_id
                await self._events.send(Topic.SCORED, spec.group_id, scored, session_id=session, group_id=spec.group_id)
            partition.progress.finished(record.offset)
        finally:
            partition.room.release()
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _scored(self, record: Record) -> TrajectoryScored | None:
        """Return the score of the record's session. None: the record names none that the log knows."""
        try:
            event = await self._events.light(record)
        except BadRecord as bad:
            return await self._lost(record, str(bad))
        if not isinstance(event, TrajectoryBuilt):
            return await self._lost(record, f"not a TrajectoryBuilt but {type(event).__name__}")
        return await self._gradings.scored(event, f"{record.partition}-{record.offset}")

    async def _lost(self, record: Record, reason: str) -> TrajectoryScored | None:
        """Give a bad record up, and count its session as ungraded, so that its group ends."""
        await self._events.dead_letter(GROUP, record, reason)
        session = (header(record, HEADER_SESSION) or record.key.encode()).decode(errors="replace")
        trajectory = await lost_trajectory(self._parts.bus, session, reason)
        if trajectory is None:
            log.error("session_unknown", session_id=session, offset=record.offset)
            return None
        return lost_score(trajectory, time.time())

    async def _commit_for_ever(self, partition: Partition) -> None:
        while True:
            await asyncio.sleep(self._config.commit_seconds)
            await self._commit(partition)

    async def _commit(self, partition: Partition) -> None:
        offset = partition.progress.next_offset
        if offset == partition.committed:
            return
        await self._parts.bus.commit_offsets([GroupOffset(GROUP, Position(Topic.BUILT, partition.number, offset))])
        partition.committed = offset


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Open the grading sandboxes and yield the evaluator."""
    async with contextlib.AsyncExitStack() as stack:
        root = Path(config.state) / "grading" / parts.instance_id
        sandboxes = await stack.enter_async_context(open_local(root))
        evaluator = Evaluator(config, parts, Gradings(config, parts.blobs, sandboxes, metrics(parts.registry)))
        yield Service(
            name="evaluator",
            run=evaluator.run,
            ready=lambda: {"taking": not evaluator.heartbeat().stopping},
            heartbeat=evaluator.heartbeat,
            drain=evaluator.drain,
        )
