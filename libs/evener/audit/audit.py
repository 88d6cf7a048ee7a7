"""Reads a log and checks every promise: tasks first, then each partition's sessions, then their groups."""

from collections.abc import Iterable, Mapping

from evener.audit.answers import Received, ReceivedAnswer
from evener.audit.built import BuiltFacts, note_built
from evener.audit.engine import EngineChecks, Entries
from evener.audit.findings import AuditReport, Findings, Invariant
from evener.audit.groups import AuditedGroups
from evener.audit.sessions import PartitionSessions, SessionFacts
from evener.audit.snapshot import EventRecord, Snapshot, take
from evener.audit.tasks import AuditedTasks, Scope
from evener.blobs.port import BlobError, Blobs, NotRead
from evener.bus.port import LogReader, Record
from evener.proto.codec import NOT_AN_EVENT, BadRecord, decode
from evener.proto.fleet import PolicyRetired, PolicyStaged
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.service.events import header
from evener.tokens.kept import unpack

EVERYTHING = Scope()


async def audit(
    log: LogReader,
    blobs: Blobs,
    scope: Scope = EVERYTHING,
    *,
    answers: Iterable[ReceivedAnswer] = (),
    engine: Mapping[str, Entries] | None = None,
    settled: bool = False,
) -> AuditReport:
    """Return what was checked, and every breach. Raises BusError, NotRead.

    `answers`: harnesses' ledgers. `engine`: entries of the engines' ledgers by call id (None: unknown). `settled`: everything has ended, so
    what is open is a breach.
    """
    findings = Findings()
    return await _Audit(await take(log, blobs, findings), blobs, scope, findings, settled=settled).run(
        Received(answers, findings), None if engine is None else EngineChecks(engine, findings)
    )


