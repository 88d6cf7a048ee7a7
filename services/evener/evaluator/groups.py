"""Grades the sessions of a group together, for graders that compare them.

Such a session's own score is pending. This reads `trajectories.scored`, in which the sessions of a group share a partition. When the last
of a group is there, it writes one further score for each in one transaction: either all of them have a score of the same judgement, or none
has. The bridge passes over pending scores, and of several others the first counts, so that a group which is graded again after a crash
changes nothing.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct

from evener.bus.offsets import Contiguous
from evener.bus.port import GroupOffset, NotCommitted, Position, Producer, Reader, Record
from evener.evaluator.config import Config
from evener.evaluator.grading import Gradings
from evener.graders.registry import GROUP_GRADERS
from evener.proto.codec import BadRecord
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryScored
from evener.runtime.backoff import Backoff
from evener.runtime.faults import point
from evener.runtime.tasks import Tasks
from evener.service.context import ServiceContext
from evener.service.events import EventLog, checked, header
from evener.service.lost import lost_session
from evener.service.partitions import own_partitions, resumed_at
from evener.service.telemetry import metrics

GROUP: Final = "evaluator-groups"
COMMIT_PAUSES: Final = Backoff(0.2, 10.0)
"""The pauses after a commit that is not in the log."""

REMEMBERED_GROUPS: Final = 10_000
STALE_SECONDS: Final = 7 * 86_400.0
"""How long a group whose sessions do not all come holds back the offset."""

log = structlog.get_logger()


class ArrivingGroup(Struct, eq=False):
    """A group some of whose sessions were scored."""

    scored: dict[int, TrajectoryScored]
    """The first score of each session, by its number: pending, or final because the session is not graded."""
    offsets: list[int]
    arrived_at: float
    """When the last of them came, by the monotonic clock."""
    is_graded: bool = False
    """Whether an earlier process has graded it: the scores of its sessions are in the log."""


class GroupPartition:
    """One partition of `trajectories.scored`: the groups of graders that compare, and how far the offset may go."""

    def __init__(self, number: int, start: int, producer: Producer) -> None:
        self.number = number
        self.progress = Contiguous(start)
        self.committed = start
        self.producer = producer
        self.groups: dict[str, ArrivingGroup] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        """The groups that were graded last. Their scores come back in the log, and repeats of their sessions may."""

    def add(self, offset: int, scored: TrajectoryScored, now: float) -> ArrivingGroup | None:
        """Note a score. Return its group if it is graded together, and this was its last session."""
        self.progress.handed_out(offset)
        spec = scored.trajectory.spec
        group = self.groups.get(spec.group_id)
        if spec.grader.name not in GROUP_GRADERS or spec.group_id in self._closed or scored.tries:
            if group is not None and scored.tries:
                group.is_graded = True
            self.progress.finished(offset)
            return None
        if group is None:
            group = self.groups[spec.group_id] = ArrivingGroup({}, [], now)
        group.offsets.append(offset)
        group.arrived_at = now
        if spec.index in group.scored:
            return None
        group.scored[spec.index] = scored
        return group if len(group.scored) == spec.group_size else None

    def close(self, group_id: str) -> None:
        """Forget a group whose sessions all have their score."""
        for offset in self.groups.pop(group_id).offsets:
            self.progress.finished(offset)
        self._closed[group_id] = None
        while len(self._closed) > REMEMBERED_GROUPS:
            self._closed.popitem(last=False)

    def close_old(self, now: float) -> None:
        """Forget groups that will never be whole: repeats of sessions whose group was graded by an earlier process."""
        for group_id in [group_id for group_id, group in self.groups.items() if now - group.arrived_at > STALE_SECONDS]:
            log.warning("group_given_up", group_id=group_id, sessions=len(self.groups[group_id].scored))
            self.close(group_id)

    def position(self) -> tuple[GroupOffset, ...]:
        """Return the offset to commit, if it has moved."""
        offset = self.progress.next_offset
        if offset == self.committed:
            return ()
        return (GroupOffset(GROUP, Position(Topic.SCORED, self.number, offset)),)


class GroupEvaluator:
    """Reads the partitions that its consumer group assigns to this instance."""

    def __init__(self, config: Config, context: ServiceContext, gradings: Gradings) -> None:
        self._config = config
        self._context = context
        self._gradings = gradings
        self._events = EventLog(context.bus, context.waiting_blobs(), metrics(context.registry))

    async def run(self) -> None:
        """Serve until cancelled."""
        await own_partitions(self._context.bus, GROUP, Topic.SCORED, self._context.instance_id, self.serve)

    async def serve(self, number: int) -> None:
        """Grade the groups of a partition, from the committed offset on, for ever. Raises Fenced."""
        bus = self._context.bus
        producer = await bus.producer(f"evaluator-groups-{number}")
        start = await resumed_at(bus, GROUP, Topic.SCORED, number)
        partition = GroupPartition(number, start, producer)
        try:
            async with Tasks() as tasks:
                tasks.create_task(self._commit_for_ever(partition))
                async for batch in bus.follow(Topic.SCORED, number, start, Reader(GROUP, partition.progress.oldest_open, (GROUP,))):
                    for record in batch:
                        await self._take(partition, record, tasks)
        finally:
            await producer.aclose()

    async def _take(self, partition: GroupPartition, record: Record, tasks: asyncio.TaskGroup) -> None:
        scored: TrajectoryScored | None
        try:
            scored = checked(await self._events.light(record), TrajectoryScored)
        except BadRecord as bad:  # the bridge makes it a dead letter
            session_id = (header(record, HEADER_SESSION) or b"").decode(errors="replace")
            if (scored := await lost_session(self._context.bus, session_id, str(bad))) is None:
                return
        if (group := partition.add(record.offset, scored, time.monotonic())) is not None:
            tasks.create_task(self._grade(partition, scored.trajectory.spec.group_id, group))

    async def _grade(self, partition: GroupPartition, group_id: str, group: ArrivingGroup) -> None:
        pending = [scored for scored in group.scored.values() if scored.pending]
        if pending:
            graded = await self._gradings.group_scored(pending, f"group-{partition.number}-{group.offsets[0]}")
            await point("evaluator.group_graded")
            if not group.is_graded:
                await self._commit_scores(partition, graded)
                log.info("group_graded", group_id=group_id, sessions=len(graded))
        partition.close(group_id)

    async def _commit_scores(self, partition: GroupPartition, scores: Sequence[TrajectoryScored]) -> None:
        outgoing = [
            await self._events.outgoing(
                Topic.SCORED,
                scored.trajectory.spec.group_id,
                scored,
                session_id=scored.trajectory.session_id,
                group_id=scored.trajectory.spec.group_id,
                partition=partition.number,
            )
            for scored in scores
        ]
        for pause in COMMIT_PAUSES:
            try:
                await partition.producer.commit(outgoing)
            except NotCommitted as failed:
                log.warning("not_committed", partition=partition.number, error=str(failed), pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return

    async def _commit_for_ever(self, partition: GroupPartition) -> None:
        while True:
            await asyncio.sleep(self._config.commit_seconds)
            partition.close_old(time.monotonic())
            if offsets := partition.position():
                await self._context.bus.commit_offsets(offsets)
                partition.committed = offsets[0].position.offset
