"""Finds stored sessions in the log, or in the blob of their records if the log was trimmed, and rebuilds them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct, structs

from evener.blobs.port import BlobError, Blobs
from evener.bus.port import Bus, Record
from evener.client.session_views import RebuildRequest, Rebuilt, SessionSource
from evener.proto.arrays import length
from evener.proto.blobs import BlobRef
from evener.proto.codec import NOT_AN_EVENT, BadRecord, tag_of
from evener.proto.sessions import SessionSealed
from evener.proto.spec import SessionSpec, Strategy
from evener.proto.topics import HEADER_TYPE, Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.sessions_reader import SessionsReader, session_of
from evener.service.events import EventLog, header
from evener.tokens.kept import KeptSession, pack, unpack
from evener.tokens.trajectory import build

SIGN_OF_LIFE_RECORDS: Final = 5000
"""The number of records after which a long search reports that it continues."""
SEAL: Final = tag_of(SessionSealed).encode()

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")


class StoredSession(Struct, kw_only=True, eq=False):
    """What the log says about a session before it is read."""

    session_id: str
    partition: int
    sealed_at: float | None = None
    """When the session was sealed. None: it has not ended."""
    spec: SessionSpec | None = None
    recorded: TrajectoryBuilt | None = None
    """The first trajectory, without its rows. None: not built yet, or trimmed."""


class Stored:
    """Reads the log, and writes nothing."""

    def __init__(self, bus: Bus, blobs: Blobs, events: EventLog) -> None:
        self._bus = bus
        self._blobs = blobs
        self._events = events

    async def find(self, session_id: str) -> tuple[KeptSession, SessionSource] | None:
        """Return a session as far as it is stored, ended or not. None: it is unknown. Raises BlobError, BadRecord."""
        partition = self._bus.partition_of(Topic.SESSIONS, session_id)
        async for found in self._replayed(partition, {session_id}):
            if found is not None and await self._complete(found, partition):
                return found, SessionSource.LOG
        async for known in self._look(partition, {session_id}):
            if known is not None and known.recorded is not None and known.recorded.records is not None:
                return await self._unpacked(session_id, known.recorded.records), SessionSource.RECORDS
        return None

    async def rebuild(self, request: RebuildRequest, sees: Callable[[str], bool]) -> AsyncIterator[Rebuilt | None]:
        """Rebuild sessions of the teams that the asker sees, and compare them with the record. None: the search continues."""
        wanted: dict[str, StoredSession] = {}
        for partition in self._partitions(request.sessions):
            async for known in self._look(partition, set(request.sessions) or None):
                if known is None:
                    yield None
                elif sees("" if known.spec is None else known.spec.team) and (request.sessions or _is_wanted(known, request)):
                    wanted[known.session_id] = known
        total, number = len(set(request.sessions)) or len(wanted), 0
        for session_id in dict.fromkeys(request.sessions):
            if (problem := _problem(session_id, wanted.get(session_id))) is not None:
                number += 1
                wanted.pop(session_id, None)
                yield Rebuilt(session_id=session_id, number=number, total=total, problem=problem)
        async for rebuilt in self._each(wanted, request):
            number += rebuilt is not None
            yield rebuilt and structs.replace(rebuilt, number=number, total=total)

    async def _each(self, wanted: dict[str, StoredSession], request: RebuildRequest) -> AsyncIterator[Rebuilt | None]:
        """Rebuild from the log, partition by partition, then from the sessions' records what the log no longer holds."""
        for partition in sorted({known.partition for known in wanted.values()}):
            ids = {known.session_id for known in wanted.values() if known.partition == partition}
            async for found in self._replayed(partition, ids):
                if found is None or found.session.sealed is None:
                    yield None
                elif await self._complete(found, partition):
                    yield await asyncio.to_thread(_rebuilt, wanted.pop(found.session.session_id), found, SessionSource.LOG, request)
        for known in wanted.values():
            yield await self._from_records(known, request)

    async def _from_records(self, known: StoredSession, request: RebuildRequest) -> Rebuilt:
        problem = f"the log was trimmed, and holds no record of session {known.session_id} that names its blob"
        if known.recorded is not None and known.recorded.records is not None:
            try:
                found = await self._unpacked(known.session_id, known.recorded.records)
            except (BlobError, BadRecord) as failed:
                problem = f"the records of session {known.session_id}: {failed}"
            else:
                return await asyncio.to_thread(_rebuilt, known, found, SessionSource.RECORDS, request)
        return Rebuilt(session_id=known.session_id, number=0, total=0, problem=problem)

    async def _look(self, partition: int, wanted: set[str] | None) -> AsyncIterator[StoredSession | None]:
        """Yield what is known of the wanted sessions. `wanted` None: of all sessions that have ended."""
        found: dict[str, StoredSession] = {}
        async for record in self._read(Topic.SESSIONS, partition):
            if record is None:
                yield None
                continue
            session_id, is_seal = session_of(record), header(record, HEADER_TYPE) == SEAL
            if session_id not in wanted if wanted is not None else not is_seal:
                continue
            known = found.setdefault(session_id, StoredSession(session_id=session_id, partition=partition))
            if is_seal and known.sealed_at is None and isinstance(seal := await self._events.readable(record), SessionSealed):
                known.sealed_at, known.spec = seal.sealed_at, seal.spec
        async for record in self._read(Topic.BUILT, partition):
            if record is None:
                yield None
                continue
            its_own = wanted is None or session_of(record) in wanted
            if its_own and isinstance(built := await self._events.readable(record), TrajectoryBuilt):
                known = found.setdefault(built.session_id, StoredSession(session_id=built.session_id, partition=partition))
                if known.recorded is None:
                    known.recorded = structs.replace(built, rows=())
                    known.sealed_at, known.spec = built.sealed_at, built.spec
        for known in found.values():
            yield known

    async def _replayed(self, partition: int, wanted: set[str]) -> AsyncIterator[KeptSession | None]:
        """Yield wanted sessions as they are sealed, and finally those that are open."""
        reading = SessionsReader(self._events)
        sealed: set[str] = set()
        async for record in self._read(Topic.SESSIONS, partition):
            if record is None:
                yield None
            elif (session_id := session_of(record)) in wanted and session_id not in sealed:
                try:
                    found = await reading.fold(record)
                except BadRecord:  # its session has noted it
                    continue
                if found is not None:
                    sealed.add(session_id)
                    yield found
        for session_id in wanted - sealed:
            if (found := reading.replay.still_open(session_id)) is not None:
                yield found

    async def _complete(self, found: KeptSession, partition: int) -> bool:
        """Return whether the log still holds the session's first record."""
        return found.whole or not await self._bus.beginning(Topic.SESSIONS, partition)

    async def _unpacked(self, session_id: str, records: BlobRef) -> KeptSession:
        try:
            return unpack(session_id, await self._blobs.get(records))
        except NOT_AN_EVENT as cause:
            msg = f"blob {records.digest} holds no records: {cause}"
            raise BadRecord(msg) from cause

    async def _read(self, topic: Topic, partition: int) -> AsyncIterator[Record | None]:
        count = 0
        async for record in self._bus.read(topic, partition, await self._bus.beginning(topic, partition)):
            yield record
            count += 1
            if not count % SIGN_OF_LIFE_RECORDS:
                yield None

    def _partitions(self, session_ids: Iterable[str]) -> list[int]:
        """Return the partitions of these sessions. Without sessions: all partitions."""
        named = {self._bus.partition_of(Topic.SESSIONS, session_id) for session_id in session_ids}
        return sorted(named) or list(range(self._bus.partitions_of(Topic.SESSIONS)))


