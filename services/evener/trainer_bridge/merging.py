"""The only writer of one partition of `trajectories.scored`: folds sessions into groups and commits the records of groups that end.

The outputs, the state of every changed group and the consumed offset are one transaction of `bridge-P`. Memory follows the log: changes
that were not committed are forgotten with this object. A session of an open group is put into the blob store once. The group's state names
its place, and the session is read again when the group ends.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from evener.bus.port import GroupOffset, NotCommitted, Outgoing, Position, Producer, Record
from evener.proto.codec import BadRecord
from evener.proto.ids import session_of
from evener.proto.reasons import ExclusionReason
from evener.proto.state import GroupState, ScoredMember
from evener.proto.topics import GROUP_TOPIC, HEADER_SESSION, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, GroupOutcome, TrajectoryScored
from evener.runtime.backoff import Backoff
from evener.runtime.faults import point
from evener.service.context import ServiceContext
from evener.service.events import EventLog, checked, header
from evener.service.lost import lost_session
from evener.service.partitions import resumed_at
from evener.service.telemetry import metrics
from evener.service.tracing import context_of, ending, nanoseconds
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.core import as_read, close, complete, fold, outcome
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.rules import Fate, PolicyVersions, decision_for

GROUP: Final = "trainer-bridge"
COMMIT: Final = Backoff(0.2, 10.0)
"""The pauses after a commit that is not in the log."""
COMMIT_TRIES: Final = 7
"""After this many failed commits the service is started again."""
BLOB_REQUESTS: Final = 16
"""How many sessions of a partition's groups are read or put at a time: a group may have a thousand."""
FORGET_SECONDS: Final = 60.0
"""The shortest interval between two searches for ended groups to forget."""

log = structlog.get_logger()
tracer = trace.get_tracer("evener.trainer_bridge")


class RememberedGroup(Struct, frozen=True):
    """A group, and when its state last changed (Unix seconds)."""

    state: GroupState
    changed_at: float


class MergeBatch:
    """The changes of one transaction."""

    def __init__(self) -> None:
        self.changed: dict[str, GroupState] = {}
        self.ended: list[GroupOutcome] = []
        self.causes: dict[str, Context] = {}
        """Group id to the trace context of the session with which the group ended."""
        self.arrived: defaultdict[str, dict[int, TrajectoryScored]] = defaultdict(dict)
        """Group id and index to the sessions of this batch, which need not be read again."""


