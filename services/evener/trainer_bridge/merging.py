"""One partition of `trajectories.scored`: its one writer folds sessions into groups and commits what becomes of them.

Outputs, the state of every group that changed and the consumed offset are one transaction of `bridge-P`. Memory follows the log:
what was not committed is forgotten with this object.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
import structlog

from evener.bus.port import Bus, GroupOffset, NotCommitted, Outgoing, Position, Producer, Record
from evener.proto.codec import BadRecord
from evener.proto.ends import LeftOut
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryScored
from evener.service.events import EventLog
from evener.service.faults import point
from evener.service.telemetry import Metrics
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.core import TOPIC_OF, Outcome, close, complete, fold, late, may_end, outcome, versions_matter
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.reading import Reader

GROUP: Final = "trainer-bridge"
COMMIT_PAUSES_SECONDS: Final = (0.2, 1.0, 5.0, 10.0)
"""After a commit that is not in the log; after the last one the service is started again."""
SWEEP_SECONDS: Final = 60.0
"""Ended groups are looked through at most so often."""

log = structlog.get_logger()


class Kept(msgspec.Struct, frozen=True):
    """A group and when its state last changed (Unix seconds)."""

    state: GroupState
    changed_at: float


class Merging:
    """The state of one partition, and its producer."""

    def __init__(
        self,
        *,
        partition: int,
        producer: Producer,
        config: Config,
        bus: Bus,
        events: EventLog,
        policies: Policies,
        settled: Callable[[str], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        """`settled`: waits until no version of a policy is on its way, so that what is rolled back is known before tokens are merged."""
        self._partition = partition
        self._producer = producer
        self._config = config
        self._bus = bus
        self._events = events
        self._reader = Reader(bus, events)
        self._settled = settled
        self._policies = policies
        self._metrics = metrics
        self._groups: dict[str, Kept] = {}
        self._swept_at = 0.0

    async def restore(self) -> int:
        """Read the state to its end, and return the offset to go on from."""
        for key, record in (await self._bus.last_values(Topic.BRIDGE_STATE, self._partition)).items():
            state = await self._reader.state(record)
            self._groups[key] = Kept(state, record.timestamp_ms / 1000)
        start = await self._bus.committed(GROUP, Topic.SCORED, self._partition)
        return await self._bus.beginning(Topic.SCORED, self._partition) if start is None else start

    async def merge(self, records: Sequence[Record]) -> None:
        """Fold the records in and commit what follows. Raises Fenced; NotCommitted after the last pause."""
        sessions = [scored for record in records if (scored := await self._scored(record)) is not None]
        for policy in sorted({scored.trajectory.spec.policy for scored in sessions}):
            await self._settled(policy)
        now = time.time()
        changed: dict[str, GroupState] = {}
        ended: list[Outcome] = []
        for scored in sessions:
            await self._fold(scored, changed, ended, now)
        expired = self._expired(now)
        outgoing = [*await self._outputs(ended), *await self._states(changed), *map(self._tombstone, expired)]
        await point("bridge.in_transaction")
        await self._commit(outgoing, records[-1].offset + 1)
        await point("bridge.merged")
        self._groups.update({group: Kept(state, now) for group, state in changed.items()})
        for group in expired:
            del self._groups[group]
        for event in ended:
            self._tell(event)

    async def _fold(self, scored: TrajectoryScored, changed: dict[str, GroupState], ended: list[Outcome], now: float) -> None:
        group = scored.trajectory.spec.group_id
        before = changed.get(group) or (self._groups[group].state if group in self._groups else None)
        state = fold(before, scored)
        if state is None:
            log.info("session_repeated", session_id=scored.trajectory.session_id, group_id=group)
            return
        if state.delivered:
            self._metrics.tokens_left_out.labels(LeftOut.LATE.value).inc(late(scored))
        event = await self._outcome(state, now)
        if event is not None:
            ended.append(event)
            state = close(state, now)
        changed[group] = state

    async def _outcome(self, state: GroupState, now: float) -> Outcome | None:
        if not may_end(state):
            return None
        spec = state.scored[0].trajectory.spec
        policies, name = self._policies, spec.policy
        versions = await self._reader.versions(state) if versions_matter(spec, policies.newest(name), policies.doubtful(name)) else None
        return outcome(state, policies.newest(name), now, doubtful=policies.doubtful(name), versions=versions)

    async def _scored(self, record: Record) -> TrajectoryScored | None:
        """Return the session in a record, or, of a bad one, what the log still tells of it. None: nothing."""
        try:
            return await self._reader.scored(record)
        except BadRecord as bad:
            await self._events.dead_letter(GROUP, record, str(bad))
            return await self._reader.lost(record, str(bad))

    async def _outputs(self, ended: Iterable[Outcome]) -> list[Outgoing]:
        return [
            self._here(await self._events.outgoing(TOPIC_OF[event.purpose], event.group_id, event, group_id=event.group_id))
            for event in ended
        ]

    async def _states(self, changed: dict[str, GroupState]) -> list[Outgoing]:
        return [
            self._here(await self._events.outgoing(Topic.BRIDGE_STATE, group, state, group_id=group)) for group, state in changed.items()
        ]

    def _tombstone(self, group: str) -> Outgoing:
        return self._here(Outgoing(topic=Topic.BRIDGE_STATE, key=group, value=None))

    def _here(self, outgoing: Outgoing) -> Outgoing:
        """Keep a group's input, state and output in partitions of one number, however they are hashed."""
        return msgspec.structs.replace(outgoing, partition=self._partition)

    def _expired(self, now: float) -> list[str]:
        """Return groups of which no record can come any more."""
        if now - self._swept_at < SWEEP_SECONDS:
            return []
        self._swept_at = now
        oldest = now - self._config.keep_ended_seconds
        done = ((group, kept) for group, kept in self._groups.items() if kept.state.delivered and complete(kept.state))
        return [group for group, kept in done if kept.changed_at < oldest]

    async def _commit(self, outgoing: Sequence[Outgoing], offset: int) -> None:
        consumed = [GroupOffset(GROUP, Position(Topic.SCORED, self._partition, offset))]
        for pause in COMMIT_PAUSES_SECONDS:
            try:
                await self._producer.commit(outgoing, consumed)
            except NotCommitted as failed:
                log.warning("not_committed", partition=self._partition, error=str(failed), pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return
        await self._producer.commit(outgoing, consumed)

    def _tell(self, event: GroupMerged | GroupFailed) -> None:
        merged = isinstance(event, GroupMerged)
        self._metrics.groups.labels("merged" if merged else "failed", event.purpose.value).inc()
        self._metrics.tokens_delivered.inc(event.accounting.delivered)
        for reason, tokens in event.accounting.left_out.items():
            self._metrics.tokens_left_out.labels(reason.value).inc(tokens)
        why = event.reason if isinstance(event, GroupFailed) else ""
        log.info("group_ended", group_id=event.group_id, merged=merged, reason=why, delivered=event.accounting.delivered)