class _Audit:
    def __init__(self, snapshot: Snapshot, blobs: Blobs, scope: Scope, findings: Findings, *, settled: bool) -> None:
        self._snapshot = snapshot
        self._blobs = blobs
        self._scope = scope
        self._findings = findings
        self._settled = settled
        self._tasks = AuditedTasks(scope, findings)
        self._sessions: dict[str, SessionFacts] = {}
        self._calls = self._open = self._trimmed = self._seen = 0

    async def run(self, received: Received, engine: EngineChecks | None) -> AuditReport:
        """Check the whole log against all promises."""
        snapshot, tasks = self._snapshot, self._tasks
        async for read in snapshot.read(Topic.TASKS, 0, lambda _: True, light=True):
            tasks.record(read, snapshot.tasks_ended)
        await snapshot.read_letters(tasks.wants)
        for partition in snapshot.partitions(Topic.SESSIONS):
            await self._partition(partition, received, engine)
        received.end()
        unproven = await self._unproven()
        groups = AuditedGroups(tasks, self._sessions, self._lost(), unproven, self._findings, settled=self._settled)
        trimmed = await snapshot.trimmed(Topic.TASKS, 0)
        for partition in snapshot.partitions(Topic.SCORED):
            async for read in snapshot.read(Topic.SCORED, partition, tasks.wants, light=True):
                groups.score(read)
            for topic in (Topic.MERGED, Topic.KEPT):
                async for read in snapshot.read(topic, partition, tasks.wants):
                    groups.record(topic, read)
                trimmed = trimmed or await snapshot.trimmed(topic, partition)
        if self._scope.whole and not trimmed:
            for group_id in groups.ended.keys() - tasks.known.keys():
                self._findings.breach(Invariant.TASKS, group_id, "a group that belongs to no task", *groups.ended[group_id])
        return AuditReport(
            tasks=len(tasks.known),
            sessions=self._seen,
            groups=len(groups.ended),
            calls=self._calls,
            open_tasks=tasks.check_ends(groups.ended, settled=self._settled, trimmed=trimmed),
            open_sessions=self._open,
            deleted_tasks=len(tasks.deleted),
            trimmed_sessions=self._trimmed,
            checked=dict(sorted(self._findings.checked.items(), key=lambda item: list(Invariant).index(item[0]))),
            breaches=tuple(self._findings.breaches),
        )

    def _lost(self) -> frozenset[str]:
        """Return the sessions that dead letters name."""
        return frozenset((header(read.record, HEADER_SESSION) or b"").decode(errors="replace") for read in self._snapshot.letters.values())

    async def _unproven(self) -> frozenset[tuple[str, int]]:
        """Return the versions of policies that were staged or rolled back: a bridge may have met their tokens before their proof."""
        read = self._snapshot.read(Topic.POLICIES, 0, lambda _: True, light=True)
        events = [one.event async for one in read]
        return frozenset((event.policy, event.version) for event in events if isinstance(event, PolicyStaged | PolicyRetired))

    async def _partition(self, partition: int, received: Received, engine: EngineChecks | None) -> None:
        snapshot, built = self._snapshot, dict[str, BuiltFacts]()
        wanted = (lambda _: True) if received else self._tasks.wants
        async for read in snapshot.read(Topic.BUILT, partition, self._tasks.wants):
            if isinstance(read.event, TrajectoryBuilt):
                if engine is not None and read.event.session_id not in built:
                    engine.check(read.event, read.at)
                note_built(built, read.event, read)
        sessions = PartitionSessions(self._tasks, built, received, self._findings)
        trimmed = await snapshot.trimmed(Topic.SESSIONS, partition)
        async for read in snapshot.read(Topic.SESSIONS, partition, wanted):
            sessions.record(read, trimmed=trimmed)
        sessions.end(settled=self._settled)
        for session_id, facts in built.items():
            await self._stored(sessions, session_id, facts, trimmed=trimmed)
        self._note_strangers(sessions, built, trimmed=trimmed or await snapshot.trimmed(Topic.TASKS, 0))
        self._note_unbuilt(sessions, built)
        self._sessions |= sessions.facts
        self._calls += sessions.calls
        seen = [name for name in sessions.sealed.keys() | sessions.open.keys() | built.keys() if self._tasks.has_session(name)]
        self._seen += len(seen)
        self._open += sum(name not in sessions.sealed and name not in built for name in seen)
        self._trimmed += sum(name in built and (name in sessions.trimmed or name not in sessions.sealed) for name in seen)

    async def _stored(self, sessions: PartitionSessions, session_id: str, built: BuiltFacts, *, trimmed: bool) -> None:
        """Check a session against its stored records."""
        if not trimmed and session_id not in sessions.sealed:
            self._findings.breach(Invariant.REBUILT, session_id, "it was built, but the log does not hold its seal", *built.at)
        if built.records is None:
            self._findings.breach(Invariant.REBUILT, session_id, "its records were not kept", *built.at)
            return
        try:
            stored = unpack(session_id, await self._blobs.get(built.records))
            records = [_as_read(session_id, kept.offset, kept.timestamp_ms, kept.event) for kept in stored.kept if not kept.inconsistency]
        except NotRead:
            raise
        except (BlobError, BadRecord, *NOT_AN_EVENT) as failed:
            self._findings.breach(Invariant.REBUILT, session_id, f"its records cannot be read: {failed.args[0]}", *built.at)
            return
        sessions.note_stored(session_id, stored, records)

    def _note_unbuilt(self, sessions: PartitionSessions, built: Mapping[str, BuiltFacts]) -> None:
        for session_id, seals in sessions.sealed.items():
            if self._settled and session_id not in built and self._tasks.has_session(session_id):
                self._findings.breach(Invariant.REBUILT, session_id, "it was never built", *seals)

    def _note_strangers(self, sessions: PartitionSessions, built: Mapping[str, BuiltFacts], *, trimmed: bool) -> None:
        if not self._scope.whole or trimmed:
            return
        at = {name: known.records[0].at for name, known in sessions.open.items()} | {name: facts.at[0] for name, facts in built.items()}
        at |= {name: seals[0] for name, seals in sessions.sealed.items()}
        for session_id, first in at.items():
            if not self._tasks.expects(session_id):
                self._findings.breach(Invariant.TASKS, session_id, "a session that belongs to no task", first)


def _as_read(session_id: str, offset: int, timestamp_ms: int, event: bytes) -> EventRecord:
    """Return a kept record as it was read. Raises BadRecord."""
    record = Record(topic=Topic.SESSIONS, partition=0, offset=offset, key=session_id, value=event, headers=(), timestamp_ms=timestamp_ms)
    return EventRecord(record, decode(event))