class Merging:
    """The state of one partition, and its producer."""

    def __init__(
        self,
        partition: int,
        producer: Producer,
        config: Config,
        context: ServiceContext,
        *,
        policies: Policies,
        settled: Callable[[str], Awaitable[None]],
    ) -> None:
        """`settled` waits until a policy has no rollout under way, so that a rolled-back version is known before its tokens are merged."""
        self._partition = partition
        self._producer = producer
        self._config = config
        self._bus = context.bus
        self._metrics = metrics(context.registry)
        self._events = EventLog(context.bus, context.waiting_blobs(), self._metrics)
        self._settled = settled
        self._policies = policies
        self._groups: dict[str, RememberedGroup] = {}
        self._swept_at = 0.0
        self._blob_requests = asyncio.Semaphore(BLOB_REQUESTS)

    async def restore(self) -> int:
        """Read the state to its end, and return the offset to continue from. Raises BadRecord: no bridge may run without its state."""
        for key, record in (await self._bus.last_values(Topic.BRIDGE_STATE, self._partition)).items():
            state = checked(await self._events.light(record), GroupState)
            self._groups[key] = RememberedGroup(state, record.timestamp_ms / 1000)
        return await resumed_at(self._bus, GROUP, Topic.SCORED, self._partition)

    async def merge(self, records: Sequence[Record]) -> None:
        """Fold the records in and commit what follows. Raises Fenced, and NotCommitted after the last pause."""
        read = [(await self._scored(record), record) for record in records]
        sessions = [(scored, record) for scored, record in read if scored is not None and not scored.pending]
        for policy in sorted({scored.trajectory.spec.policy for scored, _ in sessions}):
            await self._settled(policy)
        now, batch = time.time(), MergeBatch()
        for scored, record in sessions:
            await self._fold(scored, batch, now)
            if len(batch.ended) > len(batch.causes):
                batch.causes[batch.ended[-1].group_id] = context_of(record)
        spans = [_span(event, batch.causes[event.group_id], now) for event in batch.ended]
        with ending(spans):
            states = await asyncio.gather(*(self._stored(state, batch) for state in batch.changed.values()))
            expired = self._expired(now)
            outgoing = await self._outputs(batch.ended, spans)
            outgoing += [await self._outgoing(Topic.BRIDGE_STATE, state) for state in states]
            outgoing += map(self._tombstone, expired)
            await point("bridge.in_transaction")
            await self._commit(outgoing, records[-1].offset + 1)
        await point("bridge.merged")
        self._groups.update({state.group_id: RememberedGroup(state, now) for state in states})
        for group in expired:
            del self._groups[group]
        for event in batch.ended:
            self._tell(event)

    async def _fold(self, scored: TrajectoryScored, batch: MergeBatch, now: float) -> None:
        spec = scored.trajectory.spec
        group = spec.group_id
        before = batch.changed.get(group) or (self._groups[group].state if group in self._groups else None)
        state = fold(before, scored)
        if state is None:
            log.info("session_repeated", session_id=scored.trajectory.session_id, group_id=group)
            return
        batch.arrived[group][spec.index] = scored
        if state.ended_at is not None:
            self._metrics.tokens_excluded.labels(ExclusionReason.LATE.value).inc(scored.trajectory.accounting.delivered)
            batch.changed[group] = state
        else:
            batch.changed[group] = await self._decided(state, batch, now)

    async def _decided(self, state: GroupState, batch: MergeBatch, now: float) -> GroupState:
        """Return an open group after its rules were asked: it is still open, or it has ended and its record is in the batch."""
        versions = PolicyVersions(self._policies.newest(state.policy), self._policies.unproven_versions(state.policy))
        if decision_for(state, versions).fate is Fate.WAIT:
            return state
        arrived = batch.arrived[state.group_id]
        found = await asyncio.gather(*(self._session(state, member, arrived) for member in state.scored))
        sessions = {member.index: scored for member, scored in zip(state.scored, found, strict=True)}
        state = as_read(state, sessions)
        decision = decision_for(state, versions)
        if decision.fate is Fate.WAIT:  # a session was lost since it was scored
            return state
        topic = GROUP_TOPIC[state.purpose]
        offset = await self._bus.end(topic, self._partition) + sum(GROUP_TOPIC[event.purpose] is topic for event in batch.ended)
        batch.ended.append(outcome(state, decision, sessions, now))
        return close(state, now, offset)

    async def _session(self, state: GroupState, member: ScoredMember, arrived: dict[int, TrajectoryScored]) -> TrajectoryScored | None:
        """Return a session of a group that ends, or, if its record is gone, what the log still says about it.

        None: the log says nothing.
        """
        if member.session is None:
            return arrived[member.index]
        try:
            async with self._blob_requests:
                return checked(await self._events.stored(member.session), TrajectoryScored)
        except BadRecord as bad:
            session_id = session_of(state.group_id, member.index)
            log.error("session_not_read", session_id=session_id, error=str(bad))
            return await lost_session(self._bus, session_id, str(bad))

    async def _stored(self, state: GroupState, batch: MergeBatch) -> GroupState:
        """Return the group after its sessions of this batch were put into the blob store."""
        arrived = batch.arrived[state.group_id]

        async def stored(member: ScoredMember) -> ScoredMember:
            if member.session is not None:
                return member
            async with self._blob_requests:
                return replace(member, session=await self._events.store(arrived[member.index]))

        return replace(state, scored=tuple(await asyncio.gather(*map(stored, state.scored))))

    async def _scored(self, record: Record) -> TrajectoryScored | None:
        """Return the session in a record, arrays left in the blob store, or what the log says if the record is bad. None: nothing."""
        try:
            return checked(await self._events.light(record), TrajectoryScored)
        except BadRecord as bad:
            await self._events.dead_letter("trainer_bridge", record, str(bad))
            session_id = (header(record, HEADER_SESSION) or b"").decode(errors="replace")
            return await lost_session(self._bus, session_id, str(bad))

    async def _outputs(self, ended: Iterable[GroupOutcome], spans: Iterable[Span]) -> list[Outgoing]:
        contexts = map(trace.set_span_in_context, spans)
        return [await self._outgoing(GROUP_TOPIC[event.purpose], event, context) for event, context in zip(ended, contexts, strict=True)]

    async def _outgoing(self, topic: Topic, event: GroupOutcome | GroupState, context: Context | None = None) -> Outgoing:
        """Return a record of a group. Its input, state and output have the same partition number, whatever the hash of their keys."""
        group = event.group_id
        return await self._events.outgoing(topic, group, event, group_id=group, trace=context, partition=self._partition)

    def _tombstone(self, group: str) -> Outgoing:
        return Outgoing(topic=Topic.BRIDGE_STATE, key=group, value=None, partition=self._partition)

    def _expired(self, now: float) -> list[str]:
        """Return the groups of which no further record can come."""
        if now - self._swept_at < FORGET_SECONDS:
            return []
        self._swept_at = now
        oldest = now - self._config.keep_ended_seconds
        done = ((group, known) for group, known in self._groups.items() if known.state.ended_at is not None and complete(known.state))
        return [group for group, known in done if known.changed_at < oldest]

    async def _commit(self, outgoing: Sequence[Outgoing], offset: int) -> None:
        consumed = [GroupOffset(GROUP, Position(Topic.SCORED, self._partition, offset))]
        for pause in islice(COMMIT, COMMIT_TRIES - 1):
            try:
                await self._producer.commit(outgoing, consumed)
            except NotCommitted as failed:
                log.warning("not_committed", partition=self._partition, error=str(failed), pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return
        await self._producer.commit(outgoing, consumed)

    def _tell(self, event: GroupOutcome) -> None:
        result = "merged" if isinstance(event, GroupMerged) else "failed" if event.dropped_by is None else "dropped"
        self._metrics.groups.labels(result, event.purpose.value).inc()
        self._metrics.tokens_delivered.inc(event.accounting.delivered)
        for reason, tokens in event.accounting.excluded.items():
            self._metrics.tokens_excluded.labels(reason.value).inc(tokens)
        log.info("group_ended", group_id=event.group_id, result=result, reason=event.reason, delivered=event.accounting.delivered)


def _span(event: GroupOutcome, cause: Context, began: float) -> Span:
    """Return the span of a group's merge, from `began` (Unix seconds) to its commit."""
    span = tracer.start_span("merge", context=cause, kind=SpanKind.CONSUMER, start_time=nanoseconds(began))
    span.set_attribute("evener.group.id", event.group_id)
    span.set_attribute("evener.run.id", event.run_id)
    span.set_attribute("evener.tokens.delivered", event.accounting.delivered)
    if isinstance(event, GroupFailed):
        span.set_status(StatusCode.ERROR, event.reason)
    return span