def _is_wanted(known: StoredSession, request: RebuildRequest) -> bool:
    if known.sealed_at is None or (request.since is not None and known.sealed_at < request.since):
        return False
    return request.run_id in {None, None if known.spec is None else known.spec.run_id}


def _problem(session_id: str, known: StoredSession | None) -> str | None:
    if known is None:
        return f"no session {session_id!r} in the log"
    return f"session {session_id} has not ended yet" if known.sealed_at is None else None


def _rebuilt(known: StoredSession, found: KeptSession, source: SessionSource, request: RebuildRequest) -> Rebuilt:
    """Rebuild a session, and compare it field by field."""
    recorded = known.recorded
    strategy = request.strategy or (recorded.strategy if recorded else Strategy.TREE)
    data = pack(found.kept)
    records = BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data))
    try:
        made = build(found.session, records=records, strategy=strategy)
    except ValueError as cause:
        return Rebuilt(session_id=known.session_id, number=0, total=0, problem=str(cause))
    comparable = recorded is not None and recorded.strategy is strategy
    differs = _differing(recorded, made) if recorded is not None and comparable else ()
    return Rebuilt(
        session_id=known.session_id,
        number=0,
        total=0,
        source=source,
        strategy=strategy,
        termination_reason=made.termination_reason,
        rows=len(made.rows),
        tokens=sum(length(row.ids) for row in made.rows),
        trained=made.accounting.delivered,
        digest=made.rows_digest,
        recorded=recorded.rows_digest if recorded else None,
        equal=not differs if comparable else None,
        differs=differs,
        inconsistencies=made.inconsistencies,
        trajectory=made if request.whole else None,
    )


def _differing(recorded: TrajectoryBuilt, made: TrajectoryBuilt) -> tuple[str, ...]:
    """Return the fields that differ from the record. Rows are compared by their digest."""
    names = [name for name in TrajectoryBuilt.__struct_fields__ if name != "rows"]
    return tuple(name for name in names if _encoder.encode(getattr(recorded, name)) != _encoder.encode(getattr(made, name)))
